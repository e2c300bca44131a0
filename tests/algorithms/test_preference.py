import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical

from mmrl.algorithms import bco_loss, dpo_loss, imitation_loss, ipo_loss, mpo_loss, sequence_log_ratio
from mmrl.checks import DtypeError, ShapeError

WEIGHTS = {"preference": 0.8, "quality": 0.2, "generation": 1.0}


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs():
    return random(5).requires_grad_(), random(5, seed=1).requires_grad_()


# By hand and by a library --------------------------------------------------------------------------------------------


def test_log_ratios_by_hand():
    log_probs, reference = torch.tensor([[-1.0, -2.0, 9.0], [-3.0, 9.0, 9.0]]), torch.tensor([[-1.5, -1.0, 0.0]] * 2)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    assert sequence_log_ratio(log_probs, reference, mask).tolist() == [-0.5, 0]
    assert sequence_log_ratio(log_probs, reference, mask, mean=True).tolist() == [-0.25, 0]


def test_dpo_is_logistic_regression_on_preferences():
    chosen, rejected = (t.detach() for t in pairs())
    won = Bernoulli(logits=0.3 * (chosen - rejected))
    torch.testing.assert_close(dpo_loss(chosen, rejected, 0.3), -won.log_prob(torch.ones(5).double()))
    unsure = -0.9 * won.log_prob(torch.ones(5).double()) - 0.1 * won.log_prob(torch.zeros(5).double())
    torch.testing.assert_close(dpo_loss(chosen, rejected, 0.3, label_smoothing=0.1), unsure)


def test_bco_is_logistic_regression_on_each_answer():
    chosen, rejected = (t.detach() for t in pairs())
    good, bad = Bernoulli(logits=0.3 * chosen - 0.2), Bernoulli(logits=0.3 * rejected - 0.2)
    expected = -good.log_prob(torch.ones(5).double()) - bad.log_prob(torch.zeros(5).double())
    torch.testing.assert_close(bco_loss(chosen, rejected, 0.3, shift=0.2), expected)
    assert not torch.allclose(bco_loss(chosen, rejected, 0.3), expected)


def test_ipo_by_hand():
    assert ipo_loss(torch.tensor([2.0]), torch.tensor([0.5]), beta=0.5).item() == pytest.approx(0.25)  # (1.5 - 1)^2
    assert ipo_loss(torch.tensor([1.0]), torch.tensor([0.0]), beta=0.5).item() == 0


def test_mpo_by_hand():
    chosen, rejected, written = torch.tensor([1.0]), torch.tensor([-1.0]), torch.tensor([-2.5])
    got = mpo_loss(chosen, rejected, written, beta=1.0, shift=0.0, **WEIGHTS)
    preference, quality = math.log1p(math.exp(-2)), 2 * math.log1p(math.exp(-1))
    assert [part.item() for part in got[1:]] == pytest.approx([preference, quality, 2.5])
    assert got.loss.item() == pytest.approx(0.8 * preference + 0.2 * quality + 2.5)


