"""Scores on disk, so that what was scored once is not scored again."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.rewards.core.base import Reward, RewardError, RewardInput
from mmrl.rewards.core.hashing import Unhashable, digest_of
from mmrl.rewards.core.spec import Scope

_log = logging.getLogger(__name__)


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
            self._file = sqlite3.connect(self.path, timeout=30, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, row TEXT) WITHOUT ROWID")
        except sqlite3.Error as err:
            raise RewardError(f"{self.path} cannot be used as a cache of scores: {err}; delete it") from err
        self.hits = self.misses = 0

    def get(self, keys: Sequence[bytes]) -> list[dict[str, Any] | None]:
        """The row of each key, or None; all None, and a warning, where the file cannot be read."""
        select = "SELECT row FROM scores WHERE key = ?"
        try:
            with self._lock:
                found = [self._file.execute(select, (key,)).fetchone() for key in keys]
        except sqlite3.Error as err:
            _log.warning("the cache %s cannot be read, so everything is scored: %s", self.path, err)
            found = [None] * len(keys)
        rows = [json.loads(row[0]) if row else None for row in found]
        self.hits += sum(row is not None for row in rows)
        self.misses += sum(row is None for row in rows)
        return rows

    def put(self, rows: Mapping[bytes, Mapping[str, Any]]) -> None:
        """Keep rows; those that are no JSON, and all of them where the file cannot be written, are not kept."""
        texts = [(key, text) for key, row in rows.items() if (text := _as_json(row)) is not None]
        try:
            with self._lock, self._file:
                self._file.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", texts)
        except sqlite3.Error as err:
            _log.warning("the cache %s cannot be written, so scores are not kept: %s", self.path, err)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cacheable(reward: Reward) -> bool:
    """Whether a score depends on nothing but the reward and the answer."""
    return reward.scope is Scope.SAMPLE and not reward.scheduled and not reward.state_dict()


def score_key(fingerprint: str, item: RewardInput) -> bytes | None:
    """What a score is kept under; id and group are no part of it. None: such an answer cannot be told from others."""
    seen = (item.prompt, item.text, item.image, item.video, item.references, item.metadata)
    try:
        return digest_of(fingerprint, *seen)
    except Unhashable:
        return None


def _as_json(row: Mapping[str, Any]) -> str | None:
    try:
        return json.dumps(row)
    except (TypeError, ValueError):  # details of any kind may stand in it
        return None
