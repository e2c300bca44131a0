"""Calculations with a tool: the environment, the careless caller, and the shipped model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mmrl.build.policies import build_policy
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.tool import CallRejected
from mmrl.errors import ConfigError, DataError
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import reasoner_model
from mmrl_shapeworld.reasoning.calculation_calls import (
    GARBLED_LENGTH,
    CalculationCalls,
    calculation_of,
    calculations,
    call_of_text,
    wanted_texts,
)
from mmrl_shapeworld.reasoning.careless_calls import CARELESS_CALLER, RIGHT_CALLER, written_episode

READER = MediaReader(MediaBudget())
LONG = Sample(
    id="a", prompt="3+5*7-2+6*3=", answer=0,
    metadata={"calls": [{"name": "evaluate", "arguments": {"text": text}} for text in ("3+5*7-2", "4+6*3")]},
)  # fmt: skip


def played(*turns: str, sample: Sample = LONG) -> tuple[list[str | None], dict]:
    episode = CalculationCalls().begin(sample, READER)
    steps = [episode.step(turn) for turn in turns]
    return [step.observation and step.observation.text for step in steps], dict(episode.outcome())


def test_two_calls_lead_to_the_answer_of_a_long_calculation():
    seen, outcome = played(call_of_text("3+5*7-2"), call_of_text("4+6*3"), "0")
    assert seen == ["<tool_response>\n4\n</tool_response>", "<tool_response>\n0\n</tool_response>", None]
    assert (outcome["success"], outcome["matched"], outcome["redundant"]) == (True, 1.0, 0.0)
    assert outcome["calls"] == {"evaluate": 2}


def test_a_repeated_call_is_redundant_and_one_that_is_too_long_is_not_carried_out():
    _, outcome = played(call_of_text("3+5*7-2"), call_of_text("3+5*7-2"), call_of_text("4+6*3"), "0")
    assert outcome["redundant"] == pytest.approx(1 / 3) and outcome["success"]
    seen, outcome = played(call_of_text("3+5*7-2+6*3"), "4")
    assert "evaluate was not carried out: too long" in seen[0] and not outcome["success"]


@pytest.mark.parametrize("answer, right", [("0", True), (" 0\n", True), ("0 or 4", False), ("", False), ("10", False)])
def test_the_answer_is_one_digit_alone(answer, right):
    assert played(answer)[1]["success"] is right


def test_an_answer_that_is_no_digit_is_counted_as_none():
    def infos(*turns):
        episode = CalculationCalls().begin(LONG, READER)
        return [episode.step(turn).info for turn in turns]

    assert infos(call_of_text("3+5*7-2"), "0 or 4")[1]["no_answer"] == 1.0
    assert "no_answer" not in infos(" 7\n")[0] and infos(None) == [{"calls": 0.0}]


@pytest.mark.integration
def test_a_share_of_the_results_is_garbled_and_calls_that_are_repeated_may_succeed():
    def seen(garbled, id="a"):
        episode = CalculationCalls(garbled=garbled).begin(replace(LONG, id=id), READER)
        return [episode.step(call_of_text("3+5*7-2")).observation.text for _ in range(4)]

    right = "<tool_response>\n4\n</tool_response>"
    assert seen(0.0) == [right] * 4 and right not in seen(1.0)
    assert seen(0.5) == seen(0.5)
    texts = [text for number in range(50) for text in seen(0.5, str(number))]
    assert 0.4 < np.mean([text == right for text in texts]) < 0.6
    assert any(right in each and set(each) != {right} for each in (seen(0.5, str(number)) for number in range(5)))
    assert {len(text) for text in texts} == {len(right), len(right) + GARBLED_LENGTH - 1}
    with pytest.raises(ConfigError, match="garbled is 2"):
        CalculationCalls(garbled=2)


@pytest.mark.parametrize("text", ["", "3+", "3+0", "33+5", "3/5", "3+5 ", "__import__('os')"])
def test_other_texts_are_no_calculations(text):
    with pytest.raises(CallRejected, match="no calculation"):
        calculation_of(text)


def test_a_sample_of_another_kind_is_named():
    with pytest.raises(DataError, match="shapeworld:calls-train"):
        CalculationCalls().begin(Sample(id="a", prompt="?", answer="cat"), READER)


def test_splits_share_no_calculation_and_demonstrations_succeed():
    drawn = {part: set(map(str, calculations(f"calls-{part}"))) for part in ("train", "development", "validation")}
    assert not drawn["train"] & drawn["validation"] and not drawn["development"] & drawn["validation"]
    for sample in splits.samples("calls-train")[:40]:
        _, outcome = played(*sample.demonstration["turns"], sample=sample)
        assert outcome["success"] and outcome["matched"] == 1.0 and outcome["redundant"] == 0.0
    assert {sample.source for sample in splits.samples("calls-validation")} == {"calls-short", "calls-long"}


@pytest.mark.integration
def test_known_short_calculations_do_not_subtract_and_parts_share_no_prompt():
    parts = ("train", "development", "validation")
    known = {part: splits.samples(f"calls-known-{part}") for part in parts}
    assert [len(known[part]) for part in parts] == [len(splits.samples(f"calls-{part}")) for part in parts]
    short = [each.prompt for part in parts for each in known[part] if each.source == "calls-short"]
    assert not any("-" in prompt for prompt in short) and {prompt[1] for prompt in short} == {"+", "*"}
    long = {part: {each.prompt for each in known[part] if each.source == "calls-long"} for part in parts}
    assert any("-" in prompt for prompt in long["train"]) and not long["train"] & long["validation"]
    decided = {each.prompt for each in splits.samples("calls-validation")}
    assert not long["validation"] & decided and len(long["validation"]) == 256


@pytest.mark.integration
def test_the_careless_caller_has_each_habit_and_the_right_one_none():
    rng = np.random.default_rng(0)
    drawn, pairs = calculations("calls-train"), splits.samples("calls-train")
    environment = CalculationCalls()
    for sample, calculation in zip(pairs[:40], drawn, strict=False):
        turns = written_episode(sample, calculation, RIGHT_CALLER, environment, READER, rng).turns
        assert turns == sample.demonstration["turns"]
    outcomes = []
    for sample, calculation in zip(pairs[:600], drawn, strict=False):
        written = written_episode(sample, calculation, CARELESS_CALLER, environment, READER, rng)
        written.episode.step(written.turns[-1])
        outcomes.append((bool(wanted_texts(calculation)), written.episode.outcome()))
    short = [outcome for is_long, outcome in outcomes if not is_long]
    long = [outcome for is_long, outcome in outcomes if is_long]
    assert 0.4 < np.mean([bool(outcome["calls"]) for outcome in short]) < 0.6
    assert 0.3 < np.mean([not outcome["calls"] for outcome in long]) < 0.45
    assert 0.35 < np.mean([outcome["success"] for outcome in long]) < 0.6
    assert any(outcome["problems"].get("malformed") for _, outcome in outcomes)


@pytest.mark.integration
def test_the_shipped_model_calls_the_tool_carelessly():
    policy = build_policy(
        VLMConfig(model="shapeworld:calls", train="full"),
        TokenSamplingConfig(max_new_tokens=32),
        MediaConfig(),
        EnvironmentConfig(name="shapeworld_calls"),
    )
    chosen = splits.samples("calls-development")[:128]
    with torch.no_grad():
        episodes = policy.rollout([RolloutRequest(each, 1, n) for n, each in enumerate(chosen)], seed=0).episodes
    short, long = episodes[::2], episodes[1::2]
    assert np.mean([each.outcome["success"] for each in short]) > 0.6
    assert 0.08 < np.mean([each.outcome["success"] for each in long]) < 0.35
    assert 0.25 < np.mean([bool(each.outcome["calls"]) for each in short]) < 0.75
    words = reasoner_model.tokenizer(reasoner_model.CALL_PIECES)
    assert len(words(call_of_text("3+5"))["input_ids"]) == 7
