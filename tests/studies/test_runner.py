"""Studies on the shipped model with tiny arms: real processes, a cache, and a kill in the middle."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from mmrl.errors import ConfigError, EvaluationError, RunError
from mmrl.evaluation.results import evaluation_steps
from mmrl.evaluation.run_reader import read_run
from mmrl.studies import runner
from mmrl.studies.arm_cache import files_of, find_arm
from mmrl.studies.measures import sampled_rows
from mmrl.studies.runner import PILOT, StudyOptions, arm_config, bill, collect, plan_jobs, run_study
from mmrl.studies.study import load_study
from mmrl.studies.study_display import PlainStudyDisplay
from mmrl.studies.study_result import RESULT, StudyResult
from tests.training.fork_server import ForkServer

STUDY = """\
paper: {key: tiny, title: Tiny}
claim: {text: "learning beats standing still", test: with > without}
recipe: quickstart
common: {data.groups: 2, data.group_size: 4, sampling.steps: 3, evaluation.prompts: 6, evaluation.batch: 6,
         evaluation.diversity_prompts: 0, data.heldout: null, run.pictures: 0}
arms:
  with: {optimizer.lr: 1.0e-4}
  without: {optimizer.lr: 1.0e-8}
decide: {metric: shapeworld}
budget: {rows: 16}
seeds: {first: 1}
"""


class SilentDisplay(PlainStudyDisplay):
    """A display that keeps its lines."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


def write(folder: Path, name: str, text: str = STUDY) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def forked_arms(fork_server: ForkServer) -> Iterator[None]:
    """Arms fork from a process that has imported everything; those of the killed study start as a user's do."""
    forked = SimpleNamespace(**vars(subprocess) | {"Popen": fork_server.popen})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "subprocess", forked)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory, forked_arms) -> tuple[Path, StudyResult]:
    """A study of two arms that has run."""
    folder = tmp_path_factory.mktemp("studies")
    study = load_study(write(folder, "first"))
    return folder, run_study(study, StudyOptions(root=folder / "runs", jobs=2), SilentDisplay())


@pytest.mark.integration
def test_result_holds_the_raw_values(finished):
    folder, result = finished
    saved = StudyResult.load(folder / "runs" / "first" / RESULT)
    measured = saved.measures["shapeworld on validation"]
    assert measured.matrix("with").shape == (6, 1)
    assert set(measured.values) == {"with", "without", "base"}
    assert saved.claims[0].contrasts[0].mean == pytest.approx(
        (measured.matrix("with") - measured.matrix("without")).mean(), abs=1e-5
    )
    assert result.arms["with"].iterations == 2
    assert result.arms["with"].rows == 16
    assert (folder / "runs" / "first" / "first.md").read_text().startswith("# Tiny: ")


def test_rows_of_an_arm_are_those_that_were_sampled():
    assert sampled_rows([{"draws/rows": 96.0}, {"reward/total": 1.0}, {"draws/rows": 64.0}], planned=64) == 224


@pytest.mark.integration
def test_two_studies_share_an_arm(finished):
    folder, _ = finished
    other = STUDY.replace("optimizer.lr: 1.0e-8", "optimizer.lr: 3.0e-4")
    display = SilentDisplay()
    run_study(load_study(write(folder, "second", other)), StudyOptions(root=folder / "runs"), display)
    assert "with, seed 0: trained already" in display.lines
    assert [line for line in display.lines if "started" in line] == ["without, seed 0: started, 2 iterations"]


@pytest.mark.integration
def test_inference_arms_share_a_run_and_differ(finished):
    folder, _ = finished
    text = STUDY.replace("without: {optimizer.lr: 1.0e-8}", "without: {optimizer.lr: 1.0e-4, inference.rlg: 0}")
    text = text.replace("with > without", "without = base within 0.000001")
    display = SilentDisplay()
    result = run_study(load_study(write(folder, "third", text)), StudyOptions(root=folder / "runs"), display)
    assert result.verdict == "holds"  # strength 0 is the base, to the bit
    assert len(list((folder / "runs" / "arms").iterdir())) <= 3


@pytest.mark.slow
def test_inference_arms_may_be_guided_by_a_reward(finished):
    folder, _ = finished
    text = STUDY.replace("without: {optimizer.lr: 1.0e-8}", "guided: {optimizer.lr: 1.0e-4, inference.guide."
                         "shapeworld_clip: 3}").replace("with > without", "guided > with")  # fmt: skip
    text = text.replace("data.heldout: null", "data.heldout: null, evaluation.rewards: [shapeworld_clip]")
    text = text.replace("metric: shapeworld", "metric: shapeworld_clip")
    result = run_study(load_study(write(folder, "guided", text)), StudyOptions(root=folder / "runs"), SilentDisplay())
    assert result.claims[0].contrasts[0].mean > 0


