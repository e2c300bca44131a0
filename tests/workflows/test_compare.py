"""Checkpoints compared through the program itself: the same samples and noise, kept as they come."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from mmrl.build import checkpoint_pool
from mmrl.build.datasets import load_samples
from mmrl.build.model_references import resolve_model
from mmrl.build.policies import build_policy
from mmrl.build.schemes import provided_model
from mmrl.cli import app
from mmrl.data import write_samples
from mmrl.evaluation import evaluate
from mmrl.evaluation.comparison import SubjectStore, read_result
from mmrl.rewards import RewardSuite, load
from tests.build.test_checkpoint_pool import spoil
from tests.test_docs import documented_commands
from tests.workflows.compared_runs import FLAKY

DATA = "shapeworld:validation"
JUDGE = '''
from safetensors.torch import load_file
from mmrl.rewards import Reward, register

@register
class Judge(Reward):
    """The number in a folder of weights."""

    name, needs, range, source = "stored_number", ("image",), (0.0, 1.0), "mine"

    def __init__(self, folder: str):
        self.number = load_file(f"{folder}/model.safetensors")["number"].item()

    def score_one(self, item):
        return self.number
'''
SMALL = ["--data", DATA, "--samples", 6, "--draws", 2, "--batch", 8]


def run(*words: object, code: int = 0):
    result = CliRunner().invoke(app, ["evaluate", *map(str, words)])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


@pytest.fixture(scope="module")
def compared(drawing_run, tmp_path_factory) -> tuple[list[object], Path, str]:
    """A comparison of two checkpoints and their base: its command, its folder, what it printed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    words = [
        drawing_run,
        f"{drawing_run}@best",
        "--data",
        DATA,
        "--samples",
        6,
        "--draws",
        2,
        "--batch",
        8,
        "--out",
        out,
    ]
    return words, out, run(*words).output


@pytest.mark.integration
def test_subjects_answer_the_same_samples_with_the_same_noise(compared, drawing_run):
    """Row by row what `evaluate` gives the policy on its own, drawn with the seeds of all calls laid end to end."""
    result = read_result(compared[1])
    assert list(result.subjects) == [f"{drawing_run}@base", str(drawing_run), f"{drawing_run}@best"]
    assert [subject.step for subject in result.subjects.values()] == [0, 6, 4]
    own = resolve_model(str(drawing_run))
    policy = build_policy(own.policy, own.sampling)
    policy.load(own.checkpoint)
    suite = RewardSuite([(load("shapeworld"), 1.0)])
    expected = evaluate(policy, load_samples(DATA)[:6], suite, draws=2, batch=8, seed=1234)
    suite.close()
    store = SubjectStore(compared[1], result.subjects[str(drawing_run)].file)
    rows = store.lines()
    assert [line.batch for line in rows] == [0] * 8 + [1] * 4
    np.testing.assert_allclose([line.scores["shapeworld"] for line in rows], expected.values["shapeworld"], rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(store.picture(5, 1)), np.asarray(expected.images[11]))


@pytest.mark.integration
def test_result_holds_the_expected_metrics(compared, drawing_run):
    base, last, best = (read_result(compared[1]).subjects[f"{drawing_run}{at}"] for at in ("@base", "", "@best"))
    result = read_result(compared[1])
    assert result.headline.label == "shapeworld" and "total" not in last.numbers
    assert base.base is None and base.against_base is None and base.drift is None
    moved = last.against_base.numbers["shapeworld"]
    assert moved.value == pytest.approx(last.numbers["shapeworld"].value - base.numbers["shapeworld"].value)
    assert moved.wins + moved.ties + moved.losses == moved.samples == 6 and moved.low <= moved.value <= moved.high
    assert result.best in (str(drawing_run), f"{drawing_run}@best")
    assert [last.against_best, best.against_best].count(None) == 1 and base.against_best is None
    assert last.diversity.value > 0 and 0 < best.drift.value < last.drift.value  # 4 is nearer to the base than 6
    assert "ShapeWorld's CLIP" in result.distance
    assert {"source", "tag"} <= last.groups.keys()
    circles = last.groups["tag"]["shape: circle"]
    selected = [s for s in load_samples(DATA)[:6] if "circle" in s.prompt]
    assert circles.samples == len(selected) == circles.difference["shapeworld"].samples
    assert {"torch", "diffusers"} <= result.provenance["versions"].keys() and result.provenance["mmrl"]
    assert result.settings["seed"] == 1234 and result.settings["samples_digest"]


@pytest.mark.integration
def test_pages_hold_all_results_and_load_no_resource(compared):
    html, text = ((compared[1] / name).read_text() for name in ("result.html", "result.md"))
    assert "data:image/png;base64" in html and re.search("Biggest (wins|losses)", html)
    assert not re.search(r"<script|https?://|src=\"(?!data:)", html)
    for title in ("Numbers", "Against base", "Against the best", "Diversity and drift", "By source", "By tag"):
        assert title in html and f"## {title}" in text
    assert "12/12 rows" in compared[2] and "Against base" in compared[2]


