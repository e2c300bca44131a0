"""The loop on a policy whose every number is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.training import TrainingConfig
from mmrl.errors import RunError
from mmrl.training.run.checkpoints import Checkpoints
from tests.training.conftest import TARGET, Nearness

TIMINGS = ("seconds/", "memory_mib/")


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def without_timings(rows):
    return [{k: v for k, v in row.items() if not k.startswith(TIMINGS)} for row in rows]


@pytest.mark.integration
def test_training_moves_the_policy_to_the_target(make_trainer):
    trainer = make_trainer(training={"iterations": 60})
    trainer.train()
    assert torch.allclose(trainer.policy.theta.detach(), torch.full((2,), TARGET), atol=0.2)
    rows = lines(trainer.run)
    assert rows[-1]["reward/total"] > rows[0]["reward/total"] + 1.0


@pytest.mark.integration
def test_flipped_rewards_move_the_policy_away(make_trainer):
    class Farness(Nearness):
        name, range = "farness", (0.0, 100.0)

        def score_one(self, item):
            return -super().score_one(item)

    trainer = make_trainer(reward=Farness(), training={"iterations": 20})
    trainer.train()
    assert (trainer.policy.theta.detach() < 0).all()


@pytest.mark.parametrize("micro_batch", [4, 8, 16])
def test_gradients_are_independent_of_micro_batches(make_trainer, tmp_path, micro_batch):
    """The same trajectories in k micro-batches give the gradient of one batch."""
    whole = make_trainer(run=tmp_path / "whole", micro_batch=32)
    parts = make_trainer(run=tmp_path / "parts", micro_batch=micro_batch)
    experience = whole.source.collect(0, 0.0, _phases())
    rollout = experience.micro_batches[0]
    sliced = _slice(rollout, micro_batch)
    gradients = []
    for trainer, batches in ((whole, [rollout]), (parts, sliced)):
        for batch in batches:
            trainer.objective.backward(batch, 1 / len(batches), 0, _gauges())
        gradients.append(trainer.policy.theta.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.integration
def test_trainer_resumes_exactly(make_trainer, tmp_path):
    straight = make_trainer(run=tmp_path / "a", optimizer={"ema": 0.9, "schedule": "cosine", "warmup": 2})
    straight.train()
    broken = make_trainer(run=tmp_path / "b", optimizer={"ema": 0.9, "schedule": "cosine", "warmup": 2})
    original, calls = broken.iterate, []

    def stop_in_the_fourth():
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original()

    broken.iterate = stop_in_the_fourth
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    again = make_trainer(run=tmp_path / "b", optimizer={"ema": 0.9, "schedule": "cosine", "warmup": 2})
    again.resume()
    assert again.step == 2  # the last checkpoint; iteration 3 is done again
    again.train()
    assert torch.equal(again.policy.theta, straight.policy.theta)
    for part in ("parameters", "optimizer", "average"):
        one, other = (t.checkpoints.load_state().tensors[part] for t in (straight, again))
        assert all(torch.equal(one[name], other[name]) for name in one), part
    assert without_timings(lines(tmp_path / "a")) == without_timings(lines(tmp_path / "b"))


def test_best_and_last_checkpoints_are_kept(make_trainer):
    scores = {0: 0.0, 2: 0.5, 4: 0.9, 6: 0.7}
    trainer = make_trainer(evaluate=lambda step: {"evaluation/total": scores[step]}, evaluate_every=2)
    trainer.train()
    index = Checkpoints(trainer.run).index()
    assert (index["best"], index["last"]) == ("step-4", "step-6")
    assert {p.name for p in (trainer.run / "checkpoints").iterdir()} == {"step-4", "step-6", "index.json"}


def test_the_best_checkpoint_is_that_of_another_metric_where_one_is_named(make_trainer):
    entropies = {0: 0.1, 2: 0.6, 4: float("nan"), 6: 0.5}
    trainer = make_trainer(
        evaluate=lambda step: {"evaluation/total": step, "evaluation/critical_entropy": entropies[step]},
        evaluate_every=2,
        best="critical_entropy",
    )
    trainer.train()
    assert Checkpoints(trainer.run).index()["best"] == "step-2"  # one that could not be measured is never the best


def test_a_best_checkpoint_by_a_metric_that_evaluations_lack_is_refused_before_training(make_trainer):
    trainer = make_trainer(evaluate=lambda step: {"evaluation/total": 0.0}, best="entropy")
    with pytest.raises(RunError, match=r"evaluation\.best: evaluations have no metric entropy, .* there are total"):
        trainer.train()
    assert trainer.step == 0


def test_every_third_checkpoint_is_kept_as_well(make_trainer):
    kept = make_trainer(training={"iterations": 8, "save_every": 1, "keep_every": 3})
    kept.train()
    assert {p.name for p in (kept.run / "checkpoints").glob("step-*")} == {"step-3", "step-6", "step-7", "step-8"}
    assert Checkpoints(kept.run, keep_every=3).index()["last"] == "step-8"
    with pytest.raises(ValidationError, match="keep_every: 3 is no multiple of save_every, which is 2"):
        TrainingConfig(save_every=2, keep_every=3)


def test_replay_gap_stops_the_run_before_an_update(make_trainer):
    trainer = make_trainer()
    trainer.policy.drift = 1e-3
    with pytest.raises(RunError, match=r"replay differs from the rollout by 1\.0e-03"):
        trainer.train()
    assert torch.equal(trainer.policy.theta.detach(), torch.zeros(2))


def test_too_many_failed_scores_stop_the_run(make_trainer):
    reward = Nearness()
    reward.fails_on = lambda item: True
    with pytest.raises(RunError, match=r"only 0% of the answers could be scored.*error.*the scorer is down"):
        make_trainer(reward=reward).train()


def test_fully_unscored_batches_have_no_gradient(make_trainer):
    """A trajectory whose scorer failed gets no advantage, is counted, and is not in the mean."""
    reward = Nearness()
    reward.fails_on = lambda item: item.id.endswith("/0")
    trainer = make_trainer(reward=reward, groups=1)
    experience = trainer.source.collect(0, 0.0, _phases())
    batch = experience.micro_batches[0]
    assert batch.advantages[0] == 0 and not batch.scored[0] and batch.scored[1:].all()
    assert (batch.advantages[1:] != 0).all() and abs(batch.advantages.sum()) < 1e-4
    assert experience.metrics["status/nearness/error"] == 1
    assert torch.isfinite(torch.tensor(experience.metrics["reward/total"]))


def test_unscored_rows_have_no_part_in_the_update(make_trainer, tmp_path):
    """For any output and distance of an unscored row the gradient is that of the scored rows, penalty included."""
    trainer = make_trainer(algorithm=GRPOConfig(clip={"low": 0.2}, kl={"kind": "mean_distance", "coef": 1.0}), groups=1)
    (batch,) = trainer.source.collect(0, 0.0, _phases()).micro_batches
    trainer.policy.theta.data += 0.1
    scored = torch.ones(batch.rollout.rows, dtype=torch.bool)
    scored[3] = False
    kept = _rows(batch, scored)
    gradients = []
    for each in (replace(batch, scored=scored), kept):
        trainer.policy.theta.grad = None
        trainer.objective.backward(each, 1.0, 0, _gauges())
        gradients.append(trainer.policy.theta.grad.clone())
    torch.testing.assert_close(*gradients)


def test_decision_level_events_raise(make_trainer):
    class Eventful(Nearness):
        name = "eventful"

        def score(self, batch, context=None):
            return replace(super().score(batch, context), events=[[(0, 1.0)] for _ in batch])

    with pytest.raises(RunError, match="events at single decisions"):
        make_trainer(reward=Eventful()).train()


def test_metrics_name_rewards_sources_phases_and_gauges(make_trainer):
    trainer = make_trainer(algorithm=GRPOConfig(clip={"low": 0.2}, kl={"kind": "mean_distance", "coef": 0.1}))
    trainer.train()
    row = lines(trainer.run)[-1]
    expected = {
        "reward/total", "reward/nearness", "reward_by_source/even", "reward_by_source/odd", "zero_variance_share",
        "clip_fraction", "ratio_mean", "ratio_max", "kl", "replay_gap", "grad_norm", "learning_rate",
        "seconds/rollout", "seconds/reward", "seconds/update", "memory_mib/update",
    }  # fmt: skip
    assert expected <= row.keys()
    assert row["replay_gap"] <= 1e-6 and row["kl"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["mean_distance", "velocity_mse"])
def test_penalty_limits_the_distance(make_trainer, tmp_path, kind):
    free = make_trainer(run=tmp_path / "free", training={"iterations": 25})
    algorithm = GRPOConfig(clip={"low": 0.2}, kl={"kind": kind, "coef": 20.0})
    frozen = make_trainer(run=tmp_path / "held", algorithm=algorithm, training={"iterations": 25})
    free.train()
    frozen.train()
    assert frozen.policy.theta.abs().max() < 0.5 * free.policy.theta.abs().max()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
def test_every_advantage_estimator_learns(make_trainer, name):
    trainer = make_trainer(
        algorithm=GRPOConfig(advantage=AdvantageConfig(name=name), clip={"low": 0.2}), training={"iterations": 25}
    )
    trainer.train()
    assert (trainer.policy.theta.detach() > 0.4).all()


def test_non_finite_gradients_stop_the_run(make_trainer):
    trainer = make_trainer()
    trainer.policy.theta.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(RunError, match="the gradient's norm is nan at iteration 1"):
        trainer.train()


def _phases():
    from mmrl.training.run.timers import Phases

    return Phases()


def _gauges():
    from mmrl.training.objectives.base import MetricAccumulator

    return MetricAccumulator()


def _slice(batch, rows):
    whole = torch.arange(batch.rollout.rows)
    return [_rows(batch, (whole >= start) & (whole < start + rows)) for start in range(0, len(whole), rows)]


def _rows(batch, chosen):
    """The micro-batch without the rows that are not chosen."""
    whole, numbers = batch.rollout, chosen.nonzero()[:, 0].tolist()
    rollout = replace(
        whole,
        samples=[whole.samples[n] for n in numbers],
        group_index=whole.group_index[chosen],
        log_probs=whole.log_probs[chosen],
        mask=whole.mask[chosen],
        channel=whole.channel[chosen],
        media=[whole.media[n] for n in numbers],
        recording=whole.recording[chosen],
    )
    return replace(
        batch,
        rollout=rollout,
        advantages=batch.advantages[chosen],
        scored=batch.scored[chosen],
        step_advantages=batch.step_advantages[chosen],
    )
