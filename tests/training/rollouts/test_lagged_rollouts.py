"""Rollouts that a thread samples ahead: their parameters, and that nothing depends on the thread's speed."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import AIPOConfig, GRPOConfig
from mmrl.errors import ConfigError, RunError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.training.run.checkpoints import Checkpoints
from tests.training import lagged_run
from tests.training.gaussian_run import contents
from tests.training.lagged_run import ITERATIONS, Sleepy, lagged_trainer
from tests.training.test_trainer import lines, without_timings
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Right

OWN = ("lag/updates",)


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("rollouts-")]


def test_lag_of_zero_equals_a_run_without_a_thread(tmp_path):
    plain, lagged = lagged_trainer(tmp_path / "a", -1), lagged_trainer(tmp_path / "b", 0, Sleepy())
    plain.train()
    lagged.train()
    assert torch.equal(plain.policy.logits, lagged.policy.logits)
    for one, other in zip(lines(tmp_path / "a"), lines(tmp_path / "b"), strict=True):
        assert without_timings([one]) == without_timings([{k: v for k, v in other.items() if k not in OWN}])
    state = "checkpoints/step-6/trainer/parameters.safetensors"
    assert contents(tmp_path / "a")[state] == contents(tmp_path / "b")[state]


@pytest.mark.parametrize("lag", [1, 4])
def test_rollouts_are_of_the_iteration_that_the_lag_says(tmp_path, lag):
    made = lagged_trainer(tmp_path, lag, Sleepy(), training={"updates": 2})
    collect, sampled, began = made.ahead.collect, [], []

    def recorded(iteration, progress, phases):
        found = collect(iteration, progress, phases)
        sampled.append({batch.rollout.policy_version for batch in found.micro_batches})
        began.append(made.learner.updates)
        return found

    made.ahead.collect = recorded
    made.train()
    assert began == [0, 2, 4, 6, 8, 10]
    assert sampled == [{2 * max(0, i - lag)} for i in range(ITERATIONS)]
    assert [row["lag/updates"] for row in lines(tmp_path)] == [2 * min(i, lag) for i in range(ITERATIONS)]


def test_rollouts_are_those_of_the_older_parameters(tmp_path):
    """The log-probabilities that a lagged rollout carries are of the parameters before the lag, and of no others."""
    made = lagged_trainer(tmp_path, 2)
    parameters = []
    for iteration in range(5):
        parameters.append(made.policy.logits.detach().clone())
        experience = made.ahead.collect(iteration, 0.0, lagged_run.phases())
        judge = TokenPolicy()
        for done, values in enumerate(parameters):
            judge.logits.data.copy_(values)
            gaps = [judge.replay_gap(batch.rollout) for batch in experience.micro_batches]
            assert (max(gaps) < 1e-6) == (done == max(0, iteration - 2))
        made.policy.logits.data += 0.1 * torch.randn(made.policy.logits.shape)
        made.policy.version += 1
    made.ahead.close()


@pytest.mark.integration
@pytest.mark.parametrize("corrected", [False, True])
def test_runs_are_equal_whatever_the_speed_of_the_thread(tmp_path, corrected):
    for name, reward in (("a", Right()), ("b", Sleepy()), ("c", Sleepy())):
        lagged_trainer(tmp_path / name, 2, reward, corrected, training={"save_every": 1}).train()
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


@pytest.mark.parametrize("lag", [1, 4])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, lag, stop):
    straight = lagged_trainer(tmp_path / "a", lag)
    straight.train()
    begun = lagged_trainer(tmp_path / "b", lag)
    for _ in range(stop):
        begun.iterate()
    begun.save()
    begun.ahead.close()
    kept = Checkpoints(tmp_path / "b").load_state().tensors["behaviour"]
    assert {int(name.split(".")[0]) for name in kept} == set(range(max(0, stop - lag), stop))
    resumed = lagged_trainer(tmp_path / "b", lag, Sleepy())
    resumed.resume()
    resumed.train()
    assert torch.equal(resumed.policy.logits, straight.policy.logits)
    one, other = (Checkpoints(tmp_path / name).load_state() for name in "ab")
    assert one.values["source"] == other.values["source"]
    assert one.tensors["behaviour"].keys() == other.tensors["behaviour"].keys()


@pytest.mark.integration
@pytest.mark.parametrize(
    "at", ["os.rename checkpoints/.step-3.tmp", "checkpoints/.step-4.tmp/trainer", "metrics.jsonl"]
)
def test_killed_run_resumes_to_the_bit(fork_server, tmp_path, at):
    words = ("tests.training.lagged_run:go_on", "run", 2, True)
    assert fork_server.call(tmp_path / "a", *words).wait() == 0
    at = at.replace("checkpoints", "run/checkpoints") if "checkpoints" in at else 12
    child = fork_server.call(tmp_path / "b", *words, signals=[signal.SIGKILL], at=at)
    assert child.wait() == -signal.SIGKILL
    resumed = fork_server.call(tmp_path / "b", *words)
    assert resumed.wait() == 0, resumed.output_text()
    assert contents(tmp_path / "a/run") == contents(tmp_path / "b/run")


@pytest.mark.integration
def test_sigterm_saves_the_iteration_and_ends_the_thread(fork_server, tmp_path):
    words = ("tests.training.lagged_run:go_on", "run", 2, False)
    assert fork_server.call(tmp_path / "a", *words).wait() == 0
    child = fork_server.call(tmp_path / "b", *words, signals=[signal.SIGTERM], at=".step-2.tmp")
    child.wait()
    assert "go on with: mmrl train --resume" in child.output_text()
    assert Checkpoints(tmp_path / "b/run").load_state().step == 2
    twice = fork_server.call(tmp_path / "b", *words, signals=[signal.SIGINT, signal.SIGINT], at=".step-4.tmp")
    twice.wait()
    assert "KeyboardInterrupt" in twice.output_text() and Checkpoints(tmp_path / "b/run").load_state().step == 3
    assert fork_server.call(tmp_path / "b", *words).wait() == 0
    assert contents(tmp_path / "a/run") == contents(tmp_path / "b/run")


def test_error_of_the_thread_reaches_the_trainer(tmp_path, monkeypatch):
    class Broken(Right):
        def score_one(self, item):
            if made.ahead.sampler.version >= 1:
                raise ConnectionError("the scorer is down")
            return super().score_one(item)

    made = lagged_trainer(tmp_path, 2, Broken())
    collect = made.ahead.collect

    def collect_after_the_thread(*arguments):
        made.ahead.wait_idle()  # else the third iteration, whose rollouts are good, may end before the fourth fails
        return collect(*arguments)

    monkeypatch.setattr(made.source, "collect", collect_after_the_thread)
    with pytest.raises(RunError, match="only 0% of the answers could be scored"):
        made.train()
    assert made.step < 3 and made.learner.updates == made.step
    assert all(each.done() for each in made.ahead._ahead.values())
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads()


def test_finished_run_leaves_no_thread_and_samples_nothing_beyond_its_end(tmp_path):
    made = lagged_trainer(tmp_path, 4)
    made.train()
    assert made.ahead.sampler.rollouts == 2 * ITERATIONS
    assert made.policy.rollouts == 0
    until = time.monotonic() + 5
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads()


def test_replay_that_repeats_nothing_is_noticed_in_the_thread(tmp_path):
    class Drifting(TokenPolicy):
        def replay_gap(self, rollout):
            return super().replay_gap(rollout) + (1e-2 if self.version == 2 else 0.0)

    made = lagged_trainer(tmp_path, 2, policy=Drifting())
    with pytest.raises(RunError, match=r"replay differs from the rollout by 1\.0e-02"):
        made.train()
    assert made.step == 4  # iteration 5 is the first one of version 2


def test_evaluation_has_the_rewards_for_itself(tmp_path):
    busy, seen = [], []

    class Counted(Sleepy):
        def score_one(self, item):
            busy.append(None)
            try:
                return super().score_one(item)
            finally:
                busy.pop()

    def evaluate(step):
        seen.append(len(busy))
        time.sleep(0.05)
        seen.append(len(busy))
        return {"evaluation/total": 0.0}

    lagged_trainer(tmp_path, 2, Counted(), evaluate=evaluate, evaluate_every=1).train()
    assert len(seen) == 14 and not any(seen)


def test_correction_weighs_by_the_parameters_of_the_update(tmp_path):
    """Ratios begin at 1 with it, and at the drift of two updates without; weights are the drift, truncated."""
    for corrected in (False, True):
        made = lagged_trainer(tmp_path / str(corrected), 2, corrected=corrected, algorithm=GRPOConfig(), lr=0.3)
        made.train()
        rows = lines(tmp_path / str(corrected))
        assert [row["lag/updates"] for row in rows] == [0, 1, 2, 2, 2, 2]
        if corrected:
            assert all(row["ratio_max"] == pytest.approx(1.0, abs=1e-5) for row in rows)
            assert rows[0]["mismatch/gap"] < 1e-6 < 0.1 < rows[3]["mismatch/gap"]
            assert max(row["replay_gap"] for row in rows) < 1e-6 and rows[3]["mismatch/engine_gap"] < 1e-6
        else:
            assert rows[0]["ratio_max"] == pytest.approx(1.0, abs=1e-5) and rows[3]["ratio_max"] > 1.1


def test_aipo_weighs_tokens_by_their_ratio_to_the_sampling_parameters():
    """The gradient, in float64: the mean over tokens of -min(pi / mu, 4) A grad log pi."""
    writer, policy = TokenPolicy(spread=1.0), TokenPolicy(spread=1.0, seed=1)
    rollout = writer.rollout([RolloutRequest(sample, 32, group) for group, sample in enumerate(questions())], seed=0)
    advantages = torch.randn(rollout.rows, generator=torch.Generator().manual_seed(0))
    batch = MicroBatch.of_rows(rollout, advantages)
    objective = PolicyGradient(policy, AIPOConfig())
    objective.backward(batch, float(objective.loss_normalizer(batch)), 0, metrics := MetricAccumulator())
    table = policy.logits.detach().double().requires_grad_()
    log_probs = table[rollout.recording.prompts].log_softmax(-1).gather(-1, rollout.recording.tokens[..., None])[..., 0]
    weights = (log_probs.detach() - rollout.log_probs.double()).exp()
    assert (weights[rollout.mask] > 4).any() and (weights[rollout.mask] < 0.25).any()
    loss = -(weights.clamp(max=4) * advantages.double()[:, None] * log_probs)[rollout.mask].sum()
    (expected,) = torch.autograd.grad(loss, table)
    torch.testing.assert_close(policy.logits.grad.double(), expected, rtol=1e-5, atol=1e-5)
    assert 0 < metrics.values()["clip_fraction"] < 1


def test_part_that_cannot_be_copied_is_named():
    policy = TokenPolicy()
    policy.connection = threading.Lock()
    with pytest.raises(ConfigError, match=r"run\.overlap: TokenPolicy cannot be copied .*lock"):
        sampling_copy(policy)
