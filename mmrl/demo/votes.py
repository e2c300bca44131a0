"""Blind votes on two anonymous answers, kept as preference pairs that `mmrl train` reads.

votes.jsonl             one sample per line, with `chosen` and `rejected`: data for an algorithm that learns from pairs
votes.undecided.jsonl   ties and both-bad votes, without either key, so that no trainer takes them for pairs
votes.media/            the pictures, named by their contents; lines name them relative to their own folder

Only the server knows which checkpoint gave which answer until the user has voted.
"""

from __future__ import annotations

import hashlib
import io
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from PIL import Image

from mmrl.atomic_io import append_durably, replacing
from mmrl.data.jsonl import line_text
from mmrl.data.media.decode import load_image, path_seen_from, with_media_seen_from
from mmrl.data.media.sample_media import is_video, map_media
from mmrl.data.sample import Sample
from mmrl.demo.error_handling import DemoError
from mmrl.errors import DataError

Verdict = Literal["left", "right", "tie", "both_bad"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass
class Ballot:
    """A question to a user: which of two answers is better."""

    sample: Sample  # as in its data set
    seed: int
    names: tuple[str, str]  # of the checkpoints: left, right
    media: tuple[Any, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    voted: bool = False


def pick_pair(columns: list[str], chance: random.Random) -> tuple[str, str]:
    """Return two different columns in a random order.

    Raises:
        DemoError: there are fewer than two.
    """
    if len(set(columns)) < 2:
        raise DemoError("A blind vote needs two checkpoints or more: tick another one.")
    first, second = chance.sample(sorted(set(columns)), 2)
    return first, second


def validate_verdict(verdict: Any) -> Verdict:
    """Return the verdict, validated.

    Raises:
        DemoError: it is none of the four.
    """
    if verdict not in VERDICTS:
        raise DemoError(f"A vote is one of {', '.join(VERDICTS)}.")
    return cast(Verdict, verdict)


class VoteFile:
    """The files of votes: one writer, many users."""

    def __init__(self, path: Path) -> None:
        """Set the file of pairs; its folder is created with the first vote."""
        self.path = path
        self.undecided = path.with_suffix(f".undecided{path.suffix}")
        self._media = path.with_suffix(".media")
        self._lock = threading.Lock()

    def add(self, ballot: Ballot, verdict: Verdict, rater: str) -> bool:
        """Write a vote; return True if it became a preference pair.

        Raises:
            DemoError: the ballot was voted on before, the vote prefers one of two equal answers, or it is about videos,
                from whose pairs no trainer learns.
            DataError: a picture in the prompt cannot be read.
        """
        with self._lock:
            if ballot.voted:
                raise DemoError("This pair has been voted on already: take a new one.")
            left, right = (self._answer(media) for media in ballot.media)
            decided = verdict in ("left", "right")
            if decided and left == right:
                raise DemoError("Both are the same to the last pixel: that is a tie.")
            details = {"seed": ballot.seed, "left": ballot.names[0], "right": ballot.names[1], "verdict": verdict}
            own = self._own_media(ballot.sample)
            sample = replace(
                own,
                id=f"vote-{ballot.id}",
                demonstration=None,
                chosen=(left if verdict == "left" else right) if decided else None,
                rejected=(right if verdict == "left" else left) if decided else None,
                rater=rater,
                metadata={
                    **own.metadata,
                    "vote": details if decided else details | {"answers": [left, right]},
                },
            )
            path = self.path if decided else self.undecided
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                append_durably(path, line_text(sample).encode())
            except (TypeError, ValueError) as err:  # a value that a data set of another format holds
                raise DataError(f"{path.name}: sample {sample.id!r} cannot be written as JSON: {err}") from None
            ballot.voted = True
            return decided

    def count(self) -> tuple[int, int]:
        """Return the numbers of pairs and of undecided votes."""
        return _lines(self.path), _lines(self.undecided)

    def _answer(self, media: Any) -> Any:
        if isinstance(media, str):
            return media
        if isinstance(media, Image.Image):
            return {"image": self._kept(media)}
        raise DemoError("Votes are about pictures and texts; nothing here learns from pairs of videos.")

    def _own_media(self, sample: Sample) -> Sample:
        """Return the sample with copies of its pictures beside the votes, to move with them; videos stay in place."""
        folder = self.path.parent
        return replace(
            with_media_seen_from(sample, folder),
            images=tuple(self._copied(path, sample.id) for path in sample.images),
            conditions=map_media(
                sample.conditions,
                lambda kind, path: (
                    path_seen_from(path, folder) if is_video(kind, path) else self._copied(path, sample.id)
                ),
            ),
        )

    def _copied(self, path: str, sample_id: str) -> str:
        return self._kept(load_image(path, sample_id))

    def _kept(self, image: Image.Image) -> str:
        """Write the pixels of a picture, without metadata; return its path relative to the folder of the votes."""
        buffer = io.BytesIO()
        plain = Image.new("RGB", image.size)
        plain.paste(image.convert("RGB"))
        plain.save(buffer, "PNG")
        content = buffer.getvalue()
        self._media.mkdir(parents=True, exist_ok=True)
        file = self._media / f"{hashlib.sha256(content).hexdigest()[:32]}.png"
        if not file.exists():
            with replacing(file) as draft:
                draft.write_bytes(content)
        return f"{self._media.name}/{file.name}"


class RateLimiter:
    """A limit of events in a window of seconds: `each` per key, `together` over all keys."""

    def __init__(
        self, each: int, together: int, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._each, self._together, self._seconds, self._clock = each, together, seconds, clock
        self._events: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Count an event.

        Raises:
            DemoError: the limit is exceeded.
        """
        with self._lock:
            now = self._clock()
            while self._events and self._events[0][0] <= now - self._seconds:
                self._events.popleft()
            own = sum(each == key for _, each in self._events)
            if own >= self._each or len(self._events) >= self._together:
                raise DemoError("Too many votes in a short time: wait a minute.")
            self._events.append((now, key))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0
