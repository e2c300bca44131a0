"""Pairs with two raters, and sums that reward models of tokens steer."""

from __future__ import annotations

import pytest

from mmrl.training.rollouts.offline import chosen_on
from mmrl_shapeworld.reasoning import trade_pairs
from mmrl_shapeworld.reasoning.steered_runs import steered_answers

TINY = {"on": "development", "iterations": 1, "prompts": 32}


@pytest.mark.integration
def test_one_answer_of_a_pair_is_right_and_one_shorter():
    shorter = []
    for name in trade_pairs.NAMES:
        found = trade_pairs.samples(name)
        assert len(found) == trade_pairs.SIZES[name.removeprefix("trade-pairs-")]
        for sample in found:
            chosen, rejected = (text.rpartition("</think>")[2] for text in (sample.chosen, sample.rejected))
            assert chosen == sample.answer != rejected and len(sample.chosen) != len(sample.rejected)
            assert chosen_on(sample, "right")
            assert chosen_on(sample, "brief") == (len(sample.chosen) < len(sample.rejected))
        shorter.append(sum(chosen_on(sample, "brief") for sample in found) / len(found))
    assert all(0.25 < share < 0.45 for share in shorter)  # the raters disagree about most pairs
    with pytest.raises(KeyError, match="choose one of trade-pairs-train"):
        trade_pairs.samples("trade-pairs-none")


@pytest.mark.slow
def test_weights_of_reward_models_change_answers():
    base = steered_answers(0, **TINY)
    assert len(base["right"]) == len(base["tokens"]) == 32
    guided = steered_answers(0, right=1.0, **TINY)
    assert guided == steered_answers(0, right=1.0, **TINY)
    both = steered_answers(0, right=1.0, brief=1.0, **TINY)
    assert len({tuple(each["tokens"]) for each in (base, guided, both)}) == 3
    assert steered_answers(0, policy="dpo", **TINY)["tokens"] != guided["tokens"]
