"""Demonstrations of calls: real ones are episodes to the right answer, stitched ones call the tool for each step."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import call_traces
from mmrl_shapeworld.reasoning.calculation_calls import CalculationCalls, calculation_of, call_of_text

READER = MediaReader(MediaBudget())


def outcomes(split, count=200):
    found = []
    for sample in splits.samples(split)[:count]:
        episode = CalculationCalls().begin(sample, READER)
        turns = sample.demonstration["turns"]
        steps = [episode.step(turn) for turn in turns]
        assert [step.observation is None for step in steps] == [False] * (len(turns) - 1) + [True]
        found.append((sample.source, episode.outcome()))
    return found


def calls(found, source):
    return float(np.mean([sum(outcome["calls"].values()) for kind, outcome in found if kind == source]))


@pytest.mark.integration
@pytest.mark.parametrize(
    "split", [pytest.param(name, marks=[pytest.mark.slow] * (name == "calls-real-train")) for name in call_traces.NAMES]
)
def test_traces_are_episodes_with_the_right_answer_and_have_the_prompts_of_training(split):
    assert all(outcome["success"] for _, outcome in outcomes(split))
    own = [(each.prompt, each.answer) for each in splits.samples(split)]
    assert own == [(each.prompt, each.answer) for each in splits.samples("calls-train")]


def test_a_stitched_trace_calls_the_tool_for_each_step_as_long_as_there_are_turns():
    turns = call_traces.stitched_turns(calculation_of("3+5*7-2+6*3"), 5)
    assert turns == [*map(call_of_text, ("3+5", "8*7", "6-2", "4+6")), "0"]
    assert call_traces.stitched_turns(calculation_of("9-1"), 5) == [call_of_text("9-1"), "8"]


@pytest.mark.slow
def test_real_traces_have_repairs_and_fewer_calls():
    real, stitched = (outcomes(split) for split in (call_traces.REAL, call_traces.STITCHED))
    assert any(outcome["problems"] for _, outcome in real) and not any(outcome["problems"] for _, outcome in stitched)
    for source in ("calls-short", "calls-long"):
        assert calls(real, source) < calls(stitched, source) - 0.2
    matched = [np.mean([outcome["matched"] for _, outcome in found]) for found in (real, stitched)]
    assert matched[0] > matched[1]


def test_an_unknown_split_is_named():
    with pytest.raises(KeyError, match="calls-real-train"):
        call_traces.samples("calls-other-train")
