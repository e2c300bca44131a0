"""Rewards for the tests of the service, and a process that serves them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mmrl.rewards import Reward, RewardInput
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from tests.training.fork_server import Child, own_fork_server


class TextLength(Reward):
    """The length of a text; "bad" is malformed, "broken" breaks the scorer, and "slow 0.3" takes 0.3 seconds.

    "until FILE" waits for a file, a minute at most.
    """

    name, needs, range = "text_length", ("text",), (0.0, 100.0)

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """Return the length, and a third of it under another name."""
        text = item.text or ""
        if text == "bad":
            raise InvalidAnswer("the text is bad")
        if text == "broken":
            raise ScoringFailed("the scorer broke", "broke")
        if text.startswith("slow "):
            time.sleep(float(text[5:]))
        if text.startswith("until "):
            deadline = time.monotonic() + 60
            while not Path(text[6:]).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        return {"text_length": float(len(text)), "third": len(text) / 3}


class Remembers(TextLength):
    """A reward with a state, which no service takes."""

    def state_dict(self) -> dict[str, int]:
        """Return the state."""
        return {"seen": 1}


@contextmanager
def served(*arguments: str, reward: str = f"{Path(__file__)}:TextLength", port: int = 0) -> Iterator[tuple[Child, str]]:
    """Start `mmrl rewards serve`, with the reward of this file if no other is given; the process and its URL."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("rewards", "serve", reward, "--port", port, *arguments)
        process = own_fork_server().start(Path(folder) / "service", *words, environment=dict(os.environ))
        try:
            yield process, process.await_match(r"(http://\S+)\n")
        finally:
            if process.code is None:
                process.send(signal.SIGKILL)
                process.wait()


def text_input(text: str, row: int = 0) -> RewardInput:
    """Return an answer that is a text."""
    return RewardInput(id=f"a-{row}", group=0, prompt="write", text=text)
