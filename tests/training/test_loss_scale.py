"""Loss scaling: nothing but the size of what is backpropagated changes, and an overflow costs one update."""

from __future__ import annotations

import json

import pytest
import torch

from mmrl.errors import RunError
from mmrl.training import loss_scale
from mmrl.training.loss_scale import PATIENCE, START, LossScale
from tests.training.test_trainer import lines, without_timings


def overflowing(trainer, updates: set[int]):
    """In these updates (counted from 0, skipped ones too) a gradient overflows, as it would in float16."""
    original, calls = trainer.objective.backward, []

    def backward(*args):
        original(*args)
        if len(calls) in updates:
            trainer.policy.theta.grad[0] = float("inf")
        calls.append(None)

    trainer.objective.backward = backward


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_is_scaled(precision):
    scale = LossScale(precision)
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.full((2,), 3.0)
    scale.unscale([parameter])
    assert scale.factor == 1 and parameter.grad.tolist() == [3, 3]
    assert scale.accepts(float("nan")), "not finite without scaling: the caller's error, no overflow"
    assert scale.metrics() == scale.state_dict() == {}


def test_gradients_are_divided_by_the_factor():
    scale = LossScale("float16")
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]  # the second has no gradient
    parameters[0].grad = torch.full((2,), 3 * START)
    scale.unscale(parameters)
    scale.unscale([])
    assert parameters[0].grad.tolist() == [3, 3] and parameters[1].grad is None


def test_overflow_halves_and_growth_doubles_the_scale():
    scale = LossScale("float16")
    assert not scale.accepts(float("inf")) and not scale.accepts(float("nan"))
    assert scale.factor == START / 4 and scale.metrics()["updates_skipped"] == 2
    assert all(scale.accepts(1.0) for _ in range(PATIENCE - 1)) and scale.factor == START / 4
    assert scale.accepts(1.0) and scale.factor == START / 2
    assert all(scale.accepts(1.0) for _ in range(PATIENCE - 1))
    assert not scale.accepts(float("inf")) and scale.factor == START / 4
    assert scale.accepts(1.0) and scale.factor == START / 4, "an overflow starts the count anew"


def test_scaled_run_equals_the_unscaled_run(make_trainer, tmp_path):
    """Factors are powers of two: in float32 not one bit differs, in the parameters or in the gauges."""
    plain, scaled = make_trainer(run=tmp_path / "a"), make_trainer(run=tmp_path / "b", precision="float16")
    plain.train()
    scaled.train()
    assert torch.equal(plain.policy.theta, scaled.policy.theta)
    rows = without_timings(lines(scaled.run))
    assert {(row.pop("loss_scale"), row.pop("updates_skipped")) for row in rows} == {(START, 0)}
    assert rows == without_timings(lines(plain.run))


def test_overflow_skips_its_update_only(make_trainer, monkeypatch):
    trainer = make_trainer(precision="float16", training={"iterations": 4})
    overflowing(trainer, {1})
    thetas = []
    for _ in range(4):
        metrics, _ = trainer.iterate()
        thetas.append(trainer.policy.theta.detach().clone())
    assert torch.equal(thetas[0], thetas[1]) and not torch.equal(thetas[1], thetas[2])
    assert trainer.learner.updates == 3 and trainer.step == 4
    assert (metrics["updates_skipped"], metrics["loss_scale"]) == (1, START / 2)
    assert thetas[3].isfinite().all()


def test_non_finite_gradients_without_scaling_raise(make_trainer):
    trainer = make_trainer(precision="bfloat16")
    overflowing(trainer, {0})
    with pytest.raises(RunError, match="the gradient's norm is inf at iteration 1"):
        trainer.iterate()


@pytest.mark.integration
def test_repeated_overflows_stop_the_run(make_trainer):
    trainer = make_trainer(precision="float16", training={"iterations": 100})
    overflowing(trainer, set(range(100)))
    with pytest.raises(RunError, match=r"norm is inf in float16 even .* not scaled \(17 updates .*policy.dtype"):
        trainer.train()
    assert torch.equal(trainer.policy.theta.detach(), torch.zeros(2)) and trainer.learner.updates == 0


@pytest.mark.integration
def test_resume_restores_the_scale(make_trainer, tmp_path, monkeypatch):
    """The factor, the count of skipped updates, and how long ago it changed."""
    monkeypatch.setattr(loss_scale, "PATIENCE", 3)
    straight = make_trainer(run=tmp_path / "a", precision="float16", training={"iterations": 8})
    overflowing(straight, {1, 3})
    straight.train()
    broken = make_trainer(run=tmp_path / "b", precision="float16", training={"iterations": 4})
    overflowing(broken, {1, 3})
    broken.train()
    again = make_trainer(run=tmp_path / "b", precision="float16", training={"iterations": 8})
    again.resume()
    again.train()
    assert torch.equal(again.policy.theta, straight.policy.theta)
    assert without_timings(lines(again.run)) == without_timings(lines(straight.run))
    assert [row["loss_scale"] / START for row in lines(again.run)] == [1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5]
    state = json.loads((again.checkpoints.path() / "trainer" / "state.json").read_text())
    assert state["loss_scale"] == again.learner.loss_scale.state_dict() != LossScale("float16").state_dict()
