"""Chains of calculations: their splits, what ends an episode, and which chains the model solves sometimes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.workflows.prompt_filter import filter_prompts
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning.calculation_chains import LENGTH, NAMES, PARTS, SOLVED, TRAINING, CalculationChains

CHAINS = [
    "environment={name: 'mmrl_shapeworld.reasoning.calculation_chains:CalculationChains'}",
    "data.path=shapeworld:chains-train",
    "data.validation=null",
    "evaluation={}",
    "rewards=[{name: outcome, args: {key: success}}]",
    "sampling.max_new_tokens=24",
]


def begun(sample: Sample):
    return CalculationChains().begin(sample, None)


def test_no_calculation_is_in_two_splits():
    found = {name: splits.samples(name) for name in NAMES}
    sizes = {part: len(found[f"chains-{part}"]) for part in PARTS}
    assert sizes == {part: size for part, (_, size) in PARTS.items()}
    prompts = {
        part: {text for sample in found[f"chains-{part}"] for text in sample.answer["calculations"]} for part in PARTS
    }
    training = set.union(*(prompts.pop(part) for part in TRAINING))
    assert not training & set.union(*prompts.values()) and not prompts["development"] & prompts["validation"]
    assert {sample.source for sample in found["chains-validation"]} == {"chains-short"}


def test_no_chain_of_training_is_in_both_splits_for_it():
    chains = [{tuple(each.answer["calculations"]) for each in splits.samples(f"chains-{part}")} for part in TRAINING]
    assert not chains[0] & chains[1]


@pytest.mark.parametrize(("solved", "whole"), SOLVED.items())
def test_solved_chains_are_some_of_those_of_training(solved, whole):
    training = {sample.id: sample for sample in splits.samples(whole)}
    found = splits.samples(solved)
    assert 0 < len(found) < len(training) and all(training[each.id] == each for each in found)


def test_right_answers_lead_on_and_a_wrong_one_ends():
    sample = splits.samples("chains-train")[0]
    first, second = sample.answer["answers"]
    episode = begun(sample)
    step = episode.step(f"<think></think>{first}")
    assert step.observation.text == sample.answer["calculations"][1] and step.info == {"right": 1.0, "valid": 1.0}
    assert episode.step(str(second)).observation is None
    assert episode.outcome() == {"success": True, "progress": 1.0, "ended": "success"}
    for wrong, valid in ((f"{(first + 1) % 10}", 1.0), ("none", 0.0)):
        episode = begun(sample)
        assert episode.step(wrong).info == {"right": 0.0, "valid": valid}
        assert episode.outcome() == {"success": False, "progress": 0.0, "ended": "wrong"}
    episode = begun(sample)
    assert episode.step(None).observation is None and episode.outcome()["ended"] == "cut_off"
    with pytest.raises(ValueError, match="the episode is over"):
        episode.step("1")
    assert len(sample.answer["answers"]) == LENGTH == CalculationChains.max_turns


def test_other_samples_are_refused():
    with pytest.raises(DataError, match="no chain of calculations: take shapeworld:chains-train"):
        CalculationChains().begin(Sample("a", prompt="1+1=", answer=2), MediaReader)


@pytest.mark.integration
def test_the_filter_keeps_prompts_that_are_solved_sometimes(tmp_path):
    first = [Sample(f"{n}", prompt="1+1=", answer={"calculations": ["1+1="], "answers": [n]}) for n in (2, 3, 77)]
    write_samples(first, tmp_path / "three.jsonl")
    config = load_config("shapes-reasoning", [*CHAINS, f"data.path={tmp_path}/three.jsonl", "data.groups=3"])
    found = filter_prompts(config, answers=12)
    assert found.rates["77"] == 0 and found.rates["2"] > 0 and found.unscored == 0
    assert {each.id for each in found.kept} == {id for id, rate in found.rates.items() if 0 < rate < 1}
    assert found.never + found.always + len(found.kept) == len(found.rates)
    assert [each for each in found.kept] == [sample for sample in first if sample in found.kept]
    with pytest.raises(ConfigError, match="of no prompt is the share of good answers above 0 and below 1"):
        filter_prompts(config, answers=1, success=2.0)
    with pytest.raises(ConfigError, match="nothing lies between them"):
        filter_prompts(config, answers=2, above=0.5, below=0.5)


@pytest.mark.integration
def test_the_command_writes_what_training_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        {"id": "easy", "prompt": "1+1=", "answer": {"calculations": ["1+1="], "answers": [2]}},
        {"id": "never", "prompt": "1+1=", "answer": {"calculations": ["1+1="], "answers": [77]}},
    ]
    (tmp_path / "all.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = CliRunner().invoke(
        app,
        ["data", "filter", "shapes-reasoning", *CHAINS, "data.path=all.jsonl", "data.groups=2", "--answers", "16",
         "--below", "1.5", "--out", "some.jsonl"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "some.jsonl: 1 of 2 prompts stay; 1 are solved too rarely, 0 too often" in done.output
    assert [sample.id for sample in read_samples("some.jsonl")] == ["easy"]