def test_sigterm_to_a_study_ends_its_arms(tmp_path, monkeypatch):
    started = []

    class Terminated(SilentDisplay):
        def update(self, name, run):
            os.kill(os.getpid(), signal.SIGTERM)

    def start(job, begin=runner._start):
        started.append(begin(job))
        return started[-1]

    monkeypatch.setattr(runner, "_start", start)
    with pytest.raises(SystemExit):
        run_study(load_study(write(tmp_path, "ended")), StudyOptions(root=tmp_path / "runs", jobs=1), Terminated())
    assert len(started) == 1 and started[0].poll() is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_a_killed_study_resumes_to_the_same_result(finished, tmp_path, monkeypatch):
    """Here every process is started as by a user."""
    folder, _ = finished
    monkeypatch.setattr(runner, "subprocess", subprocess)
    study = write(folder, "first")
    config, _ = arm_config(load_study(study), "without", 0, StudyOptions())
    trained = find_arm(folder / "runs" / "arms", config).path
    shutil.copytree(trained, tmp_path / trained.relative_to(folder / "runs"))
    command = [sys.executable, "-m", "mmrl", "study", "run", study, "--root", str(tmp_path)]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
    )
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("arms/*/seed-0/run/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "first" / RESULT).exists()
    run_study(load_study(study), StudyOptions(root=tmp_path), display := SilentDisplay())
    assert "without, seed 0: trained already" in display.lines
    expected = (folder / "runs" / "first" / RESULT).read_bytes()
    assert (tmp_path / "first" / RESULT).read_bytes() == expected
    config, _ = arm_config(load_study(study), "with", 0, StudyOptions())
    files = json.loads((find_arm(tmp_path / "arms", config).path / "finished.json").read_text())["files"]
    assert "mmrl.training.training_loop" in files and "mmrl.understanding.vlm_policy" not in files


@pytest.mark.integration
def test_a_changed_setting_is_another_arm_and_the_place_is_not(finished):
    folder, _ = finished
    study = load_study(write(folder, "first"))
    options = StudyOptions(root=folder / "runs")
    config, _ = arm_config(study, "with", 0, options)
    assert find_arm(options.root / "arms", config).finished
    moved = config.model_copy(update={"name": "else", "run": config.run.model_copy(update={"dir": "elsewhere"})})
    assert find_arm(options.root / "arms", moved).finished
    changed = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"lr": 2e-4})})
    assert not find_arm(options.root / "arms", changed).finished


@pytest.mark.integration
def test_changed_code_trains_anew_beside_the_old_run(finished):
    folder, _ = finished
    config, _ = arm_config(load_study(write(folder, "first")), "with", 0, StudyOptions())
    arm = find_arm(folder / "runs" / "arms", config)
    record = json.loads((arm.path / "finished.json").read_text())
    assert "mmrl.training.training_loop" in record["files"]
    assert any(name.endswith(".safetensors") for name in record["files"])
    assert not any(name.startswith("mmrl.cli") for name in record["files"])
    original = (arm.path / "finished.json").read_text()
    (arm.path / "finished.json").write_text(json.dumps(record | {"files": {"mmrl.policy": "another"}}))
    try:
        assert find_arm(folder / "runs" / "arms", config).path.name == "seed-0.1"
    finally:
        (arm.path / "finished.json").write_text(original)


def test_an_arm_whose_files_changed_is_another_one(tmp_path):
    reward, data = tmp_path / "mine.py", tmp_path / "data.jsonl"
    reward.write_text("def mine(prompt, image):\n    return 1.0\n")
    data.write_text('{"id": "a", "prompt": "a red circle"}\n')
    changes = f"with: {{rewards: [{{name: '{reward}:mine'}}], data.path: '{data}'}}"
    text = STUDY.replace("with: {optimizer.lr: 1.0e-4}", changes)
    config, _ = arm_config(load_study(write(tmp_path, "own", text)), "with", 0, StudyOptions())
    assert files_of(config).keys() == {str(reward), str(data)}
    for finished in (False, True):
        arm = find_arm(tmp_path / f"arms-{finished}", config)
        arm.request(config)
        if finished:
            arm.finish(1.0, files_of(config))
        for file in (reward, data):
            before = file.read_text()
            assert find_arm(tmp_path / f"arms-{finished}", config) == arm
            file.write_text(before + "\n")
            assert find_arm(tmp_path / f"arms-{finished}", config).path.name == "seed-0.1"
            file.write_text(before)


