"""A cache of scores on disk, and the SHA-256 of values that its keys are."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, Scope

if TYPE_CHECKING:
    from mmrl.rewards.core.reward import Reward


class Unhashable(ValueError):
    """A value whose contents cannot be hashed: an object of an unknown type, or an image that must not be decoded."""


def digest_of(*values: Any) -> bytes:
    """Return the SHA-256 of numbers, texts, images, arrays, tensors, paths, and of lists and mappings of them.

    Raises:
        Unhashable: a value is of another type, or an image is too large to decode.
    """
    digest = hashlib.sha256()
    try:
        _feed(digest, values)
    except RecursionError:
        raise Unhashable("a value contains itself, or is nested too deep") from None
    return digest.digest()


def digest_of_source(thing: Any) -> str:
    """Return the SHA-256 of the file that defines a class or function.

    Raises:
        Unhashable: no file defines it, as in a notebook.
    """
    try:
        return hashlib.sha256(Path(inspect.getfile(thing)).read_bytes()).hexdigest()
    except (OSError, TypeError) as err:
        raise Unhashable(f"the source of {thing.__qualname__} is in no file") from err


def _feed(digest: Any, value: Any) -> None:
    """Add a value to a hash: its type and size first, so that 1, "1" and [1] differ."""
    digest.update(f"<{type(value).__name__}>".encode())
    if value is None or isinstance(value, bool | int | float | complex | bytes):
        digest.update(f"{value!r};".encode())
    elif isinstance(value, str | Path):
        text = str(value)
        digest.update(f"{len(text)}:".encode() + text.encode("utf-8", "surrogatepass") + _file_stamp(text).encode())
    elif isinstance(value, Mapping):
        digest.update(f"{len(value)}:".encode())
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            _feed(digest, key)
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)}:".encode())
        for each in value:
            _feed(digest, each)
    elif isinstance(value, Image.Image):
        _feed_image(digest, value)
    else:
        array = _as_array(value)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())


def _feed_image(digest: Any, image: Image.Image) -> None:
    """Add an image as RGB and as stored: palette and transparency may matter to a user's reward."""
    try:
        rgb = answer_image(image)
    except (InvalidAnswer, ScoringFailed) as err:
        raise Unhashable(str(err)) from err
    palette = image.getpalette() if image.mode in ("P", "PA") else None
    _feed(digest, [image.mode, image.size, palette, str(image.info.get("transparency"))])
    digest.update(image.tobytes())
    digest.update(rgb.tobytes())


def _as_array(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the numpy array of numbers of an array, a numpy scalar or a tensor."""
    if type(value).__module__ == "torch":
        try:
            return np.asarray(value.detach().cpu().numpy())
        except (TypeError, RuntimeError, AttributeError) as err:  # bfloat16, sparse, no tensor
            raise Unhashable(f"a {type(value).__name__} of torch: {err}") from err
    if isinstance(value, np.ndarray | np.generic) and np.asarray(value).dtype.kind in "biufcUS":
        return np.asarray(value)
    raise Unhashable(f"a {type(value).__name__} cannot be hashed by its contents")


def _file_stamp(text: str) -> str:
    """Return size and time of the file that a text names, so that another file under the same name is another value."""
    if not text or len(text) > 1024 or "\0" in text or "\n" in text:
        return ""
    try:
        stat = Path(text).stat()
    except (OSError, ValueError):
        return ""
    return f"{stat.st_size}:{stat.st_mtime_ns}"


_log = logging.getLogger(__name__)


class ScoreCache:
    """A SQLite file of {key: row} that any number of threads and processes can share.

    A key is the hash of the reward (name, version, arguments, weights) and of its input (image or video by its pixels,
    text, prompt, references). Failures are never stored. Rewards that compare answers or depend on the progress of
    training are not cached: their scores depend on more than the answer.
    """

    def __init__(self, path: Path | str) -> None:
        """
        Raises:
            RewardError: the file cannot be opened, or is not a SQLite file.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._file = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, row TEXT) WITHOUT ROWID")
        except sqlite3.Error as err:
            raise RewardError(f"{self.path} cannot be used as a cache of scores: {err}; delete it") from err
        self.hits = self.misses = 0

    def get(self, keys: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """Return the row of each key, or None; all None, with a warning, if the file cannot be read."""
        select = "SELECT row FROM scores WHERE key = ?"
        try:
            with self._lock:
                found = [self._file.execute(select, (key,)).fetchone() for key in keys]
        except sqlite3.Error as err:
            _log.warning("the cache %s cannot be read, so all answers are scored: %s", self.path, err)
            found = [None] * len(keys)
        rows = [json.loads(row[0]) if row else None for row in found]
        self.hits += sum(row is not None for row in rows)
        self.misses += sum(row is None for row in rows)
        return rows

    def put(self, rows: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Store rows, except those that are not JSON; none, with a warning, if the file cannot be written."""
        texts = [(key, text) for key, row in rows.items() if (text := _as_json(row)) is not None]
        try:
            with self._lock, self._file:
                self._file.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", texts)
        except sqlite3.Error as err:
            _log.warning("the cache %s cannot be written, so scores are not stored: %s", self.path, err)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cacheable(reward: Reward) -> bool:
    """Return True if a score depends on the reward and the answer alone."""
    alone = reward.scope is Scope.SAMPLE and not reward.scheduled and not reward.models
    return alone and not reward.state_dict()


def score_key(fingerprint: str, item: RewardInput) -> bytes | None:
    """Return the cache key of an answer, which leaves out id and group; None if the answer cannot be hashed."""
    content = (item.prompt, item.text, item.image, item.video, item.references, item.metadata, item.outcome)
    try:
        return digest_of(fingerprint, *content)
    except Unhashable:
        return None


def _as_json(row: Mapping[str, Any]) -> str | None:
    try:
        return json.dumps(row)
    except (TypeError, ValueError):  # details may contain any object
        return None
