"""The whole way on the shipped pipeline, cut short: train, resume, sample, evaluate, load in plain diffusers."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from diffusers import DiffusionPipeline
from typer.testing import CliRunner

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy
from mmrl.cli import app
from mmrl.config import load_config
from mmrl.errors import ConfigError, RunError
from mmrl.rollout_request import batch_requests
from mmrl.workflows.generate_images import sample_images
from mmrl.workflows.train import train
from mmrl_shapeworld.shipped_models import PIPELINE

SHORT = [
    "data.groups=2",
    "data.group_size=4",
    "data.micro_batch=4",
    "training.iterations=3",
    "training.save_every=2",
    "evaluation.prompts=6",
    "evaluation.diversity_prompts=2",
    "evaluation.diversity_draws=2",
    "run.display=plain",
]
BLIND = [  # as little looking at the policy as there can be: it decides nothing
    "data.heldout=null",
    "evaluation.prompts=2",
    "evaluation.diversity_prompts=0",
    "evaluation.rewards=[]",
    "run.pictures=0",
]


def mmrl(*words: str):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module", params=["quickstart", "flow-grpo"])
def finished(request, tmp_path_factory):
    run = tmp_path_factory.mktemp(request.param) / "run"
    return run, mmrl("train", request.param, *SHORT, f"run.dir={run}")


def test_run_writes_its_files(finished):
    run, output = finished
    assert "report.html" in output and "reward while training" in output
    kept = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    expected = {
        "config.yaml",
        "metrics.jsonl",
        "report.html",
        "README.md",
        "before_after.png",
        "checkpoints/index.json",
        "checkpoints/step-3/transformer/diffusion_pytorch_model.safetensors",
        "evaluations/step-0.jsonl",
        "evaluations/step-3.jsonl",
        "heldout/evaluations/step-3.jsonl",
        "samples/step-0/0000-0.png",
    }
    assert expected <= kept
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in trained] == [1, 2, 3]
    assert all(row["replay_gap"] <= 1e-6 and row["grad_norm"] > 0 for row in trained)
    assert (
        rows[0]["kind"] == "evaluation" and {"evaluation/shapeworld_heldout", "evaluation/diversity"} <= rows[0].keys()
    )


def test_evaluate_and_sample_read_the_run(finished, tmp_path):
    run, _ = finished
    assert "shapeworld_strict" in mmrl("evaluate", run)
    mmrl("sample", run, "--prompt", "a red circle", "--n", 2, "--out", tmp_path)
    assert len(list(tmp_path.glob("*.png"))) == 2 and (tmp_path / "sheet" / "grid.png").is_file()


def test_base_is_sampled_on_request_and_differs(finished):
    run, _ = finished
    base = sample_images(str(run), ["a red circle"], n=1, seed=0, base=True)
    tuned = sample_images(str(run), ["a red circle"], n=1, seed=0)
    assert base[0].tobytes() != tuned[0].tobytes()


@pytest.mark.gpu
def test_resume_equals_an_uninterrupted_run(finished, tmp_path):
    """Stopped after two of three iterations and resumed: the same parameters to the last bit, looked at or not."""
    run, _ = finished
    broken = tmp_path / "run"
    name = load_config(str(run / "config.yaml")).name
    mmrl("train", name, *SHORT, *BLIND, "training.iterations=2", "optimizer.schedule=constant", f"run.dir={broken}")
    mmrl("train", "--resume", broken, "training.iterations=3")
    one, other = (r / "checkpoints/step-3/transformer/diffusion_pytorch_model.safetensors" for r in (run, broken))
    assert one.read_bytes() == other.read_bytes()


def test_full_checkpoint_loads_in_diffusers(finished):
    run, _ = finished
    pipe = DiffusionPipeline.from_pretrained(PIPELINE)
    trained = type(pipe.transformer).from_pretrained(run / "checkpoints/step-3/transformer")
    before, after = pipe.transformer.state_dict(), trained.state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_lora_checkpoint_loads_in_diffusers(tmp_path):
    """`pipe.load_lora_weights(run)` draws what the policy draws."""
    run = tmp_path / "lora"
    arguments = [*SHORT, *BLIND, "policy.train=lora", "policy.lora.rank=4", "optimizer.lr=0.01", "optimizer.ema=0.9"]
    arguments.append(f"run.dir={run}")
    mmrl("train", "flow-grpo", *arguments)
    pipe = DiffusionPipeline.from_pretrained(PIPELINE)
    pipe.set_progress_bar_config(disable=True)

    def draw():
        call = {"num_inference_steps": 4, "guidance_scale": 1.0, "max_sequence_length": 1, "output_type": "pt"}
        return pipe("a red circle", generator=torch.Generator().manual_seed(0), **call).images

    base = draw()
    pipe.load_lora_weights(str(run))
    tuned = draw()
    assert not torch.equal(base, tuned)
    policy = build_policy(load_config(str(run / "config.yaml")).policy, load_config(str(run / "config.yaml")).sampling)
    policy.load(run / "checkpoints" / "step-3")
    pipe = policy.pipeline
    torch.testing.assert_close(draw(), tuned, atol=1e-5, rtol=0)


def test_second_run_never_overwrites_the_first(finished):
    run, _ = finished
    config = load_config("quickstart", [*SHORT, f"run.dir={run}"])
    with pytest.raises(ConfigError, match="contains a run already"):
        train(config)


def test_truncated_checkpoints_raise_by_name(finished, tmp_path):
    run, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    damaged = copy / "checkpoints/step-3/trainer/parameters.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    with pytest.raises(RunError, match=r"step-3/trainer/parameters\.safetensors is damaged: it has 1000 of"):
        train(load_config(str(copy / "config.yaml")), resume=Path(copy))


def test_failed_starts_leave_no_run(tmp_path):
    run = tmp_path / "run"
    config = load_config("quickstart", [*SHORT, "data.path=nothing.jsonl", f"run.dir={run}"])
    with pytest.raises(ValueError, match=r"nothing\.jsonl"):
        train(config)
    assert not run.exists()


@pytest.mark.integration
def test_fresh_evaluation_repeats_the_scores_of_training(finished):
    run, _ = finished
    step = run / "evaluations" / "step-3.jsonl"
    kept = step.read_text()
    mmrl("evaluate", run, "--fresh")
    assert step.read_text() == kept


@pytest.mark.integration
def test_window_is_equal_for_all_calls_of_an_iteration():
    config = load_config("flow-grpo", ["sampling.window.size=1"])
    policy = build_policy(config.policy, config.sampling)
    chosen = load_samples("shapeworld:train")[:2]
    windows = set()
    for shared in range(6):
        calls = batch_requests(chosen, n=4, rows=2, shared_seed=shared)
        drawn = {policy.rollout(requests, seed).recording.decisions for seed, requests in enumerate(calls)}
        assert len(drawn) == 1
        windows |= drawn
    assert len(windows) > 1


@pytest.mark.slow
def test_interrupted_run_saves_and_resumes_to_the_same_end(finished, fork_server, tmp_path):
    """SIGTERM to the real program in the middle of training: it ends by itself, and loses nothing."""
    run, _ = finished
    stopped = tmp_path / "run"
    name = load_config(str(run / "config.yaml")).name
    changes = [*SHORT, *BLIND, "training.save_every=50", f"run.dir={stopped}"]
    child = fork_server.start(tmp_path / "work", "train", name, *changes)
    child.await_text("step    1/3")
    child.send(signal.SIGTERM)
    assert child.wait() == 130, child.output_text()
    rest = child.output_text()
    assert "SIGTERM: finishing this iteration" in rest and f"mmrl train --resume {stopped}" in rest
    assert not (stopped / "report.html").exists()
    mmrl("train", "--resume", stopped)
    one, other = (r / "checkpoints/step-3/transformer/diffusion_pytorch_model.safetensors" for r in (run, stopped))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.integration
@pytest.mark.parametrize(
    "recipe, changes",
    [
        pytest.param("quickstart", ["policy.dtype=bfloat16"], marks=pytest.mark.slow),
        ("quickstart", ["algorithm.kl.coef=0.1", "optimizer.ema=0.9", "training.updates=2"]),
        ("flow-grpo", ["policy.dtype=bfloat16", "policy.train=lora", "policy.gradient_checkpointing=true"]),
        pytest.param("flow-grpo", ["policy.dtype=float16", "policy.train=lora"], marks=pytest.mark.slow),
        pytest.param("quickstart", ["policy.dtype=float16"], marks=pytest.mark.slow),
        pytest.param(
            "flow-grpo",
            ["sampling.transition={name: dance_sde, noise_level: 0.3}", "algorithm.kl.coef=0.01"],
            marks=pytest.mark.slow,
        ),
        ("flow-grpo", ["sampling.transition.name=cps", "algorithm.advantage.name=rloo", "training.epochs=2"]),
        pytest.param(
            "flow-grpo",
            ["sampling.window={size: 2, high: 4}", "algorithm.kl={kind: velocity_mse, coef: 0.01}"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_option_trains_and_replays_exactly(recipe, changes, tmp_path):
    run = tmp_path / "run"
    shorter = [*SHORT, *BLIND, "training.iterations=2", "sampling.steps=5"]
    mmrl("train", recipe, *shorter, *changes, f"run.dir={run}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert len(trained) == 2
    assert all(row["replay_gap"] == 0 and row["grad_norm"] > 0 for row in trained)
    if any("kl" in change for change in changes):
        assert trained[0]["kl"] >= 0 and trained[1]["kl"] > 0
