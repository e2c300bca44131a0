"""Half of a group answers the prompt in other words, and the votes of each half label the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.config.starts import StartsConfig
from mmrl.data.prompts import PromptSampler
from mmrl.errors import ConfigError, DataError
from mmrl.policy import Capability
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.rules.majority import Majority
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.rephrasing_rule import Rephrasing
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source

PLAIN, REPHRASED = "5554", "4445"
"""The endings of the answers to each prompt, and to the same in other words."""


class TwoWays(TokenPolicy):
    """Says 5 to each prompt, and 4 to it in other words, each with one exception."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        rollout = super().rollout(requests, seed)
        media = [digit for each in requests for digit in (PLAIN if each.start is None else REPHRASED)]
        return replace(rollout, media=media, starts=row_starts(requests))


def started(voters: str = "others", **changes: Any):
    samples = [replace(each, metadata={"rephrased": f"{each.prompt}, in other words"}) for each in questions()]
    settings = {
        "suite": RewardSuite([(Majority(voters, marker=""), 1.0)], min_valid_share=0.5),
        "starts": Rephrasing(),
        "prompts": PromptSampler(samples, 4, seed=0),
        "group_size": 8,
        "micro_batch": 16,
    }
    return source(TwoWays(), **{**settings, **changes})


def advantages(found) -> torch.Tensor:
    return torch.cat([batch.advantages for batch in found.micro_batches]).view(-1, 2, 4)


def test_a_half_of_each_group_reads_the_other_words():
    requests = [RolloutRequest(replace(questions()[0], metadata={"rephrased": "other words"}), 8, 3)]
    plain, rephrased = Rephrasing().first(requests, None)
    assert (plain.n, plain.start, plain.group) == (4, None, 3)
    assert (rephrased.n, rephrased.group, rephrased.start.prompt) == (4, 3, "other words")
    assert Rephrasing("{prompt} Or: {rephrased}").first(requests, None)[1].start.prompt == "question 0 Or: other words"


def test_each_half_is_labelled_by_the_other_and_compared_in_itself():
    """The one reward of four that is 1 stands (1 - 1/4) / sqrt(3/16) above its half, the others 1/4 over that below."""
    found = collect(started())
    spread = (3 / 16) ** 0.5
    expected = torch.tensor([-0.25, -0.25, -0.25, 0.75]) / spread
    torch.testing.assert_close(advantages(found), expected.expand(4, 2, 4), atol=1e-3, rtol=0)
    assert found.metrics["reward/majority"] == 0.25  # of the rows that read the sample's own prompt
    assert found.metrics["starts/reward/rephrased"] == 0.25 and found.metrics["starts/share/rephrased"] == 0.5


def test_own_votes_confirm_what_each_half_says_already():
    """The control: with the same answers every advantage has the other sign."""
    crossed, own = advantages(collect(started())), advantages(collect(started("own")))
    torch.testing.assert_close(own, -crossed, atol=1e-3, rtol=0)


def test_calls_that_cut_a_group_change_nothing():
    whole, cut = collect(started()), collect(started(micro_batch=4))
    torch.testing.assert_close(advantages(whole), advantages(cut))


def test_what_cannot_work_is_named():
    with pytest.raises(ValueError, match=r"data\.group_size is 7; expected an even number"):
        collect(started(group_size=7, micro_batch=7))
    with pytest.raises(DataError, match=r"names \{rephrased\}"):
        collect(started(prompts=PromptSampler(questions(), 4, seed=0)))
    with pytest.raises(ConfigError, match="expected other words than the sample's"):
        StartsConfig(name="rephrasing", args={"prompt": "{prompt}"}).rule()
    assert StartsConfig(name="rephrasing").rule() == Rephrasing()
