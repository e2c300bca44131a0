"""The mean cosine of hidden states, within a question and with what stands before it."""

from __future__ import annotations

import math

import pytest
import torch

from mmrl.checks import ShapeError
from mmrl.workflows.prompt_angles import angle_concentration


def at(*degrees: float) -> torch.Tensor:
    """Return vectors of the plane in these directions, of lengths 1, 2, 3 and so on."""
    return torch.tensor(
        [[n * math.cos(math.radians(each)), n * math.sin(math.radians(each))] for n, each in enumerate(degrees, 1)]
    )


def marks(count: int, *places: int) -> torch.Tensor:
    return torch.tensor([place in places for place in range(count)])


def test_angles_by_hand():
    """Two tokens at 0 and 60 degrees have the cosine 0.5; with one at 90 before them 0 and cos 30, on average 0.433."""
    within, between = angle_concentration(at(90, 0, 60), marks(3, 1, 2), marks(3, 0))
    assert float(within) == pytest.approx(0.5, abs=1e-7)
    assert float(between) == pytest.approx(math.sqrt(3) / 4, abs=1e-7)


def test_three_directions_by_hand():
    """Pairs at 120, 120 and 120 degrees: every cosine is -0.5, and the resultant is 0."""
    within, between = angle_concentration(at(0, 120, 240), marks(3, 0, 1, 2), marks(3))
    assert float(within) == pytest.approx(-0.5, abs=1e-6)
    assert float(between) == 0.0


def test_all_pairs_agree_with_a_loop():
    torch.manual_seed(0)
    states, question, context = torch.randn(9, 5), marks(9, 4, 5, 7, 8), marks(9, 0, 1, 2, 3)
    cosine = torch.nn.functional.cosine_similarity(states[:, None].double(), states[None].double(), dim=-1)
    pairs = [(i, j) for i in range(9) for j in range(9) if question[i] and question[j] and i != j]
    across = [(i, j) for i in range(9) for j in range(9) if question[i] and context[j]]
    within, between = angle_concentration(states, question, context)
    assert float(within) == pytest.approx(sum(float(cosine[pair]) for pair in pairs) / len(pairs), abs=1e-12)
    assert float(between) == pytest.approx(sum(float(cosine[pair]) for pair in across) / len(across), abs=1e-12)


def test_lengths_and_rotations_do_not_matter_and_directions_do():
    torch.manual_seed(1)
    states, question, context = torch.randn(6, 4), marks(6, 3, 4, 5), marks(6, 0, 1, 2)
    rotation = torch.linalg.qr(torch.randn(4, 4)).Q
    expected = angle_concentration(states, question, context)
    found = angle_concentration(states * torch.rand(6, 1).add(0.1) @ rotation, question, context)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    turned = states.clone()
    turned[3] = -turned[3]
    assert not torch.allclose(angle_concentration(turned, question, context)[1], expected[1])


def test_one_token_is_concentrated_and_none_is_an_error():
    within, _ = angle_concentration(at(10, 50), marks(2, 1), marks(2, 0))
    assert float(within) == 1.0
    with pytest.raises(ValueError, match="no tokens"):
        angle_concentration(at(10, 50), marks(2), marks(2, 0))
    with pytest.raises(ShapeError, match="question"):
        angle_concentration(at(10, 50), marks(3, 1), marks(2, 0))
