"""The commands, over a stand-in for `mmrl.workflows`: what they pass on, print and refuse."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from PIL import Image
from typer.testing import CliRunner

import mmrl
from mmrl.cli import app
from mmrl.config import ConfigError, dump_config, list_recipes, load_config
from mmrl.evaluation.score_folder import pair_up


class FakeWorkflows(ModuleType):
    """A stub that records its arguments."""

    def __init__(self, folder: Path) -> None:
        super().__init__("mmrl.workflows")
        self.folder = folder
        self.trained, self.sampled, self.options, self.evaluated = [], [], [], []
        self.error: Exception | None = None

    def check(self, config):
        if self.error:
            raise self.error

    def estimate_memory(self, config):
        raise LookupError("this model is nowhere")

    def missing(self, config):
        return []

    def train(self, config, resume):
        self.trained.append((config, resume))
        self.folder.mkdir(exist_ok=True)
        (self.folder / "config.yaml").write_text(dump_config(config))
        return self.folder

    InferenceOptions = SimpleNamespace

    def generate_images(self, target, prompts, n, *others):
        *plain, options = others
        self.sampled.append((target, prompts, n, *plain))
        self.options.append(options)
        each = options.best_of or n
        scores = {"score": 0.5, "total": math.nan} if options.best_of else {}
        return [
            SimpleNamespace(
                prompt=i // each, rank=i % each, image=Image.new("RGB", (8, 4), (40 * i, 0, 0)), scores=scores
            )
            for i in range(len(prompts) * each)
        ]

    def evaluate_run(self, run):
        self.evaluated.append(run)


@pytest.fixture
def workflows(monkeypatch, tmp_path) -> FakeWorkflows:
    fake = FakeWorkflows(tmp_path / "it")
    for name in (
        "mmrl.build.config_checks",
        "mmrl.build.policies",
        "mmrl.build.readiness",
        "mmrl.workflows.train",
        "mmrl.workflows.generate_images",
    ):
        monkeypatch.setitem(sys.modules, name, fake)
    return fake


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


# train


def test_train_passes_the_recipe_with_its_overrides(workflows):
    result = run("train", "quickstart", "seed=3", "optimizer.lr=1e-3")
    assert workflows.trained == [(load_config("quickstart", ["seed=3", "optimizer.lr=1e-3"]), None)]
    assert str(workflows.folder / "report.html") in result.stdout.replace("\n", "")


def test_dry_run_prints_config_and_batch_plan_without_training(workflows):
    result = run("train", "quickstart", "seed=3", "--dry-run")
    assert result.stdout.startswith(dump_config(load_config("quickstart", ["seed=3"])))
    assert "8 prompts x 12 = 96 samples" in result.stdout
    assert result.stdout.endswith("The memory estimate was left out: this model is nowhere\n")
    assert not workflows.trained


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipe.name for recipe in list_recipes()])
def test_every_recipe_passes_the_dry_run_check(recipe, monkeypatch):
    from mmrl.build import policies
    from mmrl.planning import phase_measurement

    def left_out(config: object) -> None:
        raise LookupError("it takes seconds a recipe: tests/generation/test_memory_estimate.py")

    monkeypatch.setattr(policies, "estimate_memory", left_out)
    monkeypatch.setattr(phase_measurement, "count_memory", left_out)
    run("train", recipe, "--dry-run")


@pytest.mark.integration
def test_dry_run_estimates_memory_and_rejects_unsupported_settings():
    table = run("train", "flow-grpo", "--dry-run").stdout
    assert "Memory on one device" in table and "GiB" not in table.partition("Memory on one device")[2]
    assert "left out" in run("train", "flow-grpo", "policy.model=missing/nothing", "--dry-run").stdout
    refused = run("train", "flow-grpo", "policy.scheduler=DDIMScheduler", "--dry-run", code=2).stderr
    assert "flow_sde does not fit the pipeline's scheduler" in refused
    assert (
        "did you mean DDIMScheduler?" in run("train", "flow-grpo", "policy.scheduler=DDIM", "--dry-run", code=2).stderr
    )


def test_dry_run_names_what_would_stop_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    (tmp_path / "mine.py").write_text("def score(image): return 1.0\n")
    data = ("data.path=bad.jsonl", "data.validation=none.txt", "data.heldout=null")
    printed = run(
        "train", "quickstart", *data, "rewards.0.name=mine.py:scor", "evaluation.rewards=[shapewrld]", "--dry-run"
    )
    assert [line for line in printed.stdout.splitlines() if line.startswith("Training would stop")] == [
        "Training would stop: rewards.0: mine.py:scor: mine.py has no 'scor'; did you mean score?",
        "Training would stop: evaluation.rewards.0: there is no reward 'shapewrld': did you mean shapeworld or "
        "shapeworld_clip or shapeworld_edit? One of your own is path/to/file.py:Name.",
        "Training would stop: data.path: bad.jsonl:2: 'promt' is not a key of Sample: did you mean prompt?",
        "Training would stop: data.validation: none.txt: cannot be read: No such file or directory",
    ]
    assert "Training would stop" not in run("train", "quickstart", "rewards.0.name=mine.py:score", "--dry-run").stdout
    wrong = ("rewards.0.name=mine.py:score", "rewards.0.args.treshold=0.1")
    printed = run("train", "quickstart", *wrong, "--dry-run").stdout
    assert "Training would stop: rewards.0: mine.py:score(): got an unexpected keyword argument 'treshold'" in printed
    splits = ("data.path=shapeworld:trian", "data.validation=shapewold:train")
    printed = run("train", "quickstart", *splits, "--dry-run").stdout
    assert "Training would stop: data.path: shapeworld:trian: ShapeWorld has no split 'trian': did you mean" in printed
    assert "Training would stop: data.validation: data: no installed package provides shapewold:train" in printed
    (tmp_path / "few.txt").write_text("one circle\ntwo circles\n")
    printed = run("train", "quickstart", "data.path=few.txt", "data.groups=3", "--dry-run").stdout
    assert "Training would stop: data.path: the data set has 2 samples, fewer than the 3 groups" in printed


@pytest.mark.integration
def test_dry_run_counts_the_memory_of_a_small_model_that_writes():
    small = ("data={path: 'shapeworld:vlm-development', validation: null, groups: 2, group_size: 4, micro_batch: 4}",)
    printed = run("train", "shapes-vlm", *small, "evaluation={}", "--dry-run").stdout
    places = printed.partition("Memory of one of 8 processes by run.place")[2]
    assert "counted in calls" in printed and "replicas" in places and "window" in places and "strict" not in places
    large = run("train", "shapes-vlm", "policy.model=Qwen/Qwen2.5-VL-3B-Instruct", "--dry-run").stdout
    assert "`mmrl plan RECIPE` counts their memory" in large


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_train_validates_before_it_starts(workflows, dry_run):
    workflows.error = ConfigError("algorithm needs log_probs")
    assert run("train", "quickstart", *dry_run, code=2).stderr == "error: algorithm needs log_probs\n"
    assert "data.micro_batch: 7 does not divide" in run("train", "quickstart", "data.micro_batch=7", code=2).stderr
    assert "did you mean seed?" in run("train", "quickstart", "sede=7", code=2).stderr
    assert "recipes list" in run("train", code=2).stderr
    assert not workflows.trained


@pytest.fixture
def started(tmp_path) -> Path:
    """A run's folder."""
    folder = tmp_path / "runs" / "quickstart"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(load_config("quickstart", ["seed=5"])))
    return folder


