"""True and foreign reasonings under a model, and whether an answer follows from its chain."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.chain_agreement import ChainAgreement
from mmrl_shapeworld.reasoning.reasoning_contrast import reference_auc


@pytest.mark.slow
def test_true_reasonings_score_above_foreign_ones():
    found = {weights: reference_auc(5, weights, prompts=48) for weights in ("spread", "uniform")}
    for values in found.values():
        assert [len(each) for each in values.values()] == [48, 48]
        assert all(0 <= value <= 1 for each in values.values() for value in each)
    assert np.mean(found["spread"]["auc"]) > 0.6
    assert reference_auc(5, "spread", prompts=48) == found["spread"]


def test_an_answer_follows_from_the_last_value_of_its_chain():
    def agreement(text: str) -> float:
        return ChainAgreement().score_one(RewardInput("a", 0, "3+5=", text=text))

    texts = ("<think>3+5=8;8*7=6;</think>6", "<think>8 6</think>6", "<think>8 6</think>8", "<think></think>6", "6")
    assert [agreement(text) for text in texts] == [1.0, 1.0, 0.0, 0.0, 0.0]