@pytest.mark.integration
def test_a_failing_arm_names_its_log_and_keeps_the_others(finished):
    folder, _ = finished
    text = STUDY.replace("optimizer.lr: 1.0e-8", "rewards: [{name: 'nowhere.py:reward'}]")
    with pytest.raises((RunError, ConfigError), match=r"nowhere\.py"):
        run_study(load_study(write(folder, "failing", text)), StudyOptions(root=folder / "runs"), SilentDisplay())
    config, _ = arm_config(load_study(write(folder, "first")), "with", 0, StudyOptions())
    assert find_arm(folder / "runs" / "arms", config).finished


def test_a_wrong_key_of_an_arm_is_refused_before_anything_runs(tmp_path):
    study = load_study(write(tmp_path, "wrong", STUDY.replace("optimizer.lr: 1.0e-8", "optimizer.rate: 1.0e-8")))
    with pytest.raises(ConfigError, match=r"arm without: optimizer\.rate"):
        run_study(study, StudyOptions(root=tmp_path), SilentDisplay())
    assert not (tmp_path / "arms").exists()


def test_rows_that_are_no_whole_number_of_iterations_are_refused(tmp_path):
    study = load_study(write(tmp_path, "rows", STUDY.replace("rows: 16", "rows: 17")))
    with pytest.raises(ConfigError, match="17 rows are no whole number of iterations of 8 rows"):
        run_study(study, StudyOptions(root=tmp_path), SilentDisplay())


@pytest.mark.integration
def test_a_missing_metric_is_named_with_those_that_are_there(finished):
    folder, _ = finished
    text = STUDY.replace("metric: shapeworld", "metric: beauty")
    with pytest.raises(EvaluationError, match="has no metric beauty; there are shapeworld"):
        run_study(load_study(write(folder, "metric", text)), StudyOptions(root=folder / "runs"), SilentDisplay())


@pytest.mark.integration
@pytest.mark.parametrize("key", ["decide", pytest.param("also", marks=pytest.mark.slow)])
def test_a_missing_metric_ends_the_arms_at_their_evaluation_before_training(tmp_path, key):
    text = STUDY.replace("rows: 16", "rows: 16000")
    wrong = {
        "decide": text.replace("metric: shapeworld", "metric: beauty"),
        "also": f"{text}also: [{{metric: beauty}}]\n",
    }
    with pytest.raises(EvaluationError, match="has no metric beauty; there are shapeworld"):
        run_study(load_study(write(tmp_path, "early", wrong[key])), StudyOptions(root=tmp_path), SilentDisplay())
    runs = list(tmp_path.glob("arms/*/seed-0/run"))
    assert runs
    assert all(evaluation_steps(run) in ([0], []) for run in runs)


@pytest.mark.slow
def test_a_budget_of_cpu_time_sets_the_iterations_by_a_pilot(tmp_path):
    """The pilot evaluates nothing, though the recipe does, and is run once. The arm has the study's first seed."""
    common = "evaluation.every: 2, data.heldout: null"
    text = STUDY.replace("data.heldout: null", common).replace("rows: 16", "cpu_seconds: 0.001")
    text = text.replace("  without: {optimizer.lr: 1.0e-8}\n", "").replace("with > without", "with > base")
    text = text.replace("{first: 1}", "{first: 1, start: 5}")
    study, options = load_study(write(tmp_path, "timed", text)), StudyOptions(root=tmp_path / "runs")
    display = SilentDisplay()
    result = run_study(study, options, display)
    assert [line for line in display.lines if "started" in line] == [
        f"pilot, seed 0: started, {PILOT} iterations",
        "with, seed 5: started, 1 iterations",
    ]
    assert result.arms["with"].iterations == 1
    assert result.measures["shapeworld on validation"].seeds == ["5"]
    assert "| arm | mean | seed 5 |" in (tmp_path / "runs" / "timed" / "timed.md").read_text()
    [pilot] = [run for run in tmp_path.glob("runs/arms/*/seed-0/run") if len(read_run(run).metrics) >= PILOT]
    spent = np.mean(read_run(pilot).curve("train", "seconds/cpu").values[1:])
    longer = load_study(write(tmp_path, "longer", text.replace("0.001", f"{3.5 * spent}")))
    [job] = plan_jobs(longer, options, [5], display)
    assert job.config.training.iterations == job.config.training.save_every == 3


