"""Episodes with an empty turn count in the baseline, and are not trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.rollout import EndOfEpisode
from mmrl.training.rollouts.turn_filter import TurnFilter
from mmrl.training.run.timers import Phases
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.test_turn_training import Guess, collect, source


@pytest.fixture
def policy(player) -> VLMPolicy:
    player("qwen3_vl").play_in(Guess())
    return player("qwen3_vl")


@pytest.mark.integration
def test_episodes_with_an_empty_turn_are_not_trained_on(policy):
    whole, filtered = collect(source(policy)), collect(source(policy, turn_filter=TurnFilter({"length": 3.0})))
    kept = 0
    for before, after in zip(whole, filtered, strict=True):
        lengths = [episode.info[0].get("length", 9.0) for episode in before.rollout.episodes]
        cut = [episode.end is EndOfEpisode.CUT_OFF for episode in before.rollout.episodes]
        stay = [row for row, (n, over) in enumerate(zip(lengths, cut, strict=True)) if n >= 3 and not over]
        assert 0 < len(stay) < before.rollout.rows
        assert after.rollout.token_ids == [before.rollout.token_ids[row] for row in stay]
        torch.testing.assert_close(after.advantages, before.advantages[stay])  # relative to all rows of the group
        kept += len(stay)
    metrics = source(policy, turn_filter=TurnFilter({"length": 3.0})).collect(0, 0.0, Phases()).metrics
    assert metrics["turn_filter/share"] == pytest.approx(1 - kept / 16)


@pytest.mark.parametrize(
    ("filter", "turns", "end", "empty"),
    [
        (TurnFilter(below={"valid": 0.5}), [{"valid": 1.0}, {"valid": 0.0}], EndOfEpisode.OVER, True),
        (TurnFilter(below={"valid": 0.5}), [{"valid": 1.0}, {}], EndOfEpisode.OVER, False),
        (TurnFilter(above={"malformed": 0}), [{"calls": 1.0}, {"malformed": 1.0}], EndOfEpisode.OVER, True),
        (TurnFilter(above={"malformed": 0}), [{"calls": 1.0}], EndOfEpisode.CONTEXT, False),
        (TurnFilter(), [{}], EndOfEpisode.CUT_OFF, True),
        (TurnFilter(below={"valid": 0.5}, cut_off=False), [{"valid": 1.0}], EndOfEpisode.CUT_OFF, False),
    ],
)
def test_a_turn_is_empty_by_what_was_measured(policy, filter, turns, end, empty):
    rollout = collect(source(policy))[0].rollout.select([0])
    rollout.episodes = [replace(rollout.episodes[0], info=tuple(turns), end=end)]
    assert filter.empty_rows(rollout).tolist() == [empty]


def test_a_filter_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="no turn is empty"):
        load_config("shapes-vlm", ["environment={tools: [{name: crop}]}", "data.turn_filter={cut_off: false}"])
