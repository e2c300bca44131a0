"""Validation of everything that a browser or a program sends: host names, sizes, values within bounds, pictures.

`SecurityMiddleware` stands before the app. Handlers validate values, because a program can send what no page offers.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmrl.data.media.uris import data_uri
from mmrl.demo.error_handling import DemoError

MOST_PROMPT = 2000  # characters
MOST_ROWS = 16  # pictures of a column
MOST_STEPS = 100
MOST_GUIDANCE = 30.0
MOST_RLG = 5.0
MOST_COLUMNS = 8
MOST_CELLS = 64
MOST_SEED = 2**31 - 1


@dataclass(frozen=True)
class ValidatedRequest:
    """A request whose values are within bounds."""

    columns: tuple[str, ...]
    prompt: str
    seed: int
    rows: int
    steps: int | None  # None: as each run sampled
    guidances: tuple[float | None, ...]  # one, or one a row; None: as each run sampled
    rlg: float | None  # None: off

    @property
    def by_guidance(self) -> bool:
        """True if rows are guidance scales, False if they are draws."""
        return len(self.guidances) > 1


def validate_request(
    columns: Any, prompt: Any, seed: Any, rows: Any, steps: Any, guidances: Any, rlg: Any, known: Sequence[str]
) -> ValidatedRequest:
    """Return the request of a page or a program, validated.

    `guidances` is a text: empty, a number, or several with commas between. Unset numbers are None or 0.

    Raises:
        DemoError: a value is outside its bounds; the message names it.
    """
    if not isinstance(columns, list | tuple) or not all(isinstance(each, str) for each in columns):
        raise DemoError("Checkpoints must be a list of names.")
    chosen = tuple(dict.fromkeys(columns))
    if unknown := [each for each in chosen if each not in known]:
        raise DemoError(f"There is no checkpoint called {unknown[0][:60]!r} here.")
    if not 1 <= len(chosen) <= MOST_COLUMNS:
        raise DemoError(f"Choose 1 to {MOST_COLUMNS} checkpoints, not {len(chosen)}.")
    scales = guidance_scales(guidances)
    count = 1 if len(scales) > 1 else whole(rows, "The group size", 1, MOST_ROWS)
    if (cells := len(chosen) * max(count, len(scales))) > MOST_CELLS:
        raise DemoError(f"That would be {cells} pictures; at most {MOST_CELLS} at once.")
    return ValidatedRequest(
        columns=chosen,
        prompt=prompt_text(prompt),
        seed=whole(seed, "The seed", 0, MOST_SEED),
        rows=count,
        steps=whole(steps, "Steps", 1, MOST_STEPS) if steps else None,
        guidances=scales,
        rlg=_number(rlg, "RLG strength", MOST_RLG) if rlg not in (None, "", 1) else None,
    )


def prompt_text(prompt: Any) -> str:
    """Return the stripped prompt.

    Raises:
        DemoError: it is empty or too long.
    """
    if not isinstance(prompt, str) or not prompt.strip():
        raise DemoError("Write a prompt first.")
    if len(prompt) > MOST_PROMPT:
        raise DemoError(f"The prompt has {len(prompt)} characters; at most {MOST_PROMPT}.")
    return prompt.strip()


def whole(value: Any, what: str, low: int, high: int) -> int:
    """Return a whole number within bounds; `what` names it in the message.

    Raises:
        DemoError: it is no such number.
    """
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value != int(value) or not low <= value <= high:
        raise DemoError(f"{what} must be a whole number from {low} to {high}.")
    return int(value)


def heat(value: Any) -> float:
    """Return a temperature.

    Raises:
        DemoError: it is no number from 0 to 2.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise DemoError("The temperature must be a number from 0 to 2.")
    return float(value)


