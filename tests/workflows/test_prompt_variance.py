"""Prompts are kept by the variance of the rewards of their answers, before any training."""

from __future__ import annotations

import json

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
from mmrl.workflows.prompt_variance import reward_variances, varied_prompts

KEYS = ["data.validation=null", "evaluation={}", "sampling.max_new_tokens=12", "data.groups=4"]


def three() -> list[Sample]:
    """Return two prompts whose answers no one writes, and one that is answered rightly now and then."""
    return [Sample(id, prompt="1+1=", answer=answer) for id, answer in (("never", 77), ("some", 2), ("no", 78))]


def test_variance_by_hand():
    """0, 1, 1, 0: 1/4. Three equal: 0. Of 0.2, 0.8 and NaN: 0.09. One alone: NaN."""
    totals = np.array([[0, 1, 1, 0], [0.5, 0.5, 0.5, np.nan], [0.2, 0.8, np.nan, np.nan], [1, np.nan, np.nan, np.nan]])
    found = reward_variances(totals.astype(np.float32))
    assert found[:3].tolist() == pytest.approx([0.25, 0.0, 0.09], abs=1e-6) and np.isnan(found[3])


@given(st.integers(0, 1000), st.floats(-5, 5))
def test_neither_order_nor_a_shift_matters_and_numpy_agrees(seed, shift):
    rng = np.random.default_rng(seed)
    totals = rng.uniform(0, 1, (3, 6)).astype(np.float32)
    found = reward_variances(totals)
    assert found == pytest.approx(totals.astype(np.float64).var(axis=1))
    assert reward_variances(rng.permutation(totals + np.float32(shift), axis=1)) == pytest.approx(found, abs=1e-5)


def test_what_is_always_or_never_solved_goes(tmp_path):
    write_samples(three(), tmp_path / "three.jsonl")
    config = load_config("shapes-reasoning", [*KEYS, f"data.path={tmp_path}/three.jsonl"])
    found = varied_prompts(config, answers=12, share=1.0)
    assert [each.id for each in found.kept] == ["some"]
    assert found.variances["never"] == found.variances["no"] == 0 < found.variances["some"] <= 0.25


def test_what_cannot_be_chosen_is_refused(tmp_path):
    write_samples(three()[:1], tmp_path / "one.jsonl")
    config = load_config("shapes-reasoning", [*KEYS, f"data.path={tmp_path}/one.jsonl"])
    with pytest.raises(ConfigError, match="the rewards of no prompt differ between its answers"):
        varied_prompts(config, answers=2, share=0.5)
    for answers, share in ((1, 0.5), (2, 0.0), (2, 1.5)):
        with pytest.raises(ConfigError, match="a variance needs 2 answers or more, and the share"):
            varied_prompts(config, answers, share)
    imitation = load_config("shapes-reasoning", [*KEYS, "algorithm={name: sft}", "rewards=[]"])
    with pytest.raises(ConfigError, match="sft samples no answers"):
        varied_prompts(imitation, answers=2, share=0.5)


@pytest.mark.integration
def test_the_command_writes_what_training_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [{"id": each.id, "prompt": each.prompt, "answer": each.answer} for each in three()]
    (tmp_path / "all.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = CliRunner().invoke(
        app,
        ["data", "select", "shapes-reasoning", *KEYS, "data.path=all.jsonl", "--answers", "12", "--out", "some.jsonl"],
    )
    assert done.exit_code == 0, done.output
    assert "some.jsonl: 1 of 3 prompts stay, those with the largest variance of rewards; 2 have none" in done.output
    assert [sample.id for sample in read_samples("some.jsonl")] == ["some"]
