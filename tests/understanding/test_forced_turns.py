"""First turns that are forced: the same trajectory as with own turns, and no decision among their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.environments import Step
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText
from mmrl.understanding.vlm_replay import TokenRecording
from tests.understanding.media import as_png, picture
from tests.understanding.test_turns import gradient
from tests.understanding.turn_environments import SceneEpisode, Shows

EXACT = 2e-5
PICTURED = Sample("shown", prompt="What is it?", images=(as_png(picture(1)),))
ANOTHER = Sample("another", prompt="Two and two?")
KINDS = ("picture", "text", "picture")
FAMILIES = [
    "qwen3_vl",
    *(pytest.param(name, marks=pytest.mark.breadth) for name in ("qwen2_5_vl", "smolvlm", "gemma3", "llava")),
]


@dataclass
class Begins(Shows):
    """Begins the episodes of one sample with these turns."""

    turns: tuple[str, ...] = ("ab", "c")
    sample_id: str = PICTURED.id

    def first_turns(self, sample: Sample) -> tuple[str, ...]:
        return self.turns if sample.id == self.sample_id else ()


def rollout(policy, environment, n=3, seed=0, start=None, **settings):
    policy.play_in(environment, **settings)
    requests = [RolloutRequest(PICTURED, n, 0, start), RolloutRequest(ANOTHER, n, 1, start)]
    return policy.rollout(requests, seed)


@pytest.mark.integration
@pytest.mark.parametrize("name", FAMILIES)
def test_a_forced_row_is_the_end_of_the_same_trajectory(player, name):
    policy = player(name)
    found = rollout(policy, Begins(KINDS))
    assert policy.replay_gap(found) < EXACT and policy.replay_gap(found.select([4, 1])) < EXACT
    first = [episode.outcome["actions"][:2] for episode in found.episodes]
    assert first[:3] == [["ab", "c"]] * 3 and first[3] != ["ab", "c"]
    assert [[text for text, _ in episode.forced] for episode in found.episodes] == [["ab", "c"]] * 3 + [[]] * 3
    assert all(len(episode.texts) == len(episode.outcome["actions"]) - 2 for episode in found.episodes[:3])
    assert {event.turn for episode in found.episodes[:3] for event in episode.events} <= {0, 1}

    policy.play_in(Shows(KINDS))
    whole = policy.score_targets([TargetText(PICTURED, "", 0, turns=("ab", "c", "d"))])
    assert found.recording.continuation(0).tokens.tolist() == found.token_ids[0]
    forced = sum(len(policy.vlm.encode(text)) + 1 for text in ("ab", "c"))
    tokens = torch.tensor([[*whole.token_ids[0][:forced], *found.token_ids[0][: found.recording.lengths[0]]]])
    later = [type(each)(each.after + forced, each.observation) for each in found.recording.observed[0]]
    same = TokenRecording(
        whole.recording.prompts, [0], tokens, [tokens.shape[1]], 0.8, ((*whole.recording.observed[0][:2], *later),)
    )
    as_forced = found.select([0]).recording
    with torch.enable_grad():
        own, end = policy._score(as_forced)[0][0], policy._score(same)[0][0, forced:]
        own = own[: len(end)]
        torch.testing.assert_close(own, end, atol=EXACT, rtol=0)
        weights = torch.linspace(-1, 1, len(end))
        expected, of_forced = (gradient(policy, (each * weights).sum()) for each in (end, own))
    assert expected.norm() > 0.1 and (of_forced - expected).norm() < 1e-4 * expected.norm()


def test_targets_follow_forced_turns(player):
    policy = player("qwen3_vl")
    policy.play_in(Shows(KINDS))
    forced = policy.score_targets([TargetText(PICTURED, "d", 0, start=RowStart(turns=("ab", "c")))])
    whole = policy.score_targets([TargetText(PICTURED, "", 0, turns=("ab", "c", "d"))])
    assert forced.episodes[0].texts == ("d",) and policy.replay_gap(forced) < EXACT
    torch.testing.assert_close(
        forced.log_probs[0], whole.log_probs[0, -forced.log_probs.shape[1] :], atol=EXACT, rtol=0
    )


@pytest.mark.integration
def test_waves_and_prefixes_change_nothing_about_forced_turns(player):
    policy = player("qwen3_vl")
    plain = rollout(policy, Begins(KINDS), start=RowStart(prefix="d"))
    waves = rollout(policy, Begins(KINDS), start=RowStart(prefix="d"), waves=2)
    for found in (plain, waves):
        assert policy.replay_gap(found) < EXACT
        assert all(episode.texts[0].startswith("d") for episode in found.episodes)
        assert [episode.outcome["actions"][:2] == ["ab", "c"] for episode in found.episodes] == [True] * 3 + [False] * 3
    ids = [found.recording.prompts[0].inputs["input_ids"].tolist() for found in (plain, waves)]
    assert ids[0] == ids[1] and ids[0][0][-1:] == policy.vlm.encode("d")


def test_an_environment_that_ends_at_a_forced_turn_is_an_error(player):
    policy = player("qwen3_vl")
    with pytest.raises(DataError, match="sample 'shown': the environment ended the episode at forced turn 2 of 2"):
        rollout(policy, Begins(("text",)))
    with pytest.raises(DataError, match=r"sample 'shown': after 2 forced turns its prompt has .* in a context of 40"):
        rollout(policy, Begins(KINDS), context_tokens=40)


class _Breaking(SceneEpisode):
    broken = 0

    def step(self, action: str | None) -> Step:
        if not self.actions:
            type(self).broken += 1
            if type(self).broken == 2:  # the second row that begins
                raise RuntimeError("no answer")
        return super().step(action)


class BreaksEarly(Begins):
    """Breaks down at the first action of one row."""

    def begin(self, sample, reader):
        return _Breaking(self.kinds)


def test_a_row_that_breaks_down_at_a_forced_turn_is_void(player):
    policy = player("qwen3_vl")
    found = rollout(policy, BreaksEarly(KINDS))
    assert [episode.void for episode in found.episodes[:3]].count("error") == 1
    assert policy.replay_gap(found) < EXACT and all(episode.texts for episode in found.episodes)
