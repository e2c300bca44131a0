"""The groups of a rollout, dealt to servers: each is answered exactly once, also where a server ends meanwhile."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class GroupBoard(Generic[T]):
    """Groups numbered from 0, each of which waits, is with one server, or is answered.

    board = GroupBoard(count=3)
    group = board.take("http://127.0.0.1:8000")
    board.finish(group, answers)
    """

    def __init__(self, count: int) -> None:
        self._waiting = deque(range(count))
        self._with: dict[int, str] = {}  # the server that has a group
        self._answers: dict[int, T] = {}
        self._failed: dict[int, list[str]] = {group: [] for group in range(count)}  # servers, once for each failure
        self._count = count
        self.dealt_again = 0
        """Groups that were with a server that was lost."""

    @property
    def complete(self) -> bool:
        """True if every group is answered."""
        return len(self._answers) == self._count

    def take(self, server: str, alone: bool = True) -> int | None:
        """Give a waiting group to a server; None if there is none for it.

        A group that failed at this server goes to another one, unless it is `alone`.
        """
        for place, group in enumerate(self._waiting):
            if alone or server not in self._failed[group]:
                del self._waiting[place]
                self._with[group] = server
                return group
        return None

    def finish(self, group: int, answers: T) -> None:
        """Keep the answers to a group that a server has.

        Raises:
            ValueError: no server has this group: it is answered already, or was dealt again.
        """
        if self._with.pop(group, None) is None:
            raise ValueError(f"group {group} is with no server: its answers came twice")
        self._answers[group] = answers

    def give_back(self, group: int) -> int:
        """Let a group wait again after a request that failed; return how often it has failed."""
        self._failed[group].append(self._with.pop(group))
        self._waiting.append(group)
        return len(self._failed[group])

    def lose(self, server: str) -> int:
        """Let all groups of a lost server wait again, before the others; return their number."""
        lost = sorted(group for group, holder in self._with.items() if holder == server)
        for group in reversed(lost):
            del self._with[group]
            self._waiting.appendleft(group)
        self.dealt_again += len(lost)
        return len(lost)

    def answers(self) -> list[T]:
        """Return the answers of all groups, in order."""
        return [self._answers[group] for group in range(self._count)]