@pytest.mark.integration
def test_finished_answers_are_not_sampled_again(compared, drawing_run, tmp_path, monkeypatch):
    words, out, _ = compared
    before = read_result(out)
    monkeypatch.setattr(checkpoint_pool, "build_policy", lambda *_: pytest.fail("a model was loaded"))
    run(*words)
    after = read_result(out)
    assert after.subjects == before.subjects and after.best == before.best
    shutil.copytree(out, tmp_path / "more")
    words = [drawing_run, *SMALL, "--out", tmp_path / "more"]
    run(*words, "--no-base")  # subjects are no part of the settings
    assert list(read_result(tmp_path / "more").subjects) == [str(drawing_run)]
    refused = run(*words, "--seed", 7, code=2)
    assert "other settings (seed differ)" in refused.stderr


@pytest.mark.integration
def test_answers_and_scores_of_files_that_changed_are_not_used_again(tmp_path):
    """The model is a folder and the reward a file of the user's own: both may have other contents the next time."""
    model = Path(shutil.copytree(provided_model("shapeworld", "pipeline"), tmp_path / "model"))
    reward = tmp_path / "own.py"
    reward.write_text("def bright(item): return item.image.convert('L').getpixel((0, 0)) / 255")
    words = [model, "--data", DATA, "--samples", 1, "-r", f"{reward}:bright"]
    first = read_rows(tmp_path / "out", *words)
    assert read_rows(tmp_path / "out", *words) == first
    weights = next(model.glob("transformer/*.safetensors"))
    save_file({name: 0 * each for name, each in load_file(weights).items()}, weights, {"format": "pt"})
    assert read_rows(tmp_path / "out", *words).keys().isdisjoint(first)
    judge = tmp_path / "judge" / "model.safetensors"
    judge.parent.mkdir()
    words = [model, "--data", DATA, "--samples", 1, "-r", f"{reward}:Judge", "--arg", f"Judge.folder={judge.parent}"]
    reward.write_text(JUDGE)
    for score in (0.5, 0.75):
        save_file({"number": torch.tensor(score)}, judge)
        found = read_rows(tmp_path / f"judge-{score}", *words).values()
        assert [line.scores["stored_number"] for lines in found for line in lines] == [score]
    save_file({"number": torch.tensor(0.5)}, judge)
    assert f"({judge} differ)" in run(*words, "--out", tmp_path / "judge-0.75", code=2).stderr.replace("\n", " ")
    words = [model, "--data", DATA, "--samples", 1, "-r", f"{reward}:bright"]
    reward.write_text("def bright(item): return 0.25")
    assert f"({reward} differ)" in run(*words, "--out", tmp_path / "out", code=2).stderr.replace("\n", " ")
    assert [line.scores["bright"] for lines in read_rows(tmp_path / "new", *words).values() for line in lines] == [0.25]


def read_rows(out: Path, *words: object):
    """Run a comparison, and return the rows of each subject by the name of its file."""
    run(*words, "--out", out)
    return {each.file: SubjectStore(out, each.file).lines() for each in read_result(out).subjects.values()}


@pytest.mark.integration
def test_broken_checkpoints_are_named_and_other_results_kept(drawing_run, tmp_path):
    broken = Path(shutil.copytree(drawing_run, tmp_path / "broken"))
    spoil(broken / "checkpoints/step-4")
    words = [f"{broken}@4", broken, "--data", DATA, "--samples", 2, "--out", tmp_path / "out"]
    displayed = run(*words, code=1)
    assert f"{broken}@4: " in displayed.stderr
    result = read_result(tmp_path / "out")
    assert list(result.subjects) == [f"{broken}@base", str(broken)] and list(result.failed) == [f"{broken}@4"]
    assert "failed" in (tmp_path / "out/result.md").read_text()


@pytest.mark.integration
def test_unscored_rows_are_counted_and_reported(drawing_run, tmp_path):
    (tmp_path / "flaky.py").write_text(FLAKY)
    samples = load_samples(DATA)[:6]
    write_samples(samples, tmp_path / "data.jsonl")
    squares = sum("square" in sample.prompt for sample in samples)
    assert 0 < squares < 6
    reward = f"{tmp_path / 'flaky.py'}:flaky"
    result = run(drawing_run, "--no-base", "--data", tmp_path / "data.jsonl", "-r", reward, "--out", tmp_path / "out")
    found = read_result(tmp_path / "out").subjects[str(drawing_run)]
    assert found.numbers["flaky"].value == 0.5 and found.numbers["flaky"].unscored == squares
    assert sum(found.unscored["flaky"].values()) == squares and "the judge is down" in next(
        iter(found.unscored["flaky"])
    )
    assert f"({squares} unscored)" in result.output and "Could not be scored" in result.output