@pytest.mark.integration
def test_the_bill_states_iterations_and_rows(finished):
    folder, _ = finished
    rows = dict(bill(load_study(write(folder, "first")), StudyOptions(root=folder / "runs", jobs=1)))
    assert rows["with"].startswith("2 iterations, 16 rows; seed 0: trained already in ")
    assert rows["all"] == "2 arms, 1 seeds each, 1 at once"


@pytest.mark.slow
def test_inference_may_add_the_logits_of_several_models(tmp_path):
    """The model before training alone is the base to the bit, and the trained one alone is the arm itself."""
    text = STUDY.replace("quickstart", "shapes-reasoning").replace("metric: shapeworld", "metric: numeric")
    text = text.replace("sampling.steps: 3", "sampling.max_new_tokens: 12, models.start.model: 'shapeworld:sums'")
    arms = {"with": "", "without": ", inference.logits: {start: 1.0, policy: 0.0}", "own": ", inference.logits: "
            "{start: 0.0, policy: 1.0}"}  # fmt: skip
    lines = "".join(f"  {name}: {{optimizer.lr: 1.0e-3{more}}}\n" for name, more in arms.items())
    text = text[: text.index("  with:")] + lines + text[text.index("decide:") :]
    text = text.replace("with > without", "without = base within 0.000001")
    text = text.replace("evaluation.prompts: 6, evaluation.batch: 6", "evaluation.prompts: 48, evaluation.batch: 48")
    study, options = load_study(write(tmp_path, "logits", text)), StudyOptions(root=tmp_path / "runs")
    result = run_study(study, options, SilentDisplay())
    assert result.verdict == "holds"
    found = result.measures["numeric on validation"].values
    assert found["own"] == found["with"] != found["base"]


DRAWN = """\
paper: {key: drawn, title: Drawn}
claim: {text: "the user's own words are drawn better than what a writer babbles", test: original > babble}
recipe: shapes-vlm
common:
  policy.model: "shapeworld:vlm-worlds"
  sampling.max_new_tokens: 4
  models.painter: {kind: pipeline, model: shapeworld}
  models.painter.sampling: {steps: 3, guidance_scale: 1.0, transition: {name: flow_sde}}
  models.painter.sampling.pipeline_args.max_sequence_length: 1
  algorithm: {name: joint_grpo}
  rewards: [{name: shapeworld}]
  data: {path: "shapeworld:repainted-train", validation: "shapeworld:repainted-development", groups: 2, group_size: 2}
  training.iterations: 1
  evaluation: {prompts: 8, samples: 4, batch: 32}
arms:
  original: {inference.original_prompt: 1.0}
  babble: {}
decide: {metric: shapeworld}
seeds: {first: 1}
"""


@pytest.mark.slow
def test_inference_may_draw_after_the_users_prompt(tmp_path):
    study, options = load_study(write(tmp_path, "drawn", DRAWN)), StudyOptions(root=tmp_path / "runs")
    result = run_study(study, options, SilentDisplay())
    assert result.claims[0].contrasts[0].mean > 0.01


@pytest.mark.slow
def test_a_budget_of_tokens_ends_every_arm_when_they_are_spent(tmp_path):
    text = STUDY.replace("quickstart", "shapes-reasoning").replace("{optimizer.lr: 1.0e-4}", "{}")
    text = text.replace("  without: {optimizer.lr: 1.0e-8}\n", "").replace("with > without", "with > base")
    text = text.replace("sampling.steps: 3", "sampling.max_new_tokens: 12").replace(
        "metric: shapeworld", "metric: numeric"
    )
    study = load_study(write(tmp_path, "tokens", text.replace("rows: 16", "tokens: 150")))
    options, display = StudyOptions(root=tmp_path / "runs"), SilentDisplay()
    result = run_study(study, options, display)
    jobs = plan_jobs(study, options, [0], display)
    spent = read_run(jobs[0].folder.run).curve("train", "tokens").values
    assert sum(spent) >= 150 > sum(spent[:-1])
    assert result.arms["with"].iterations == len(spent) < 80
    assert dict(bill(study, options))["with"].startswith("150 tokens, at most 80 iterations, 640 rows; seed 0: trained")
    longer = load_study(write(tmp_path, "longer", text.replace("rows: 16", "tokens: 100000")))
    with pytest.raises(RunError, match=r"of 100000 tokens after its \d+ iterations: set training\.iterations higher"):
        collect(longer, jobs, 1, 1)