def test_resume_takes_the_configuration_of_the_run(workflows, started):
    run("train", "--resume", started)
    run("train", "quickstart", "--resume", started)
    run("train", "training.iterations=500", "run.display=plain", "evaluation.every=5", "--resume", started)
    configs = [config for config, _ in workflows.trained]
    assert [config.seed for config in configs] == [5, 5, 5]
    assert configs[2].training.iterations == 500
    assert configs[2].evaluation.every == 5
    assert {resume for _, resume in workflows.trained} == {started}


def test_resume_rejects_changes_that_a_run_cannot_take(workflows, started, tmp_path):
    refused = run("train", "--resume", started, "optimizer.lr=1", "training.updates=1", "seed=2", code=2).stderr
    assert refused.count("cannot change on resume") == 3
    assert (
        "training.iterations, training.max_kl, training.max_tokens, training.hacking, training.save_every, "
        "training.keep_every, evaluation.every, run.display" in refused
    )
    assert "is a run of quickstart, not of flow-grpo" in run("train", "flow-grpo", "--resume", started, code=2).stderr
    assert "holds no config.yaml" in run("train", "--resume", tmp_path, code=2).stderr
    assert not workflows.trained


# Errors


@pytest.mark.parametrize(
    "error, code", [(ConfigError("bad"), 2), (FileNotFoundError(2, "No such file", "x.jsonl"), 1), ("RunError", 1)]
)
def test_mmrl_errors_are_printed_as_one_message(workflows, monkeypatch, error, code):
    if error == "RunError":
        from mmrl.errors import RunError

        error = RunError("bad")
    workflows.error = error
    assert run("train", "quickstart", code=code).stderr == f"error: {error}\n"
    monkeypatch.setenv("MMRL_TRACEBACK", "1")
    assert CliRunner().invoke(app, ["train", "quickstart"]).exception is error