def guidance_scales(text: Any) -> tuple[float | None, ...]:
    """Return the guidance scales in a text such as `1, 2.5, 4`; (None,) for an empty text.

    Raises:
        DemoError: too many, or one is no number within bounds.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        return (None,)
    parts = str(text)[:200].replace(";", ",").split(",")
    if len(parts) > MOST_ROWS:
        raise DemoError(f"At most {MOST_ROWS} guidance scales at once.")
    return tuple(dict.fromkeys(_number(part, "Guidance", MOST_GUIDANCE) for part in parts))


def _number(value: Any, what: str, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= high:
        raise DemoError(f"{what} must be a number from 0 to {high:g}.")
    return number


MOST_BYTES = 8 * 2**20  # of one uploaded file
MOST_PIXELS = 4096 * 4096
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True)
class Uploads:
    """The only folder that uploads are read from."""

    folder: Path

    def picture(self, sent: Any) -> Image.Image:
        """Return an uploaded file as an upright RGB picture.

        `sent` is the path that the browser names; a program may send any other.

        Raises:
            DemoError: it is no upload, too large, or no picture.
        """
        if not isinstance(sent, str) or not sent:
            raise DemoError("Upload a picture first.")
        try:
            path = Path(sent).resolve(strict=True)  # follows all links
        except (OSError, ValueError, RuntimeError):
            raise DemoError("That is no uploaded file.") from None
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            raise DemoError("That is no uploaded file.")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DemoError(f"The file has {size / 2**20:.1f} MiB; at most {MOST_BYTES // 2**20}.")
        return decoded(path.read_bytes())


def decoded(content: bytes) -> Image.Image:
    """Return the bytes of a picture file as an upright RGB picture.

    Raises:
        DemoError: they are no picture, damaged, or have too many pixels.
    """
    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(io.BytesIO(content), formats=FORMATS) as image,
        ):
            if image.width * image.height > MOST_PIXELS:
                raise DemoError(f"The picture has {image.width} x {image.height} pixels; at most 4096 x 4096.")
            return ImageOps.exif_transpose(image).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DemoError("The picture has more than 4096 x 4096 pixels.") from None
    except (OSError, SyntaxError, ValueError) as err:
        if isinstance(err, DemoError):
            raise
        raise DemoError(f"That file is no picture ({', '.join(FORMATS)}), or it is damaged.") from None


def limit_pixels() -> None:
    """Set the limit of pixels for the whole process: no code decodes a larger picture."""
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def as_uri(image: Image.Image) -> str:
    """Return a picture as a data URI, for a sample."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")


MOST_BODY = 2 * 2**20
"""Bytes of a request that uploads nothing."""
MOST_KEPT = 256 * 2**20
"""Bytes of uploads on disk at once."""
MOST_AT_ONCE = MOST_BYTES + 64 * 2**10
"""Bytes of a request with an upload: one file of the largest size, and its envelope."""
_REMOTE = re.compile(r"/(?:proxy|file)=\s*(?:[a-z][a-z0-9+.-]*:)?//|/proxy=|/deep_link|/mcp", re.IGNORECASE)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; font-src 'self' data:; "
    "style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; connect-src 'self' data:; "
    "frame-ancestors 'self'; form-action 'self'; base-uri 'self'; object-src 'none'"
)
HEADERS = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}


@dataclass
class SecurityMiddleware:
    """A middleware that rejects unsafe requests and adds security headers to all responses."""

    app: ASGIApp
    uploads: Path
    host: str  # the address that the server listens on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = MOST_AT_ONCE if _is_upload(scope) else MOST_BODY
        if (error := self._error(scope, most)) is not None:
            status, text = error
            await PlainTextResponse(text, status, HEADERS)(scope, receive, send)
            return
        await self.app(scope, _limited(receive, most), _with_headers(send))

    def _error(self, scope: Scope, most: int) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        name = headers.get("host", "").rpartition("@")[2]
        name = name.partition("]")[0].lstrip("[") if name.startswith("[") else name.partition(":")[0]
        if self.host in LOOPBACK and name.lower() not in LOOPBACK:  # DNS rebinding: another name for this address
            return 421, "this server answers to this machine alone"
        if _REMOTE.search(str(scope.get("path", ""))):
            return 403, "nothing is fetched from elsewhere"
        if _is_upload(scope) and _size(self.uploads) > MOST_KEPT:
            return 507, "too many files were uploaded: wait some minutes"
        length = headers.get("content-length", "")
        return (413, f"at most {most} bytes") if length.isdigit() and int(length) > most else None


def _is_upload(scope: Scope) -> bool:
    return str(scope.get("path", "")).rstrip("/").endswith("/upload")


def _limited(receive: Receive, most: int) -> Receive:
    """Return `receive` that disconnects after `most` bytes: a body need not state its length."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= most else {"type": "http.disconnect"}

    return limited


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.append(name, value)
        await send(message)

    return sent


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
