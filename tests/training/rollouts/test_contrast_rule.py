"""The reward for an aid is plus where it helps with a prompt, and minus where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.data.prompts import PromptSampler
from mmrl.errors import DataError
from mmrl.policy import Capability
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.contrast_rule import AidContrast
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source

HELPED = ("s0", "s1", "s2", "s3")
"""The samples that are answered rightly with the aid alone; the others are with and without."""
RULE = AidContrast(used="AID", with_prefix="AID {kind} ", without_prefix="no ", forced=2)


class Aided(TokenPolicy):
    """Every second free answer uses the aid."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        rollout = super().rollout(requests, seed)
        media = [
            (("AID " if number % 2 else "no ") if request.start is None else request.start.prefix) + "done"
            for request in requests
            for number in range(request.n)
        ]
        return replace(rollout, media=media, starts=row_starts(requests))


class Solved(Reward):
    """1 for every answer with the aid, and for all answers where it is not needed."""

    name, needs, range = "solved", ("text",), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        return float("AID" in str(item.text) or item.references["helped"] is False)


def started(rule: AidContrast, **changes: Any):
    samples = [replace(each, metadata={"kind": "line", "helped": each.id in HELPED}) for each in questions()]
    suite = RewardSuite([(Solved(), 1.0)], min_valid_share=0.5)
    prompts = PromptSampler(samples, 8, seed=0)
    return source(Aided(), **{"suite": suite, "starts": rule, "prompts": prompts, "group_size": 8, **changes})


def test_the_bonus_is_conditional_on_the_prompt():
    found = collect(started(RULE))
    for batch in found.micro_batches:
        rows = zip(batch.rollout.samples, batch.rollout.media, batch.advantages.tolist(), strict=True)
        starts = batch.rollout.starts or [None] * batch.rollout.rows
        for start, (sample, text, advantage) in zip(starts, rows, strict=True):
            if start is None:
                assert (advantage > 0) == (("AID" in text) == (sample.id in HELPED))
            else:
                assert advantage == 0  # both sub-groups are compared in themselves, and their answers are alike
    metrics = found.metrics
    assert metrics["aid/useful"] == 0.5 and metrics["aid/use"] == 0.5
    assert metrics["reward/aid"] == 0  # plus a half for two of four answers of one half, minus a half in the other
    assert metrics["starts/rows"] == 64 and metrics["starts/trained_rows"] == 64


def test_without_a_condition_every_use_is_rewarded():
    found = collect(started(replace(RULE, when="always")))
    assert found.metrics["reward/aid"] == 0.25 and found.metrics["aid/useful"] == 1
    advantages = torch.cat([batch.advantages for batch in found.micro_batches])
    texts = [text for batch in found.micro_batches for text in batch.rollout.media]
    assert all((advantage > 0) == ("AID" in text) for advantage, text in zip(advantages.tolist(), texts, strict=True))


def test_rows_start_as_the_templates_say():
    requests = [RolloutRequest(replace(questions()[0], metadata={"kind": "line"}), 8, 0)]
    free, with_aid, without = replace(RULE, without_prompt="{prompt}, plainly").first(requests, None)
    assert (free.n, free.start) == (4, None)
    assert (with_aid.n, with_aid.start.prefix, with_aid.start.prompt) == (2, "AID line ", None)
    assert (without.n, without.start.prefix, without.start.prompt) == (2, "no ", "question 0, plainly")


def test_what_cannot_work_is_named():
    with pytest.raises(ValueError, match="no regular expression"):
        AidContrast(used="(", with_prefix="a")
    with pytest.raises(ValueError, match="different prompts or prefixes"):
        AidContrast(used="a")
    with pytest.raises(ValueError, match="must be above 2"):
        collect(started(replace(RULE, forced=4)))
    with pytest.raises(DataError, match=r"names \{nothing\}"):
        collect(started(replace(RULE, with_prefix="{nothing}")))
