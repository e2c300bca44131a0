"""Finished answers are continued after a word of doubt; right continuations are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmrl.config.starts import StartsConfig
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.online import live_share
from mmrl.training.rollouts.replay_buffer import SelectiveReplay
from mmrl.training.rollouts.rethinking import Rethinking
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Exact, collect, source


class RethinkingPolicy(TokenPolicy):
    """Begins the text of a row with its prefix; a continued answer ends as a plain one would."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}
    continued: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.continued = []

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        plain = super().rollout(requests, seed)
        starts = row_starts(requests)
        if starts is None:
            return plain
        prefixes = [start.prefix for start in starts]
        self.continued += prefixes
        return replace(
            plain, starts=starts, media=[f"{one}{two}" for one, two in zip(prefixes, plain.media, strict=True)]
        )


class Ends(Exact):
    """1 for a text that ends in the answer, after a doubt if there is one."""

    def score_one(self, item) -> float:
        return float(str(item.text).rpartition("?")[2] == item.references["answer"])


@pytest.mark.parametrize("train", [True, False])
def test_a_share_of_answers_is_continued_and_only_right_ones_are_trained_on(train):
    policy = RethinkingPolicy()
    rule = Rethinking(share=0.5, trigger="?", train=train)
    experience = collect(source(policy, Ends(), starts=rule))
    assert len(policy.continued) == 4 * 3 and all(prefix.endswith("?") for prefix in policy.continued)
    right = experience.metrics["starts/reward/rethought"] * 12
    assert experience.metrics["starts/trained_rows"] == pytest.approx(24 + (right if train else 0))
    shares = [experience.metrics.get(f"rethinking/{name}", 0.0) for name in ("corrected", "spoilt")]
    assert all(0 <= share <= 1 for share in shares) and any(shares)
    again = [start for batch in experience.micro_batches for start in batch.rollout.starts or ()]
    assert any(again) == (train and right > 0)


def test_answers_are_kept_up_to_a_mark():
    rule = Rethinking(before="</think>", trigger="wait")
    assert rule._prefix("<think>3+5=8;</think>8") == "<think>3+5=8;wait"
    assert rule._prefix("<think>cut off") is None
    assert Rethinking(trigger=" No.")._prefix("8") == "8 No."


def test_settings_that_cannot_work_are_named():
    assert StartsConfig(name="rethinking", args={"share": 1}).rule() == Rethinking(share=1)
    for args in ({"share": 0}, {"trigger": ""}):
        with pytest.raises(ConfigError, match=r"data\.starts: rethinking: share"):
            StartsConfig(name="rethinking", args=args).rule()


def test_replay_raises_the_share_of_rows_with_a_gradient():
    def share(**changes) -> float:
        policy = TokenPolicy(spread=3.0)
        started = source(policy, **changes)
        return sum(collect(started, iteration).metrics["live_share"] for iteration in range(6)) / 6

    alone, replayed = share(), share(replay=SelectiveReplay(256, 1.0, seed=0))
    assert 0 < alone < replayed <= 1
    batches = collect(source(TokenPolicy(spread=3.0))).micro_batches
    live = sum(int((batch.advantages != 0).sum()) for batch in batches)
    assert live_share(batches, 24) == pytest.approx(live / 24) and torch.isfinite(batches[0].advantages).all()
