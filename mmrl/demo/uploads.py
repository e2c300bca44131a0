"""Pictures that visitors send: looked at before they are decoded, and refused in plain words."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from mmrl.data.media.uris import data_uri
from mmrl.demo.error_handling import DemoError

MOST_BYTES = 8 * 2**20  # of one file
MOST_PIXELS = 4096 * 4096
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


@dataclass(frozen=True)
class Uploads:
    """The one folder that uploads may lie in."""

    folder: Path

    def picture(self, sent: Any) -> Image.Image:
        """An uploaded file as an RGB picture, upright.

        `sent` is a path as the browser names it; a program may name any other.

        Raises:
            DemoError: it is no upload, too large, or no picture.
        """
        if not isinstance(sent, str) or not sent:
            raise DemoError("Upload a picture first.")
        try:
            path = Path(sent).resolve(strict=True)  # past all links
        except (OSError, ValueError, RuntimeError):
            raise DemoError("That is no uploaded file.") from None
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
            raise DemoError("That is no uploaded file.")
        if (size := path.stat().st_size) > MOST_BYTES:
            raise DemoError(f"The file has {size / 2**20:.1f} MiB; at most {MOST_BYTES // 2**20}.")
        return decoded(path.read_bytes())


def decoded(content: bytes) -> Image.Image:
    """The bytes of a picture's file as an RGB picture, upright.

    Raises:
        DemoError: they are none, are damaged, or have more pixels than may be decoded.
    """
    try:
        with bombs_refused(), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise DemoError(f"The picture has {image.width} x {image.height} pixels; at most 4096 x 4096.")
            return ImageOps.exif_transpose(image).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DemoError("The picture has more than 4096 x 4096 pixels.") from None
    except (OSError, SyntaxError, ValueError) as err:
        if isinstance(err, DemoError):
            raise
        raise DemoError(f"That file is no picture ({', '.join(FORMATS)}), or it is damaged.") from None


@contextmanager
def bombs_refused() -> Iterator[None]:
    """While open, warnings of too many pixels are errors. `limit_pixels` sets how many that is, for all of Pillow."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def limit_pixels() -> None:
    """For the whole process: no picture with more pixels is decoded, whoever opens it."""
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def as_uri(image: Image.Image) -> str:
    """A picture as a sample names it that is in no file."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")
