"""`plan_run` and `mmrl plan` on the shipped models: forecasts, refused places, memory that is short, warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.build.policies import estimate_memory
from mmrl.cli import app
from mmrl.cli.plan import _seconds
from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.planning.placement import sweep
from mmrl.planning.plan import Plan, obstacle, plan_run, warnings

SMALL = (
    "data={path: 'shapeworld:development', groups: 4, group_size: 4, micro_batch: 2}",
    "sampling.steps=4",
    "evaluation={}",
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_run(load_config("quickstart", list(SMALL)), 16, assumed={"straggler": 0.0}, repeats=1)


@pytest.mark.slow
def test_more_devices_are_faster_until_the_calls_are_dealt(plan):
    seconds = {each.devices: each.best.seconds.total for each in plan.forecasts}
    assert list(seconds) == [1, 2, 4, 8, 16]
    assert seconds[1] > seconds[2] > seconds[4] > seconds[8]
    assert seconds[16] == pytest.approx(seconds[8], rel=0.1)
    assert plan.forecasts[1].speedup == pytest.approx(seconds[1] / seconds[2])
    assert any("8 of 16 processes have nothing to do: set data.micro_batch to 1" in text for text in plan.warnings)


@pytest.mark.integration
def test_memory_by_place_is_that_of_the_dry_run(plan):
    for forecast in plan.forecasts[1:]:
        expected = plan.memory.bytes_of_processes(forecast.devices, plan.assumptions.parts(forecast.devices))
        assert {each.place: each.memory for each in forecast.places} == expected


@pytest.mark.slow
def test_a_model_that_writes_beside_a_pipeline_is_counted(plan):
    """No configuration file of a pipeline describes it, so the dry run names it, and the plan counts it."""
    beside = "models={reader: {kind: vlm, model: 'shapeworld:vlm-worlds'}}"
    config = load_config("quickstart", [*SMALL, beside])
    found = plan_run(config, 1, repeats=1)
    (reader,) = found.memory.others
    assert found.memory_source.startswith("counted") and reader.name == "reader" and reader.weights > 2**20
    assert found.memory.resident >= plan.memory.resident + reader.weights
    assert any(
        "models that write (reader), which `mmrl plan` counts" in each for each in estimate_memory(config).assumptions
    )


@pytest.mark.integration
def test_strict_is_refused_where_calls_do_not_divide(plan):
    last = {each.place: each for each in plan.forecasts[-1].places}
    assert "needs equally many calls in each of 16 processes" in last["strict"].obstacle
    assert last["replicas"].obstacle is None


@pytest.mark.integration
def test_a_small_device_changes_the_place(plan):
    needed = {each.place: each.memory for each in plan.forecasts[3].places}
    assert needed["strict"] < needed["window"] < needed["replicas"]
    found = sweep(
        plan.measurement.phases, plan.measurement.work, plan.assumptions, 8, plan.memory.bytes_of_processes,
        needed["strict"],
    )  # fmt: skip
    assert found[-1].best.place == "strict" and found[-1].reason == "the only place that can be used"


def test_updates_with_few_calls_are_a_warning():
    config = load_config("quickstart", [*SMALL, "training.updates=4"])
    assert warnings(config, 2) == []
    assert "each of 4 updates has 2 calls, fewer than 4 processes: set data.micro_batch to 1" in warnings(config, 4)[0]
    assert "do not divide evenly over 3 processes" in warnings(load_config("quickstart", list(SMALL)), 3)[0]


def test_obstacles_come_from_the_recipe_and_the_model():
    config = load_config("shapes-vlm", [])
    assert obstacle(config, {}, "replicas", 2) is None
    assert "answers of vlm" in obstacle(config, {}, "strict", 2)
    assert obstacle(config, {"window": "it has no blocks"}, "window", 2) == "it has no blocks"
    assert obstacle(config, {"window": "it has no blocks"}, "window", 1) is None


@pytest.mark.slow
def test_command_prints_tables_and_writes_json(tmp_path: Path):
    file = tmp_path / "plan.json"
    words = ["plan", "shapes-vlm", "data.micro_batch=64", "--gpus", "8", "--repeats", "1", "--bandwidth", "5"]
    result = CliRunner().invoke(app, [*words, "--json", str(file)])
    assert result.exit_code == 0, result.output
    for text in ("rollout", "optimizer", "5 GB/s between devices", "(--straggler)", "replicas", "run.place", "4 of 8"):
        assert text in result.output, text
    assert "- strict on 2, 4, 8: run.place: strict is for diffusion" in result.output
    found = json.loads(file.read_text())
    assert found["assumptions"]["bandwidth"] == 5 and found["workload"]["calls"] == 4
    assert found["memory_source"].startswith("counted")
    assert found["forecasts"][1]["places"]["window"]["memory"] > 0
    assert found["forecasts"][1]["places"]["strict"]["memory"] is None
    assert [each["devices"] for each in found["forecasts"]] == [1, 2, 4, 8]
    alone, two = (each["places"][each["best"]]["seconds"]["total"] for each in found["forecasts"][:2])
    assert alone / two == pytest.approx(found["forecasts"][1]["speedup"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0"], "--gpus: 0 is not a number of devices"),
        (["--repeats", "0"], "--repeats: 0 is not a number of measured calls"),
        (["--memory", "-1"], "--memory: -1.0 GiB is not the memory of a device"),
        (["--json", "no-such-folder/plan.json"], "--json: there is no folder no-such-folder"),
        (["--overlap", "2"], "an overlap is a share in [0, 1]"),
    ],
)
def test_settings_out_of_range_are_refused(words, message):
    result = CliRunner().invoke(app, ["plan", "quickstart", *words])
    assert result.exit_code == 2 and message in result.output, result.output


def test_several_processes_cannot_plan(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        plan_run(load_config("quickstart", list(SMALL)), 2)


def test_seconds_have_three_digits():
    assert (_seconds(1234.5), _seconds(1.234), _seconds(0.01234)) == ("1,234 s", "1.23 s", "12.3 ms")
