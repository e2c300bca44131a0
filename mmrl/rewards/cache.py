"""Scores on disk, so that what was scored once is not scored again."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.rewards.base import InvalidAnswer, Reward, RewardError, RewardInput, ScoringFailed
from mmrl.rewards.images.safety import answer_picture
from mmrl.rewards.spec import Scope


class ScoreCache:
    """A SQLite file of {key: row}, for any number of threads and processes.

    A key is made of the reward (name, version, arguments, weights) and of what it saw (picture or video by its pixels,
    text, prompt, references). Failures are never kept. Rewards that compare answers or follow the progress of training
    are not cached: their scores depend on more than the answer.
    """

    def __init__(self, path: Path | str) -> None:
        """
        Raises:
            RewardError: the file cannot be opened, or is something else.
        """
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._file = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, row TEXT) WITHOUT ROWID")
        except sqlite3.Error as why:
            raise RewardError(f"{self.path} cannot be used as a cache of scores: {why}; delete it") from why
        self.hits = self.misses = 0

    def get(self, keys: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """The row of each key, or None."""
        with self._lock:
            found = [self._file.execute("SELECT row FROM scores WHERE key = ?", (key,)).fetchone() for key in keys]
        rows = [json.loads(row[0]) if row else None for row in found]
        self.hits += sum(row is not None for row in rows)
        self.misses += sum(row is None for row in rows)
        return rows

    def put(self, rows: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Keep rows of JSON-like data."""
        with self._lock:
            self._file.execute("BEGIN")
            self._file.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?)", [(key, json.dumps(row)) for key, row in rows.items()]
            )
            self._file.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cacheable(reward: Reward) -> bool:
    """Whether a score depends on nothing but the reward and the answer."""
    return reward.scope is Scope.SAMPLE and not reward.scheduled and not reward.state_dict()


def score_key(fingerprint: str, answer: bytes) -> bytes:
    """What a score is kept under."""
    return hashlib.sha256(fingerprint.encode() + answer).digest()


def digest(item: RewardInput) -> bytes | None:
    """What identifies an answer and all that is known about it, apart from its id and group.

    None for one with a picture that must not or cannot be decoded: its score is for the rewards to say.
    """
    seen = hashlib.sha256()
    try:
        for part in (item.prompt, item.text, item.image, item.video, item.references, item.metadata):
            _feed(seen, part)
    except (InvalidAnswer, ScoringFailed):
        return None
    return seen.digest()


def _feed(seen: Any, value: Any) -> None:
    """Add a value to a hash: its type first, so that 1, "1" and [1] differ."""
    seen.update(f"<{type(value).__name__}>".encode())
    if isinstance(value, Image.Image):
        picture = answer_picture(value)
        seen.update(f"{picture.mode}{picture.size}".encode())
        seen.update(picture.tobytes())
    elif isinstance(value, np.ndarray):
        seen.update(f"{value.dtype}{value.shape}".encode())
        seen.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            _feed(seen, key)
            _feed(seen, value[key])
    elif isinstance(value, list | tuple):
        seen.update(str(len(value)).encode())
        for each in value:
            _feed(seen, each)
    else:
        seen.update(f"{value!r}{_stamp(value)};".encode())


def _stamp(value: Any) -> str:
    """Size and time of the file that a text names, so that another file under the same name is another reference."""
    if not isinstance(value, str | Path) or len(str(value)) > 1024 or "\0" in str(value):
        return ""
    path = Path(value)
    try:
        if not path.is_file():
            return ""
        facts = path.stat()
    except OSError:
        return ""
    return f"{facts.st_size}:{facts.st_mtime_ns}"
