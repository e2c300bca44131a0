"""The margin of a prompt over the other texts of its context."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardError, Status, load
from mmrl.rewards.models.anchor_margin import chosen_margin
from tests.rewards.models.tiny_models import answer


def margin(odds, chosen, context=None):
    logits = torch.tensor([odds]).log()
    mask = torch.tensor([context or [True] * len(odds)])
    return chosen_margin(logits, torch.tensor([chosen]), mask).item()


def test_margins_by_hand():
    assert margin([1.0, 1.0, 10.0], 2) == pytest.approx(9 / 12)
    assert margin([1.0, 1.0, 10.0], 0) == pytest.approx(-9 / 12)
    assert margin([1.0, 1.0, 10.0], 0, [True, True, False]) == pytest.approx(0)  # the third is of another context
    assert margin([3.0, 1.0], 0, [False, True]) == pytest.approx(0.5)  # the chosen one counts in any case


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=6), st.floats(-5, 5), st.data())
def test_what_raises_all_texts_alike_does_not_matter(logits, shift, data):
    chosen = data.draw(st.integers(0, len(logits) - 1))
    rows = torch.tensor([logits, [each + shift for each in logits]], dtype=torch.float64)
    one, other = chosen_margin(rows, torch.tensor([chosen] * 2), torch.ones(2, len(logits), dtype=torch.bool)).tolist()
    assert math.isclose(one, other, abs_tol=1e-9) and -1 <= one <= 1
    best = logits[chosen] > max(each for n, each in enumerate(logits) if n != chosen)
    assert (one > 0) == best or math.isclose(one, 0, abs_tol=1e-6)


def test_each_sample_has_its_context(clip):
    reward, fixed = load("anchor_margin", model=clip), load("anchor_margin", model=clip, anchors=["two red", "a photo"])
    one = answer(0, references={"anchors": ["two red", "a photo"]})
    other = answer(1, references={"anchors": ["blue square"]})
    together = reward.score([one, other]).values["anchor_margin"]
    np.testing.assert_allclose(together[:1], fixed.score([one]).values["anchor_margin"], atol=1e-6)
    np.testing.assert_allclose(together[1:], reward.score([other]).values["anchor_margin"], atol=1e-6)


@pytest.mark.parametrize(
    ("references", "kind"),
    [({}, "missing"), ({"anchors": "a"}, "reference"), ({"anchors": [3]}, "reference"), ({"anchors": []}, "reference")],
)
def test_samples_without_a_context_are_not_scored(clip, references, kind):
    output = load("anchor_margin", model=clip).score([answer(0, references=references)])
    assert output.status["anchor_margin"] == [Status.ERROR]
    assert output.failures[0]["anchor_margin"].kind == kind


def test_a_context_of_the_prompt_alone_is_none(clip):
    output = load("anchor_margin", model=clip).score([answer(0, prompt="red", references={"anchors": ["red"]})])
    assert output.failures[0]["anchor_margin"].kind == "missing"


def test_wrong_anchors_are_refused_before_loading():
    with pytest.raises(RewardError, match=r"anchors is .*it must be a list of 1 to 1000 texts"):
        load("anchor_margin", anchors=["a", ""])


def test_gradients_lead_to_a_larger_margin(clip):
    items = [answer(seed, prompt="two red") for seed in range(4)]
    reward = load("anchor_margin", model=clip, anchors=["a photo", "blue square"])
    images = torch.rand(4, 3, 48, 48, generator=torch.Generator().manual_seed(0)).requires_grad_()
    before = reward.score_tensor(images, items)
    before.sum().backward()
    assert before.shape == (4,) and (images.grad.flatten(1).norm(dim=1) > 0).any()
    after = reward.score_tensor((images + 1e-3 * images.grad.sign()).clamp(0, 1), items)
    assert after.sum() > before.sum()
