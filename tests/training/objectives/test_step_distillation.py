"""Distillation along denoising trajectories: the divergence by hand, teachers by source, and real pipelines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.build.config_checks import check
from mmrl.config.algorithms.distill import DistillConfig
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.step_distillation import StepDistillation
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines
from tests.training.gaussian_policy import GaussianPolicy

SDE = "sampling={steps: 3, guidance_scale: 1.0, transition: {name: flow_sde, noise_level: 0.7}}"
SMALL = (
    "data={path: 'shapeworld:train', groups: 2, group_size: 2}",
    "evaluation={}",
    "run.display=quiet",
    "policy.train=lora",
    SDE,
)


def gaussian(*means: float) -> GaussianPolicy:
    policy = GaussianPolicy(len(means))
    with torch.no_grad():
        policy.theta.copy_(torch.tensor(means))
    return policy


def batch_of(policy: GaussianPolicy, *sources: str, totals: tuple[float, ...] = ()) -> MicroBatch:
    requests = [RolloutRequest(Sample(id=f"s{n}", prompt="x", source=each), 1, n) for n, each in enumerate(sources)]
    batch = MicroBatch.of_rows(policy.rollout(requests, 0), torch.zeros(len(sources)))
    return replace(batch, totals=torch.tensor(totals) if totals else None)


def learn(policy: GaussianPolicy, batch: MicroBatch, models: dict[str, GaussianPolicy], **settings):
    config = DistillConfig(name="distill", **settings)
    objective = StepDistillation(policy, config, {name: NamedModel(each) for name, each in models.items()})
    metrics = MetricAccumulator()
    policy.theta.grad = None
    objective.accumulate([batch], 1.0, [0], metrics)
    return policy.theta.grad, metrics.values()


def test_the_loss_is_the_divergence_of_two_gaussians_and_its_gradient():
    """KL(N(m, s) || N(t, s)) = (m - t)^2 / 2 s^2; the mean over two steps halves each."""
    policy, teacher = gaussian(0.0, 1.0), gaussian(0.5, 0.0)
    batch = batch_of(policy, "a", "a", "a")
    gradient, metrics = learn(policy, batch, {"teacher": teacher})
    variance = policy.std**2
    own, other = (torch.distributions.Normal(each.theta.detach(), policy.std) for each in (policy, teacher))
    expected = torch.distributions.kl_divergence(own, other).mean().item()
    assert metrics["loss"] == pytest.approx(expected) == metrics["distance"]
    assert gradient.tolist() == pytest.approx([(0.0 - 0.5) / variance / 2, (1.0 - 0.0) / variance / 2])
    assert teacher.theta.grad is None and metrics["log_prob_change_max"] == 0


def test_a_micro_batch_that_other_processes_need_has_a_gradient_of_zero():
    """run.place strict passes a share of 0 where no row could be scored."""
    policy = gaussian(0.0)
    batch = batch_of(policy, "a", "a").with_every_row()
    objective = StepDistillation(policy, DistillConfig(name="distill"), {"teacher": NamedModel(gaussian(1.0))})
    objective.backward(batch, 0.0, 0, MetricAccumulator())
    assert policy.theta.grad.tolist() == [0.0]


def test_rows_have_the_teacher_of_their_source():
    policy, one, two = gaussian(0.0), gaussian(1.0), gaussian(-3.0)
    batch = batch_of(policy, "a", "b", "b", "b")
    gradient, _ = learn(policy, batch, {"teacher": one, "other": two}, teachers={"b": "other"})
    assert gradient.tolist() == pytest.approx([(-1.0 + 3 * 3.0) / 4 / policy.std**2])
    only, _ = learn(policy, batch, {"teacher": one, "other": two}, teachers={"a": "other", "b": "other"})
    assert only.tolist() == pytest.approx([3.0 / policy.std**2])


def test_a_gate_leaves_rows_out_of_the_gradient_and_in_the_mean():
    policy, teacher = gaussian(0.0), gaussian(1.0)
    batch = batch_of(policy, "a", "a", "a", "a", totals=(0.0, 1.0, 1.0, float("nan")))
    gradient, metrics = learn(policy, batch, {"teacher": teacher}, gate={"at_least": 1.0})
    assert metrics["gated_share"] == 0.5
    assert gradient.tolist() == pytest.approx([-1.0 / policy.std**2 * 2 / 4])
    closed, metrics = learn(policy, batch, {"teacher": teacher}, gate={"at_least": 2.0})
    assert closed is None and metrics == {"gated_share": 0.0}


@pytest.mark.slow
def test_a_pipeline_is_drawn_to_the_pipeline_that_another_run_trained(tmp_path: Path):
    """The teacher is a run that moved far; after some iterations the student is nearer to it than it began."""
    teacher = train(load_config("quickstart", [*SMALL, "algorithm={name: grpo}", "optimizer={lr: 0.02}",
                    "training={iterations: 2}", f"run.dir={tmp_path / 'teacher'}"]))  # fmt: skip
    words = [f"models={{teacher: {{model: '{teacher}'}}}}", "algorithm={name: distill}", "optimizer={lr: 0.003}"]
    run = train(load_config("quickstart", [*SMALL, *words, "training={iterations: 4}", f"run.dir={tmp_path / 'run'}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["replay_gap"] <= 1e-6 for row in rows)
    distances = [row["distance"] for row in rows]
    assert 0 < min(distances[-2:]) < 0.7 * distances[0], distances
    start = ["models={start: {of: policy}}", "algorithm={name: distill, teacher: start}", "training={iterations: 2}"]
    own = train(load_config("quickstart", [*SMALL, *start, f"run.dir={tmp_path / 'own'}"]))
    first = json.loads((own / "metrics.jsonl").read_text().splitlines()[0])
    assert first["distance"] == 0 and first["grad_norm"] == 0  # the policy as training began is its own teacher


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm={name: distill}", SDE], r"algorithm.teacher: there is no model teacher in models"),
        (["algorithm={name: distill, teachers: {a: b}}", SDE], r"algorithm.teachers.a: there is no model b in models"),
        (
            ["models={teacher: {model: shapeworld}}", "algorithm={name: distill, estimator: k3}", SDE],
            "algorithm.estimator: the divergence of denoising steps is known",
        ),
        (["models={t: {model: shapeworld, train: lora}}"], "models.t.train: pipelines beside a pipeline are teachers"),
        (["models={teacher: {model: shapeworld}}", "algorithm={name: distill}"], "sampling.transition"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("quickstart", ["policy.train=lora", *overrides]))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("family", "message"),
    [("sd15", "cannot teach here: sampling.transition.name"), ("flux", "a FluxPipeline, and the policy a")],
)
def test_a_teacher_of_another_class_is_refused(tmp_path: Path, family: str, message: str):
    tiny_pipelines.build(family).save_pretrained(tmp_path / "model")
    words = [f"models={{teacher: {{model: '{tmp_path / 'model'}'}}}}", f"run.dir={tmp_path / 'run'}"]
    with pytest.raises(ConfigError, match=f"models.teacher: .*{message}"):
        train(load_config("quickstart", [*SMALL, *words, "algorithm={name: distill}"]))
