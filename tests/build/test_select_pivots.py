"""Pivots: a policy acts once at every step of every trace, and steps of mixed success are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sources import load_source
from mmrl.environments import build_environment
from mmrl.environments.recorded_steps import each_step
from mmrl.errors import ConfigError
from mmrl.workflows.select_pivots import StepRates, measure_steps, write_pivots
from mmrl_shapeworld import splits

SETTINGS = ("environment={name: recorded}", "rewards=[{name: outcome, args: {key: success}}]", "data.group_size=2",
            "data.groups=2", "sampling.max_new_tokens=8", "data.path=traces.jsonl", "data.validation=null",
            "evaluation={}")  # fmt: skip


@pytest.fixture
def traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = splits.samples("screens-careless-development")[:2]
    write_samples(found, "traces.jsonl")
    return found


def test_steps_of_mixed_success_are_kept_with_their_rate(traces):
    steps = each_step(traces[0])
    rates = [0.0, 0.25, 0.75, 1.0, 0.5, 0.0]
    kept = StepRates(steps, tuple(rates[: len(steps)])).pivots(0.6)
    assert [each.metadata["success_rate"] for each in kept] == [0.25, 0.5]
    write_pivots(kept, Path("pivots.jsonl"))
    again = load_source("pivots.jsonl")
    environment = build_environment(load_config("shapes-vlm", list(SETTINGS)).environment)
    assert [len(environment.first_turns(each)) for each in again] == [1, 4]
    assert environment.first_turns(again[1]) == tuple(traces[0].demonstration["turns"][:4])


@pytest.mark.slow
def test_every_step_is_tried(traces):
    measured = measure_steps(load_config("shapes-vlm", list(SETTINGS)))
    assert [step.metadata["start"] for step in measured.steps] == [
        start for trace in traces for start in range(len(trace.metadata["steps"]))
    ]
    assert set(measured.rates) == {0.0}  # the shipped model answers with boxes
    done = CliRunner().invoke(app, ["data", "pivots", "shapes-vlm", "pivots.jsonl", *SETTINGS])
    assert done.exit_code == 1 and "not written" in done.output and not Path("pivots.jsonl").exists()


def test_another_environment_has_no_steps(traces):
    config = load_config("shapes-vlm", [*SETTINGS, "environment={name: tools, tools: [{name: crop}]}"])
    with pytest.raises(ConfigError, match="steps of recorded traces"):
        measure_steps(config)