def test_other_exceptions_keep_their_traceback(workflows):
    workflows.error = ZeroDivisionError()
    assert CliRunner().invoke(app, ["train", "quickstart"]).exception is workflows.error


# sample


def test_sample_writes_every_picture_and_a_contact_sheet(workflows, tmp_path):
    out = tmp_path / "pictures"
    arguments = ["sample", "runs/it", "-p", "a red square", "--prompt", "zwei Kreise ○", "--n", 3, "--steps", 5]
    result = run(*arguments, "--guidance", 2, "--seed", 9, "--base", "--out", out)
    assert workflows.sampled == [("runs/it", ["a red square", "zwei Kreise ○"], 3, 9, 5, 2.0, True, {})]
    names = [f"prompt{row}-{column}.png" for row in range(2) for column in range(3)]
    assert sorted(path.name for path in out.iterdir()) == sorted([*names, "prompts.txt", "sheet"])
    assert result.stdout.split() == [str(out / name) for name in [*names, "sheet/grid.png"]]
    sheet = Image.open(out / "sheet" / "grid.png")
    assert sheet.size == (3 * 8 * 16, 2 * (4 * 16 + 18))  # tiles enlarged 16 times to 128 pixels, captions of 18
    centres = [sheet.getpixel((64 + 128 * (i % 3), 18 + 32 + 82 * (i // 3))) for i in range(6)]
    assert centres == [(40 * i, 0, 0) for i in range(6)]  # a row a prompt


@pytest.mark.integration
def test_sample_has_defaults_and_needs_a_prompt(workflows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("sample", "shapeworld", "-p", "a circle")
    assert workflows.sampled == [("shapeworld", ["a circle"], 4, 0, None, None, False, {})]
    assert (tmp_path / "samples" / "sheet" / "grid.png").is_file()
    run("sample", "shapeworld", code=2)


def test_sample_passes_conditions_to_the_pipeline(workflows, tmp_path):
    run("sample", "m", "-p", "bluer", "--with", "image=a.png", "--with", "strength=0.5", "--out", tmp_path)
    assert workflows.sampled[0][-1] == {"image": "a.png", "strength": 0.5}
    plain = {"rlg": None, "lora_strength": None, "guide": {}, "best_of": None, "rewards": {}, "arguments": {}}
    assert vars(workflows.options[0]) == plain


def test_sample_passes_guidance_settings(workflows, tmp_path):
    turned = ["--rlg", 1.5, "--lora-strength", 0.7, "--guide", "clip_score=2.5", "--guide", "aesthetic=-1"]
    run("sample", "m", "-p", "a", *turned, "-a", "clip_score.model=tiny", "--out", tmp_path)
    options = workflows.options[0]
    assert (options.rlg, options.lora_strength, options.best_of) == (1.5, 0.7, None)
    assert options.guide == {"clip_score": 2.5, "aesthetic": -1.0}
    assert options.arguments == {"clip_score": {"model": "tiny"}, "aesthetic": {}}
    for wrong in ("clip_score", "clip_score=much", "=1"):
        assert "expected a reward and a number" in run("sample", "m", "-p", "a", "--guide", wrong, code=2).output


def test_sample_keeps_the_best_and_writes_their_scores(workflows, tmp_path):
    chosen = ["sample", "m", "-p", "a", "-p", "b", "--best-of", 3, "--reward", "clip_score", "-r", "my.py:mine=0.5"]
    result = run(*chosen, "--out", tmp_path / "one")
    assert workflows.sampled[0][2] == 1 and workflows.options[0].rewards == {"clip_score": 1.0, "my.py:mine": 0.5}
    kept = ["prompt0-0.png", "prompt1-0.png"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        *kept,
        "prompts.txt",
        "scores.jsonl",
        "sheet",
    ]
    lines = [json.loads(line) for line in (tmp_path / "one" / "scores.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == kept and lines[1]["prompt"] == "b"
    assert lines[0]["scores"] == {"score": 0.5, "total": None} and "score 0.5" in result.stdout
    run(*chosen, "--n", 2, "--keep-all", "--out", tmp_path / "all")
    assert len(list((tmp_path / "all").glob("prompt*.png"))) == 6
    with Image.open(tmp_path / "all" / "sheet" / "grid.png") as sheet:
        assert sheet.size == (2 * 8 * 16, 2 * (4 * 16 + 18))


def test_score_takes_the_folder_that_sample_writes(workflows, tmp_path):
    out = tmp_path / "samples"
    run("sample", "m", "-p", "a red\nsquare", "-p", "b", "--n", 11, "--out", out)
    pairings, unused = pair_up(out, out / "prompts.txt")
    assert [(each.picture.name, each.sample.prompt, each.group) for each in pairings] == [
        (f"prompt{row}-{column}.png", ("a red square", "b")[row], row) for row in range(2) for column in range(11)
    ]
    assert unused == 0


# evaluate


def test_evaluate_prints_the_summary_and_can_sample_again(workflows, started, monkeypatch):
    summary = ModuleType("mmrl.evaluation.summary")
    summary.summarise = lambda runs: [run.name for run in runs]
    summary.render = lambda names: [f"summary of {names}"]
    monkeypatch.setitem(sys.modules, "mmrl.evaluation.summary", summary)
    assert "summary of ['quickstart']" in run("evaluate", started).stdout
    assert not workflows.evaluated
    run("evaluate", started, "--fresh")
    assert workflows.evaluated == [started]
    assert "is not a run" in run("evaluate", started.parent, code=2).stderr


# recipes and rewards


@pytest.mark.integration
def test_recipes_commands_list_show_and_copy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = run("recipes", "list").stdout
    assert all(recipe.name in listed for recipe in list_recipes())
    output = run("recipes", "show", "quickstart").stdout
    assert run("recipes", "copy", "quickstart").stdout == "quickstart.yaml\n"
    assert (tmp_path / "quickstart.yaml").read_text() == output
    refused = run("recipes", "copy", "quickstart", code=1)
    assert "File exists" in refused.stderr
    assert "quickstart.yaml" in refused.stderr
    run("recipes", "show", "quikstart", code=2)
    assert "shapes-preferences" in listed
    printed = run("recipes", "show", "shapes-preferences").stdout
    assert "encoder:" in printed
    run("recipes", "copy", "shapes-preferences")
    assert (tmp_path / "shapes-preferences.yaml").read_text() == printed


@pytest.mark.integration
def test_rewards_commands_list_and_show():
    assert "compressibility" in run("rewards", "list").stdout
    assert "range" in run("rewards", "show", "compressibility").stdout
    assert "there is no reward" in run("rewards", "show", "xyzzy", code=1).stderr


# The program


@pytest.mark.integration
def test_help_imports_no_heavy_module():
    code = (
        "import sys; sys.argv = ['mmrl', '--help']\n"
        "from mmrl.cli import main\n"
        "try: main()\n"
        "except SystemExit: print('loaded:', *sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    output, _, loaded = done.stdout.partition("loaded:")
    assert all(command in output for command in ("train", "sample", "evaluate", "recipes", "rewards", "doctor"))
    assert not {"torch", "pydantic", "yaml", "numpy", "PIL", "diffusers", "mmrl.config"} & set(loaded.split())
    assert len(loaded.split()) < 600


def test_module_runs_as_a_script():
    done = subprocess.run([sys.executable, "-m", "mmrl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"mmrl {mmrl.__version__}\n"


@pytest.mark.parametrize(
    "command", [[], *([name] for name in ("train", "plan", "sample", "evaluate", "recipes", "doctor"))]
)
def test_every_command_has_help(command):
    assert "Usage" in run(*command, "--help").stdout


@pytest.mark.parametrize("command", [["evaluate", "run"], ["environments", "watch", "run"], ["data", "direct", "a"]])
def test_seeds_that_no_generator_takes_are_refused_by_their_option(command):
    assert "'--seed': Input should be greater than or equal to 0" in run(*command, "--seed=-1", code=2).stderr


def test_the_code_after_an_export_loads_its_folder_from_here():
    from mmrl.cli.export import _summary

    content = SimpleNamespace(code='pipe = DiffusionPipeline.from_pretrained("shapes")')
    done = SimpleNamespace(
        model=SimpleNamespace(name="runs/a", step=4), folder=Path("exported/shapes"), files={"a": 1}, content=content
    )
    assert _summary(done).endswith('from_pretrained("exported/shapes")')


# study


def test_the_dry_run_of_a_study_names_what_an_arm_lacks_once(tmp_path):
    study = tmp_path / "mine.yaml"
    study.write_text(
        "paper: {key: mine, title: Mine}\n"
        "claim: {text: 'more is more', test: with > without}\n"
        "recipe: shapes-vlm\n"
        "common: {data.path: missing.jsonl}\n"
        "arms: {with: {}, without: {optimizer.lr: 0.0001}}\n"
        "decide: {metric: total}\n"
        "seeds: {first: 1}\n"
    )
    output = run("study", "run", study, "--dry-run", "--root", tmp_path / "runs").stdout
    assert output.count("missing.jsonl") == 1 and "with: training would stop: data.path: " in output
