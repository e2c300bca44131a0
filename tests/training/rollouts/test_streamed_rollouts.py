"""Micro-batches that are learnt from while others are sampled: the same gradients, and resumed to the bit."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
import torch

from mmrl.config.algorithms.policy_gradient import DAPOConfig
from mmrl.errors import RunError
from mmrl.training.run.checkpoints import Checkpoints
from tests.training.lagged_run import Sleepy, lagged_trainer
from tests.training.rollouts.test_lagged_rollouts import contents
from tests.training.test_trainer import lines, without_timings
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Right

OWN = ("lag/updates",)


class Unsure(Sleepy):
    """Some answers cannot be scored, as those with no token."""

    def score_one(self, item):
        if not item.text:
            raise ConnectionError("the scorer is down")
        return super().score_one(item)


class Drawn(Right):
    """Depends on chance, which follows from the run's seed and the iteration."""

    scheduled = True

    def score_in(self, item, context):
        return np.random.default_rng([context.seed, len(item.text or ""), item.group]).random()


@pytest.mark.integration
def test_rewards_draw_from_the_seed_of_the_iteration(tmp_path):
    plain, streamed = (lagged_trainer(tmp_path / str(lag), lag, Drawn(), stream=lag == 0) for lag in (-1, 0))
    plain.train()
    streamed.train()
    assert torch.equal(plain.policy.logits, streamed.policy.logits)


@pytest.mark.integration
@pytest.mark.parametrize("rows", [4, 6, 9, 12])  # of a micro-batch; a group of 6 lies in one or in two
def test_streamed_run_equals_a_synchronous_one_to_the_bit(tmp_path, rows):
    settings = {"micro_batch": rows}
    plain = lagged_trainer(tmp_path / "a", -1, settings=settings)
    streamed = lagged_trainer(tmp_path / "b", 0, Sleepy(), stream=True, settings=settings)
    plain.train()
    streamed.train()
    assert torch.equal(plain.policy.logits, streamed.policy.logits)
    for one, other in zip(lines(tmp_path / "a"), lines(tmp_path / "b"), strict=True):
        assert without_timings([one]) == without_timings([{k: v for k, v in other.items() if k not in OWN}])


@pytest.mark.parametrize("reward", [Right(), Unsure()], ids=["lengths", "unscored"])
def test_gradient_is_scaled_where_the_number_of_terms_is_not_known(tmp_path, reward):
    """Means over tokens, and rows that cannot be scored: the number of terms is known after the last micro-batch."""
    gradients = []
    for number, options in enumerate(({"lag": -1}, {"lag": 0, "stream": True})):
        made = lagged_trainer(
            tmp_path / str(number), reward=reward, algorithm=DAPOConfig(), settings={"micro_batch": 6}, **options
        )
        made.learner.optimizer.step = lambda: None
        made.iterate()
        gradients.append(made.policy.logits.grad.clone())
        if made.ahead is not None:
            made.ahead.close()
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-8)


def test_first_groups_are_learnt_from_before_the_last_are_sampled(tmp_path):
    """The sampler waits for the trainer: without streaming this would never end."""
    learnt = threading.Event()

    class Waiting(TokenPolicy):
        def __deepcopy__(self, memo):
            return Sampler()

    class Sampler(TokenPolicy):
        def rollout(self, requests, seed):
            if self.rollouts == 1:
                assert learnt.wait(10)
            return super().rollout(requests, seed)

    made = lagged_trainer(tmp_path, 0, policy=Waiting(), stream=True)
    backward = made.objective.backward

    def recorded(*arguments):
        backward(*arguments)
        learnt.set()

    made.objective.backward = recorded
    made.iterate()
    made.ahead.close()
    assert made.learner.updates == 1


@pytest.mark.parametrize("corrected", [False, True])
def test_lagged_stream_equals_a_lagged_run(tmp_path, corrected):
    whole = lagged_trainer(tmp_path / "a", 2, corrected=corrected)
    parts = lagged_trainer(tmp_path / "b", 2, Sleepy(), corrected=corrected, stream=True)
    whole.train()
    parts.train()
    assert torch.equal(whole.policy.logits, parts.policy.logits)
    for one, other in zip(lines(tmp_path / "a"), lines(tmp_path / "b"), strict=True):
        assert {k: v for k, v in without_timings([one])[0].items() if k != "mismatch/engine_gap"} == (
            without_timings([other])[0]
        )


@pytest.mark.integration
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_resumed_stream_equals_an_uninterrupted_one(tmp_path, stop):
    straight = lagged_trainer(tmp_path / "a", 2, stream=True)
    straight.train()
    begun = lagged_trainer(tmp_path / "b", 2, stream=True)
    for _ in range(stop):
        begun.iterate()
    begun.save()
    begun.ahead.close()
    ahead = Checkpoints(tmp_path / "b").load_state().values["source"].get("ahead", {})
    assert set(ahead) == {str(each) for each in range(stop, min(stop + 1, 5) + 1)}
    resumed = lagged_trainer(tmp_path / "b", 2, Sleepy(), stream=True)
    resumed.resume()
    resumed.train()
    assert torch.equal(resumed.policy.logits, straight.policy.logits)
    one, other = (Checkpoints(tmp_path / name).load_state() for name in "ab")
    assert one.values["source"] == other.values["source"]


@pytest.mark.integration
def test_killed_stream_resumes_to_the_bit(fork_server, tmp_path):
    words = ("tests.training.lagged_run:go_on", "run", 1, False, True)
    assert fork_server.call(tmp_path / "a", *words).wait() == 0
    child = fork_server.call(
        tmp_path / "b", *words, signals=[signal.SIGKILL], at="os.rename run/checkpoints/.step-3.tmp"
    )
    assert child.wait() == -signal.SIGKILL
    resumed = fork_server.call(tmp_path / "b", *words)
    assert resumed.wait() == 0, resumed.output_text()
    assert contents(tmp_path / "a/run") == contents(tmp_path / "b/run")


def test_too_few_scores_end_the_iteration_before_its_update(tmp_path):
    class Broken(Right):
        def score_one(self, item):
            if made.learner.updates == 2:
                raise ConnectionError("the scorer is down")
            return super().score_one(item)

    made = lagged_trainer(tmp_path, 0, Broken(), stream=True)
    with pytest.raises(RunError, match="only 0% of the answers could be scored"):
        made.train()
    assert made.step == 2 and made.learner.updates == 2


def test_error_of_the_sampler_reaches_the_trainer(tmp_path):
    class Failing(TokenPolicy):
        def rollout(self, requests, seed):
            if self.version == 2:
                raise MemoryError("no memory is left")
            return super().rollout(requests, seed)

    made = lagged_trainer(tmp_path, 1, policy=Failing(), stream=True)
    with pytest.raises(MemoryError, match="no memory is left"):
        made.train()
    assert made.step == 3  # iteration 4 is the first one of version 2
