"""Answers that go on under parameters that come while they are written, with a policy whose probabilities are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.errors import ConfigError
from mmrl.rollout import Rollout
from mmrl.rollout_request import batch_requests
from mmrl.training.rollouts.behaviour import Behaviour, NewestBehaviour
from mmrl.training.rollouts.lagged_rollouts import gap_by_version, version_metrics
from tests.training.lagged_run import ITERATIONS, lagged_trainer
from tests.training.test_trainer import lines
from tests.training.token_policy import TokenPolicy, questions


class Interrupted(TokenPolicy):
    """Writes the first token of all answers, looks for newer parameters, and writes the rest."""

    take = staticmethod(lambda: False)

    def adopt(self, take):
        self.take = take

    def rollout(self, requests, seed):
        old_version, old = self.version, super().rollout(requests, seed)
        self.take()
        new = super().rollout(requests, seed)
        tokens = torch.cat([old.recording.tokens[:, :1], new.recording.tokens[:, 1:]], 1)
        found = self._rollout(old.samples, old.group_index.tolist(), old.recording.prompts, tokens)
        log_probs = torch.cat([old.log_probs[:, :1], found.log_probs[:, 1:]], 1)
        versions = torch.full(tokens.shape, self.version)
        versions[:, 0] = old_version
        return replace(found, log_probs=log_probs, versions=versions, policy_version=old_version)


def behaviour(version, seed):
    values = TokenPolicy(seed=seed).logits.detach().clone()
    return Behaviour(version, {"logits": values})


def interrupted_rollout() -> tuple[Interrupted, NewestBehaviour, Rollout]:
    sampler = Interrupted()
    newest = NewestBehaviour(sampler)
    sampler.adopt(newest.take)
    newest.begin(behaviour(3, seed=3))
    newest.offer(behaviour(4, seed=4))
    (requests,) = batch_requests(questions(4), n=6, rows=24)
    return sampler, newest, sampler.rollout(requests, seed=0)


def test_each_decision_is_replayed_under_the_parameters_that_wrote_it():
    sampler, newest, rollout = interrupted_rollout()
    assert sampler.version == 4 and rollout.policy_version == 3
    assert gap_by_version(sampler, rollout, newest) < 1e-6
    assert torch.equal(sampler.logits, behaviour(4, seed=4).values["logits"])  # it samples on with the newest
    assert sampler.replay_gap(rollout) > 0.01
    swapped = replace(rollout, versions=7 - rollout.versions)
    assert gap_by_version(sampler, swapped, newest) > 0.01
    unknown = replace(rollout, versions=rollout.versions + 9)
    assert gap_by_version(sampler, unknown, newest) == float("inf")


def test_the_sampler_never_goes_back_to_older_parameters():
    sampler, newest, _ = interrupted_rollout()
    assert newest.begin(behaviour(2, seed=2)).version == sampler.version == 4
    assert not newest.take()
    newest.offer(behaviour(6, seed=6))
    assert newest.begin(behaviour(5, seed=5)).version == sampler.version == 6
    assert not newest.take()


def test_decisions_are_counted_by_the_age_of_their_version():
    _, _, rollout = interrupted_rollout()
    plain = replace(rollout, versions=None)
    long = int((rollout.mask.sum(1) > 1).sum())
    assert 0 < long < rollout.rows
    own = int(rollout.mask.sum())
    assert version_metrics([rollout], now=5) == {
        "lag/interrupted": long,
        "lag/decisions_of_2": rollout.rows,
        "lag/decisions_of_1": own - rollout.rows,
    }
    assert version_metrics([plain], now=3) == {"lag/interrupted": 0, "lag/decisions_of_0": own}
    halves = [rollout.select(range(12)), rollout.select(range(12, 24))]
    assert version_metrics(halves, now=5) == version_metrics([rollout], now=5)


def made(folder, policy=None, **changes):
    return lagged_trainer(folder, 2, corrected=True, policy=policy or Interrupted(), interrupt=True, **changes)


def test_a_run_corrects_token_by_token_and_a_resumed_one_goes_on(tmp_path):
    run = made(tmp_path)
    for _ in range(3):
        run.iterate()
    run.save()
    run.ahead.close()
    again = made(tmp_path)
    again.resume()
    assert set(again.ahead.schedule._kept) == {1, 2}  # what the iterations in flight began with
    again.train()
    seen = lines(tmp_path)
    assert [row["step"] for row in seen] == list(range(4, ITERATIONS + 1))
    assert max(row["mismatch/engine_gap"] for row in seen) < 1e-6
    ages = {name for row in seen for name in row if name.startswith("lag/decisions_of_")}
    assert ages <= {"lag/decisions_of_0", "lag/decisions_of_1", "lag/decisions_of_2"}


def test_a_policy_that_cannot_change_its_parameters_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.overlap\.interrupt: an answer of TokenPolicy ends"):
        made(tmp_path, policy=TokenPolicy())
