"""A cache of scores on disk."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.rewards.core.hashing import Unhashable, digest_of
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.spec import Scope

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
    return reward.scope is Scope.SAMPLE and not reward.scheduled and not reward.state_dict()


def score_key(fingerprint: str, item: RewardInput) -> bytes | None:
    """Return the cache key of an answer, which leaves out id and group; None if the answer cannot be hashed."""
    content = (item.prompt, item.text, item.image, item.video, item.references, item.metadata)
    try:
        return digest_of(fingerprint, *content)
    except Unhashable:
        return None


def _as_json(row: Mapping[str, Any]) -> str | None:
    try:
        return json.dumps(row)
    except (TypeError, ValueError):  # details may contain any object
        return None
