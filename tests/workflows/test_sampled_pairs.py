"""A policy's right and wrong answers become pairs, and tell how difficult their prompts are."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.workflows.sampled_pairs import matched, sampled_pairs

KEYS = ["data.validation=null", "evaluation={}", "sampling.max_new_tokens=12", "data.groups=4"]


@pytest.fixture
def three(tmp_path, monkeypatch) -> list[str]:
    """Write two prompts whose answers no one writes around one that is answered rightly now and then."""
    monkeypatch.chdir(tmp_path)
    write_samples(
        [Sample(id, prompt="1+1=", answer=answer) for id, answer in (("never", 77), ("some", 2), ("no", 78))],
        "three.jsonl",
    )
    return [*KEYS, "data.path=three.jsonl"]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_matches_by_hand():
    assert matched([], ["b"], 15, rng()) == matched(["a"], [], 15, rng()) == []
    assert sorted(matched(["a"], ["x", "y", "z"], 15, rng())) == [("a", "x"), ("a", "y"), ("a", "z")]
    assert sorted(chosen for chosen, _ in matched(["a", "b", "c"], ["x"], 15, rng())) == ["a", "b", "c"]
    assert len(matched(["a"], ["x", "y", "z"], 2, rng())) == 2
    assert matched(["a", "a"], ["x", "x"], 15, rng()) == [("a", "x")]  # equal pairs teach nothing twice
    assert matched(["a"], ["a", "x"], 15, rng()) == [("a", "x")]  # a reward found "a" right and wrong


@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 9))
def test_every_answer_is_in_a_pair_and_all_equally_often(seed, rights, wrongs):
    right, wrong = [f"r{n}" for n in range(rights)], [f"w{n}" for n in range(wrongs)]
    pairs = matched(right, wrong, 15, np.random.default_rng(seed))
    assert len(pairs) <= max(rights, wrongs) and len(set(pairs)) == len(pairs)
    for side, texts in enumerate((right, wrong)):
        times = Counter(pair[side] for pair in pairs)
        assert set(times) <= set(texts)
        if len(pairs) == max(rights, wrongs):  # no two were equal
            assert set(times) == set(texts) and max(times.values()) - min(times.values()) <= 1


@pytest.mark.integration
def test_pairs_are_right_and_wrong_answers_of_the_policy(three):
    config = load_config("shapes-reasoning", three)
    found = sampled_pairs(config, answers=12)
    assert found.paired == 1 and {pair.answer for pair in found.pairs} == {2}
    assert [pair.id for pair in found.pairs] == [f"some-pair-{n}" for n in range(len(found.pairs))]
    texts, totals = found.answered.texts[1], found.answered.totals[1]
    assert found.answered.totals.shape == (3, 12) and 0 < totals.sum() < 12
    right = {text for text, total in zip(texts, totals, strict=True) if total == 1}
    wrong = {text for text, total in zip(texts, totals, strict=True) if total == 0}
    assert {pair.chosen for pair in found.pairs} <= right and {pair.rejected for pair in found.pairs} <= wrong
    assert sampled_pairs(config, answers=12).pairs == found.pairs
    assert len(sampled_pairs(config, answers=12, most=1).pairs) == 1


def test_what_makes_no_pairs_is_refused(three):
    config = load_config("shapes-reasoning", three)
    with pytest.raises(ConfigError, match="no prompt has both a right and a wrong answer"):
        sampled_pairs(config, answers=2, success=2.0)
    for answers, most in ((1, 15), (2, 0)):
        with pytest.raises(ConfigError, match="a pair needs 2 answers, and --most is 1 or more"):
            sampled_pairs(config, answers, most)
    with pytest.raises(ConfigError, match="mpo samples no answers"):
        sampled_pairs(load_config("shapes-reasoning", [*three, "algorithm={name: mpo}", "rewards=[]"]), answers=2)
    with pytest.raises(ConfigError, match="several turns, and a pair one text a side"):
        sampled_pairs(load_config("shapes-calls", ["data.validation=null", "evaluation={}"]), answers=2)


@pytest.mark.integration
def test_the_command_writes_both_stages_of_a_cascade(three):
    keys = ["--answers", "12", "--out", "pairs.jsonl", "--online", "medium.jsonl", "--above", "0", "--below", "1"]
    done = CliRunner().invoke(app, ["data", "pairs", "shapes-reasoning", *three, *keys])
    assert done.exit_code == 0, done.output
    pairs = read_samples("pairs.jsonl")
    assert f"pairs.jsonl: {len(pairs)} pairs of 1 of 3 prompts" in done.output
    assert "medium.jsonl: 1 prompts, of which 2 are too hard, 0 too easy" in done.output
    assert [sample.id for sample in read_samples("medium.jsonl")] == ["some"]
    assert all(isinstance(pair.chosen, str) and pair.chosen != pair.rejected for pair in pairs)
    first = json.loads(Path("medium.jsonl").read_text())
    assert "chosen" not in first and first["answer"] == 2


@pytest.mark.integration
def test_bounds_without_a_prompt_between_them_cost_no_pairs(three):
    def run(above: str, below: str):
        keys = [
            "--answers",
            "12",
            "--out",
            "pairs.jsonl",
            "--online",
            "medium.jsonl",
            "--above",
            above,
            "--below",
            below,
        ]
        return CliRunner().invoke(app, ["data", "pairs", "shapes-reasoning", *three, *keys])

    assert run("0.8", "0.2").exit_code != 0 and not Path("pairs.jsonl").exists()  # nothing was answered
    assert run("0.98", "0.99").exit_code != 0
    assert read_samples("pairs.jsonl") and not Path("medium.jsonl").exists()
