"""Episodes of earlier iterations are trained on again: their turns, their tokens, what the environment shows."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch

from mmrl.errors import RunError
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import EndOfEpisode
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText
from mmrl.training.rollouts.collect import Origin, ScoredRollouts, reward_inputs
from mmrl.training.rollouts.replay_buffer import ReplayReader, SelectiveReplay, SuccessReplay, transcripts_of
from mmrl.training.run.timers import Phases
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.test_turn_training import SAMPLES, Guess, Guessed, source
from tests.understanding.test_turns import EXACT, TEXT_ONLY, WITH_IMAGE, episodes
from tests.understanding.turn_environments import SceneEpisode, Shows


@pytest.fixture
def policy(player) -> VLMPolicy:
    return player("qwen3_vl")


def scored_episodes(policy: VLMPolicy, *kinds: str) -> ScoredRollouts:
    rollout = episodes(policy, *kinds)
    rollout.policy_version -= 1
    suite = RewardSuite([(SeveralTurns(), 1.0)])
    return ScoredRollouts([rollout], [Origin.POLICY], suite.score(reward_inputs(rollout)))


class SeveralTurns(Guessed):
    """1 where the episode had several turns."""

    name, needs = "several_turns", ("outcome.actions", "text")

    def score_one(self, item):
        return float(len(item.outcome["actions"]) > 1)


def reader(policy: VLMPolicy, rows: int = 8) -> ReplayReader:
    known = {sample.id: sample for sample in (WITH_IMAGE, TEXT_ONLY, *SAMPLES)}
    return ReplayReader(policy, known.__getitem__, rows)


@pytest.mark.integration
def test_replayed_episodes_repeat_tokens_observations_and_log_probs(policy):
    scored = scored_episodes(policy, "picture", "text")
    before = scored.rollouts[0]
    kept = transcripts_of(scored, range(before.rows))
    assert {len(each.turns) for each in kept} >= {3} and all(sum(each.turns) == len(each.tokens) for each in kept)
    kept = [type(each).from_dict(json.loads(json.dumps(each.as_dict()))) for each in kept]
    ((again, part),) = reader(policy)(kept, before.group_index.tolist())
    assert part == kept and again.token_ids == before.token_ids
    assert again.policy_version == before.policy_version
    for one, other in zip(again.episodes, before.episodes, strict=True):
        assert one.texts == other.texts and one.outcome == other.outcome and one.end == other.end
        assert [each.text for each in one.observations] == [each.text for each in other.observations]
    assert torch.equal(again.log_probs[again.mask], before.log_probs[before.mask])
    assert torch.equal(again.channel[again.mask], before.channel[before.mask])
    assert policy.replay_gap(again) < EXACT  # the weights are still those that sampled it


def test_replayed_episodes_have_the_temperature_that_they_were_written_at(policy):
    policy.play_in(Shows(("text", "text")))
    hot = RolloutRequest(TEXT_ONLY, 3, 0, start=RowStart("hot", temperature=2.0))
    before = policy.rollout([hot], seed=0)
    suite = RewardSuite([(SeveralTurns(), 1.0)])
    scored = ScoredRollouts([before], [Origin.POLICY], suite.score(reward_inputs(before)))
    ((again, _),) = reader(policy)(transcripts_of(scored, range(3)), [0, 0, 0])
    assert torch.equal(again.log_probs[again.mask], before.log_probs[before.mask])
    assert policy.replay_gap(again) < EXACT


def test_an_episode_that_was_cut_off_is_cut_off_again(policy):
    policy.play_in(Shows(("text",)))
    ends = set(policy.vlm.ends.tolist())
    turns = tuple(n for n in range(40, 60) if n not in ends)[:5]
    rollout = policy.score_targets([TargetText(TEXT_ONLY, "", 0, turn_tokens=(turns,))])
    assert rollout.token_ids == [list(turns)] and rollout.episodes[0].end is EndOfEpisode.CUT_OFF


def test_an_environment_that_ends_earlier_than_before_is_an_error(policy):
    kept = transcripts_of(scored := scored_episodes(policy, "text", "text"), range(scored.rollouts[0].rows))
    longest = max(kept, key=lambda each: len(each.turns))
    policy.play_in(Shows(("text",)))
    with pytest.raises(RunError, match="cannot be replayed unless its environment answers equal actions equally"):
        reader(policy)([longest], [0])


def test_an_episode_that_breaks_down_is_left_out(policy):
    kept = transcripts_of(scored := scored_episodes(policy, "text", "text"), range(scored.rollouts[0].rows))
    long = [each for each in kept if len(each.turns) == 3]
    short = replace(long[0], turns=long[0].turns[:1], tokens=long[0].turn_tokens[0])
    short = replace(short, log_probs=short.log_probs[: len(short.tokens)])

    class BreaksLate(SceneEpisode):
        def step(self, action):
            if self.actions:
                raise OSError("no answer")
            return super().step(action)

    class Late(Shows):
        def begin(self, sample, reader):
            return BreaksLate(self.kinds)

    policy.play_in(Late(("text", "text")))
    ((rollout, part),) = reader(policy)([long[0], short, long[0]], [0, 1, 2])
    assert part == [short] and rollout.group_index.tolist() == [1]
    assert reader(policy)([long[0]], [0]) == []


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["selective", "success"])
def test_replay_of_episodes_resumes_exactly(new_player, kind):
    policy = new_player("qwen3_vl")
    policy.play_in(Guess())

    def made():
        buffer = SelectiveReplay(64, 1.0, seed=0) if kind == "selective" else SuccessReplay(1.0, 4, seed=0)
        return source(policy, replay=buffer, group_size=2)

    straight, replayed = made(), 0.0
    for iteration in range(4):
        replayed += straight.collect(iteration, 0.0, Phases()).metrics["replay/rows"]
        policy.version += 1
    resumed = made()
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for iteration in range(4, 7):
        one, other = (each.collect(iteration, 0.0, Phases()) for each in (straight, resumed))
        replayed += one.metrics["replay/rows"]
        assert one.metrics == other.metrics
        for left, right in zip(one.micro_batches, other.micro_batches, strict=True):
            assert left.rollout.token_ids == right.rollout.token_ids
            assert torch.equal(left.step_advantages, right.step_advantages)
            assert torch.equal(left.rollout.log_probs, right.rollout.log_probs)
        policy.version += 1
    assert replayed > 0


@pytest.mark.integration
def test_a_past_success_mends_a_group_of_episodes(new_player):
    policy = new_player("qwen3_vl")
    policy.play_in(Guess())
    mending = source(policy, replay=SuccessReplay(1.0, 4, seed=0), group_size=2)
    mended = 0
    for iteration in range(6):
        found = mending.collect(iteration, 0.0, Phases())
        for batch in found.micro_batches:
            if batch.rollout.policy_version < policy.version:
                assert all(episode.outcome["right"] for episode in batch.rollout.episodes)
                assert (batch.advantages > 0).all()
                mended += batch.rollout.rows
        policy.version += 1
    assert mended > 0


@pytest.mark.integration
def test_the_wave_that_is_answered_first_is_written_next(policy):
    class Waits(SceneEpisode):
        def __init__(self, kinds, seconds):
            super().__init__(kinds)
            self.seconds = seconds

        def step(self, action):
            time.sleep(self.seconds)
            order.append(self.seconds)
            return super().step(action)

    class SlowFor(Shows):
        def __init__(self, slow):
            super().__init__(("text", "text"))
            self.slow = slow

        def begin(self, sample, reader):
            return Waits(self.kinds, 0.4 if sample.id == self.slow else 0.0)

    requests = [RolloutRequest(sample, 3, group) for group, sample in enumerate((WITH_IMAGE, TEXT_ONLY))]
    found = []
    for slow in (WITH_IMAGE.id, ""):
        order: list[float] = []
        policy.play_in(SlowFor(slow), waves=2)
        rollout = policy.rollout(requests, seed=0)
        found.append(rollout.token_ids)
        if slow:
            assert (
                order.index(0.4) > 3
            )  # the three rows of the second wave have had their first turn, and a further one
    assert found[0] == found[1]
