"""A reward that learns does so from the answers of all processes, whole pictures included, and is the same in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmrl.build.config_checks import check_processes
from mmrl.config import load_config
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.training.rollouts.collect import shared_inputs
from mmrl.training.rollouts.exchange import shared_rollouts
from tests.distributed.calls_in_group import call_in_group
from tests.distributed.test_growing_prompts_of_group import drawn
from tests.training.token_policy import questions
from tests.training.token_run import Right, collect, source

TEXTS: list[str] = []
"""The answers that the reward of this process learnt from, in order."""


class Bored(Right):
    """A half less for a text that came in an earlier iteration."""

    learns, scheduled = True, True

    def __init__(self) -> None:
        self.known: list[str] = []

    def score_one(self, item):
        return super().score_one(item) / (1 + (item.text in self.known))

    def learn(self, items):
        TEXTS.extend(f"{item.id} {item.group} {item.text}" for item in items)
        self.known = sorted({*self.known, *(str(item.text) for item in items)})
        return {"known": float(len(self.known))}

    def state_dict(self):
        return {"known": self.known}

    def load_state_dict(self, state):
        self.known = list(state.get("known", []))


class Forgetful(Bored):
    """It learns, and has no state that could be passed on."""

    state_dict = Right.state_dict


class CountsBatches(Right):
    """Its state changes with every batch that it scores."""

    def state_dict(self):
        return {"batches": 1}


def learnt(folder: Path) -> dict[str, Any]:
    """Return what a reward knows after three iterations, and what it learnt from; also two pictures, whole."""
    TEXTS.clear()
    reward = Bored()
    here = source(reward=reward)
    metrics = [collect(here, number).metrics for number in range(3)]
    own = {number: drawn(number) for number in range(2) if processes.size() == 1 or number == processes.rank()}
    pictures = [item.image for item in shared_inputs(shared_rollouts(own, questions()))]
    return {
        "known": reward.known,
        "metrics": [[each["right/known"], each["reward/right"]] for each in metrics],
        "texts": TEXTS,
        "pixels": [[*picture.size, *picture.getpixel((39, 0))] for picture in pictures],
    }


def test_two_processes_learn_what_one_learns(fork_server, tmp_path):
    alone = learnt(tmp_path)
    assert len(alone["texts"]) == 3 * 24 and alone["metrics"][0][0] < alone["metrics"][2][0]
    assert alone["pixels"] == [[40, 30, 10 * number + row, 1, 2] for number in range(2) for row in range(2)]
    first, second = call_in_group(fork_server, tmp_path, 2, f"{__name__}:learnt")
    assert first == alone  # process 0 learns from all
    assert second == {**alone, "texts": []}


@pytest.mark.parametrize(
    ("reward", "message"),
    [(Forgetful, "learns and has no state_dict"), (CountsBatches, "keeps a state between batches")],
)
def test_rewards_that_processes_would_know_differently_are_refused(reward, message):
    config = load_config("shapes-reasoning", [f"rewards=[{{name: '{__file__}:{reward.__name__}'}}]"])
    with pytest.raises(ConfigError, match=rf"rewards.0.name: .*{message}.*train with one process"):
        check_processes(config, 2)
    known = load_config("shapes-reasoning", [f"rewards=[{{name: '{__file__}:Bored'}}]"])
    check_processes(known, 2)