def test_imitation_is_cross_entropy():
    logits, tokens = random(2, 3, 7).requires_grad_(), torch.tensor([[1, 2, 3], [6, 0, 0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    log_probs = Categorical(logits=logits).log_prob(tokens)
    terms = imitation_loss(log_probs, torch.ones(2, 3).double(), mask)
    expected = torch.nn.functional.cross_entropy(logits[mask], tokens[mask], reduction="none")
    torch.testing.assert_close(terms[mask], expected)
    assert (terms[~mask] == 0).all()
    halved = imitation_loss(log_probs, torch.full((2, 3), 0.5).double(), mask)
    torch.testing.assert_close(halved, terms / 2)


# Gradients -----------------------------------------------------------------------------------------------------------

LOSSES = {
    "dpo": lambda c, r: dpo_loss(c, r, 0.3),
    "smoothed": lambda c, r: dpo_loss(c, r, 0.3, label_smoothing=0.2),
    "ipo": lambda c, r: ipo_loss(c, r, 0.3),
    "bco": lambda c, r: bco_loss(c, r, 0.3, shift=0.4),
    "mpo": lambda c, r: mpo_loss(c, r, c, 0.3, shift=0.4, **WEIGHTS).loss,
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_against_finite_differences(name):
    assert torch.autograd.gradcheck(LOSSES[name], pairs())


@pytest.mark.parametrize("name", LOSSES)
def test_preference_losses_raise_chosen_and_lower_rejected(name):
    chosen, rejected = pairs()
    LOSSES[name](chosen, rejected).sum().backward()
    assert (rejected.grad > 0).all() and (chosen.grad < 0).all()


@pytest.mark.parametrize("part", WEIGHTS)
def test_every_mpo_term_has_a_gradient(part):
    chosen, rejected = pairs()
    written = random(5, seed=2).requires_grad_()
    alone = dict.fromkeys(WEIGHTS, 0.0) | {part: 2.0}
    loss = mpo_loss(chosen, rejected, written, 0.3, 0.1, **alone).loss
    loss.sum().backward()
    moved = {
        name for name, t in (("c", chosen), ("r", rejected), ("w", written)) if t.grad is not None and t.grad.any()
    }
    assert moved == ({"w"} if part == "generation" else {"c", "r"})


def test_log_ratios_ignore_padding_and_detach_the_reference():
    mask = torch.tensor([[True, False]])
    log_probs = torch.tensor([[-1.0, torch.nan]], requires_grad=True)
    reference = torch.tensor([[-2.0, torch.inf]], requires_grad=True)
    sequence_log_ratio(log_probs, reference, mask, mean=True).sum().backward()
    imitation_loss(log_probs, torch.tensor([[1.0, torch.nan]]), mask).sum().backward()
    assert log_probs.grad.tolist() == [[0, 0]] and reference.grad is None  # +1 and -1


# Properties ----------------------------------------------------------------------------------------------------------


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(-50, 50), st.floats(0.01, 2))
def test_dpo_and_ipo_depend_on_the_margin_alone(chosen, rejected, both, beta):
    c, r = torch.tensor([chosen], dtype=torch.float64), torch.tensor([rejected], dtype=torch.float64)
    for loss in (dpo_loss, ipo_loss):
        torch.testing.assert_close(loss(c + both, r + both, beta), loss(c, r, beta))
        assert loss(c, r, beta).item() >= 0
    assert dpo_loss(c, r, beta).item() - dpo_loss(r, c, beta).item() == pytest.approx(beta * (rejected - chosen))


def test_bco_depends_on_the_level_too():
    c, r = torch.ones(1), -torch.ones(1)
    assert bco_loss(c + 5, r + 5, 1.0).item() > bco_loss(c, r, 1.0).item() + 1
    torch.testing.assert_close(bco_loss(c + 5, r + 5, 1.0, shift=5.0), bco_loss(c, r, 1.0))


# Refusals ------------------------------------------------------------------------------------------------------------


def test_preference_losses_reject_wrong_shapes():
    chosen, rejected = pairs()
    with pytest.raises(ShapeError, match=r"rejected: expected \[P\] with P=5, got \[4\]"):
        dpo_loss(chosen, rejected[:4], 0.1)
    with pytest.raises(ShapeError, match=r"chosen_log_probs: expected \[P\]"):
        mpo_loss(chosen, rejected, chosen[:4], 0.1, 0.0, **WEIGHTS)
    with pytest.raises(DtypeError, match="chosen: expected float32"):
        ipo_loss(chosen.bfloat16(), rejected, 0.1)
    for loss in (dpo_loss, ipo_loss, bco_loss):
        with pytest.raises(ValueError, match="beta: expected a number > 0, got 0"):
            loss(chosen, rejected, 0)
    with pytest.raises(ValueError, match=r"label_smoothing: expected a number in \[0, 0.5\), got 0.5"):
        dpo_loss(chosen, rejected, 0.1, label_smoothing=0.5)
    with pytest.raises(ValueError, match="weights: expected numbers >= 0, not all 0"):
        mpo_loss(chosen, rejected, chosen, 0.1, 0.0, preference=0, quality=0, generation=0)
    with pytest.raises(ValueError, match="credit: expected numbers >= 0, got -1"):
        imitation_loss(chosen[None], torch.tensor([[1.0, -1.0, 1.0, 1.0, 1.0]]), torch.ones(1, 5).bool())
