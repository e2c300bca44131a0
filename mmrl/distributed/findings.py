"""The knowledge of a process about the others, and the message about the one that ended, froze or hangs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmrl.distributed.member import Member


@dataclass(frozen=True)
class Beat:
    """A sign of life of a process, with its position."""

    number: int = -1
    phase: str = ""
    iteration: int | None = None
    saved: int | None = None
    run: str | None = None
    wait: str | None = None
    """The collective call that it waits in."""
    waited: float = 0.0
    """Seconds in that call."""
    left: bool = False


@dataclass
class Members:
    """The processes of a run as one of them knows them, by rank."""

    rank: int
    members: list[Member]
    silence: float
    lateness: float
    beats: dict[int, Beat] = field(default_factory=dict)
    ages: dict[int, float] = field(default_factory=dict)
    """Seconds since the last beat of each process, counted by this one."""
    ended: set[int] = field(default_factory=set)

    def update(self, beats: Mapping[int, Beat], seconds: float, ended: set[int]) -> None:
        """Take what was read `seconds` after the last time; `ended` are processes that this machine has no more."""
        self.ended |= ended
        for rank, beat in beats.items():
            same = rank in self.beats and self.beats[rank].number == beat.number
            self.ages[rank] = self.ages.get(rank, 0.0) + seconds if same else 0.0
            self.beats[rank] = beat

    def gone(self, ranks: list[int]) -> list[int]:
        """Return those that ended or are silent, and did not say that they leave."""
        return [
            rank
            for rank in ranks
            if not self.beats[rank].left and (rank in self.ended or self.ages[rank] >= self.silence)
        ]

    def is_alone(self, others: list[int]) -> bool:
        """Return True if all others have left, ended or are silent."""
        gone = self.gone(others)
        return all(self.beats[rank].left or rank in gone for rank in others)

    def finding(self, others: list[int]) -> str | None:
        """Return the message about a process that ended, is silent or late; None while all is well."""
        if gone := self.gone(others):
            reason = f"it gave no sign of life for {self.silence:g} s: it is frozen, or its host cannot be reached"
            if gone[0] in self.ended:
                reason = "it was killed, perhaps for lack of memory, or left without a message"
            return self.sentence(gone[0], "stopped", reason + self._more(gone))
        stays = [rank for rank in sorted(self.beats) if not self.beats[rank].left]
        waits = [rank for rank in stays if self.beats[rank].wait is not None]
        if not any(self.beats[rank].waited >= self.lateness for rank in waits):
            return None
        late = [rank for rank in stays if rank not in waits]
        reason = f"the others have waited for it for {self.lateness:g} s"
        if not late:
            calls = ", ".join(f"process {rank} {self.beats[rank].wait}" for rank in waits)
            late, reason = waits[:1], f"all processes wait, and none goes on for {self.lateness:g} s ({calls})"
            return self.sentence(late[0], "hangs", reason)
        return self.sentence(late[0], "hangs", reason + self._more(late))

    def speaker(self, has_zero: bool, here: Member) -> int:
        """Return the process that writes the message when the store is lost: the first that lived, by what is known.

        One on another host than process 0 comes first, because a host may be lost as a whole.
        """
        lives = [
            rank
            for rank, beat in self.beats.items()
            if rank == self.rank
            or (
                (rank or has_zero)
                and not beat.left
                and self.ages[rank] < self.silence
                and not self.members[rank].has_ended(here)
            )
        ] or [self.rank]
        elsewhere = [rank for rank in lives if self.members[rank].host != self.members[0].host]
        return min(elsewhere or lives)

    def sentence(self, rank: int, verb: str, reason: str, phase: str | None = None) -> str:
        """Return the message about one process: its host, where it was, the reason, and how to go on."""
        beat, member = self.beats.get(rank, Beat()), self.members[rank]
        name = beat.phase if phase is None else phase
        places = [f"in phase {name}"] if name else []
        if beat.iteration is not None:
            places.append(f"{'of' if places else 'in'} iteration {beat.iteration}")
        where = " ".join(places) or "before the first iteration"
        return (
            f"process {rank} of {len(self.members)} ({member.host}, pid {member.pid}) {verb} {where}: {reason}; "
            + self._way_on()
        )

    def _way_on(self) -> str:
        saved = max((beat.saved for beat in self.beats.values() if beat.saved is not None), default=None)
        if saved is None:
            return "no checkpoint was written yet"
        run = next((beat.run for beat in self.beats.values() if beat.run is not None), None)
        resume = f"; go on with: mmrl train --resume {run}" if run else ""
        return f"the last checkpoint is of iteration {saved}{resume}"

    def _more(self, ranks: list[int]) -> str:
        if not (more := ranks[1:]):
            return ""
        names = ", ".join(str(rank) for rank in more[:8]) + (" and others" if more[8:] else "")
        return f" (the same holds for process {names})"
