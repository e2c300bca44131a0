"""The prompts of the experiment on their order: a stated share is too long, and none comes twice."""

from __future__ import annotations

import re

import pytest

from mmrl_shapeworld.reasoning.angled_prompts import PROMPTS, partly_too_long, prompt_gradients


@pytest.mark.parametrize("share", [0.0, 0.5, 0.7])
def test_a_stated_share_of_the_prompts_is_too_long(share):
    samples = partly_too_long(share)
    operands = [len(re.findall("[0-9]+", sample.prompt)) for sample in samples]
    assert set(operands) <= {*range(2, 7), *range(14, 21)}
    assert sum(count > 6 for count in operands) / len(samples) == pytest.approx(share, abs=0.003)
    assert len({sample.id for sample in samples}) == len(samples) <= PROMPTS


@pytest.mark.slow
def test_prompts_without_a_right_answer_have_no_gradient():
    """Groups of equal rewards have advantages of 0; some of these long prompts are guessed, and most are not."""
    norms, angles = prompt_gradients(3, 0.5, count=12)
    assert norms.shape == angles.shape == (12,)
    assert (norms >= 0).all() and 0 < (norms > 0).sum() < 12