def test_runs_without_rewards_raise_with_a_remedy(drawing_run, tmp_path):
    text = (drawing_run / "config.yaml").read_text()
    bare = Path(shutil.copytree(drawing_run, tmp_path / "bare"))
    (bare / "config.yaml").write_text(re.sub(r"rewards:\n- name: shapeworld\n(  .*\n)*", "rewards: []\n", text))
    result = run(bare, "--data", DATA, "--samples", 2, "--out", tmp_path / "out", code=2)
    assert "has no rewards" in result.stderr and "--reward" in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.integration
def test_protocol_runs_end_to_end_on_text_answers(looking_run, tmp_path):
    words = [looking_run, "--protocol", "refcoco", "--data", "shapeworld", "--samples", 4, "--out", tmp_path / "out"]
    displayed = run(*words)
    result = read_result(tmp_path / "out")
    assert result.headline.label == "accuracy@0.5" and [m.label for m in result.metrics] == ["accuracy@0.5", "mean IoU"]
    base, tuned = result.subjects.values()
    assert base.tokens and tuned.drift is not None and "edit distance" in result.distance
    assert "samples by itself with temperature 1.0; here, as all others, with temperature 0.0" in displayed.output
    html = (tmp_path / "out/result.html").read_text()
    assert "RefCOCO" in html
    assert run("diff", tmp_path / "out", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{drawing}", "{looking}", "--data", DATA], "looking is of kind vlm"),
        (["{drawing}", "--protocol", "refcoco", "--data", "shapeworld"], "refcoco is for policies of kind vlm"),
        (["{drawing}", "--protocol", "geneval"], "--data shapeworld"),
        (["{drawing}@5", "--data", DATA], "one of the kept iterations [4, 6]"),
        (["{drawing}", "--data", "shapeworld:no-such-split"], "no-such-split"),
        (["{drawing}", "--reward", "compressibility"], "--reward goes with --data or --protocol"),
        (["{drawing}", "--data", DATA, "--fresh"], "--fresh goes without"),
        (["{drawing}@best"], "add --data or --protocol"),
    ],
)
def test_invalid_comparisons_are_rejected_before_writing(
    words, message, drawing_run, looking_run, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoint_pool, "build_policy", lambda *_: pytest.fail("a model was loaded"))
    result = run(*(word.format(drawing=drawing_run, looking=looking_run) for word in words), code=2)
    assert message in " ".join(result.stderr.split()) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_commands_of_the_page_run(drawing_run, repository, tmp_path, monkeypatch):
    """As they stand, with fewer samples; the last compares two checkpoints, of which either may be the better."""
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    shutil.copytree(drawing_run, tmp_path / "runs/quickstart/seed-0")
    monkeypatch.chdir(tmp_path)
    commands = documented_commands((repository / "docs/evaluation.md").read_text())
    assert len(commands) >= 7
    for words in commands:
        result = CliRunner().invoke(app, [word.replace("200", "3") for word in words[1:]])
        assert result.exit_code in ((0, 1) if "diff" in words else (0,)), f"{words}: {result.output}"


@pytest.mark.slow
def test_killed_comparison_resumes(fork_server, drawing_run, tmp_path):
    """200 samples: killed while a picture of the sixth batch is written, and left with half a line. Every row, picture
    and number in the end is that of an uninterrupted comparison."""
    write_samples(load_samples("shapeworld:train")[:200], tmp_path / "data.jsonl")
    run_folder = Path(shutil.copytree(drawing_run, tmp_path / "run"))
    config = (run_folder / "config.yaml").read_text().replace("steps: 2", "steps: 1")
    (run_folder / "config.yaml").write_text(config)
    words = ["evaluate", run_folder, "--data", tmp_path / "data.jsonl", "-r", "compressibility", "--batch", 20]
    words += ["--no-base", "--out", "out"]
    straight = fork_server.start(tmp_path / "straight", *words)
    assert straight.wait() == 0, straight.output_text()

    killed = fork_server.start(tmp_path / "killed", *words, signals=[signal.SIGKILL], at="00110-0.png")
    assert killed.wait() == -signal.SIGKILL
    (rows,) = (tmp_path / "killed/out/rows").glob("*.jsonl")
    assert len(rows.read_bytes().splitlines()) == 100 and not (tmp_path / "killed/out/result.json").exists()
    with rows.open("a") as file:
        file.write('{"batch": 5, "sample": 100, "dr')
    last = fork_server.start(tmp_path / "killed", *words)
    assert last.wait() == 0, last.output_text()
    assert "100/200 rows are there already" in last.output_text() and "120/200 rows  mean" in last.output_text()
    assert contents(tmp_path / "straight/out") == contents(tmp_path / "killed/out")


def contents(folder: Path) -> dict[str, object]:
    """Everything but clocks, and who writes."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or path.name in (".lock", "result.html", "result.md"):
            continue
        found[name] = path.read_bytes()
    found["result.json"] = {k: v for k, v in json.loads(found["result.json"]).items() if k != "provenance"}
    assert len(found) == 200 + 2 + 2  # pictures, rows and samples, result and settings
    return found
