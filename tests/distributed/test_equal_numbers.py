"""Runs on 1, 2, 3 and 8 processes have the same parameters and the same metrics, for every kind of objective."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mmrl.training.run.checkpoints import Checkpoints
from tests.distributed.group import start_group
from tests.training.fork_server import ForkServer

SHORT = (
    "training={iterations: 10}",
    "data.validation=null",
    "data.heldout=null",
    "evaluation={}",
    "run={dir: run, display: plain}",
)
PICTURES = ("data.path=shapeworld:development", "sampling.steps=4", "data.groups=4", "data.group_size=4")
TEXTS = (
    "data={path: 'shapeworld:vlm-development', validation: null, groups: 4, group_size: 4, micro_batch: 4}",
    "optimizer.eps=1e-6",  # 1e-8 makes steps of the rounding of gradients near 1e-9, which unused tokens have
)
CALLS = "data.micro_batch=4"
CLIP = "rewards=[{name: shapeworld_clip}]"
"""A reward that jumps where a pixel is rounded to another of 256."""
JOINT_PAINTER = (
    "models={painter: {kind: pipeline, model: shapeworld, train: lora, optimizer: {lr: 1.0e-4, eps: 1.0e-6}, sampling: "
    "{steps: 3, guidance_scale: 1.0, pipeline_args: {max_sequence_length: 1}, transition: {name: flow_sde}}}}"
)
CODEC = (
    "models={decoder: {head: pixels, train: full, optimizer: {lr: 1.0e-3, eps: 1.0e-6}}, "
    "judge: {head: discriminator, width: 8, train: full, optimizer: {lr: 1.0e-3, eps: 1.0e-6}}}"
)
NEAR = "perceptual: {name: 'mmrl_shapeworld.pictured_captions:ShapeDistance'}"
TRAIN = "data.path=shapeworld:vlm-train"  # which has demonstrations
CASES: dict[str, tuple[str, ...]] = {
    "flow-grpo": (
        "flow-grpo", *PICTURES, "data.groups=2", "data.micro_batch=2", "sampling.window={}",
        "algorithm={name: grpo, advantage: {std: batch}, kl: {coef: 0.01}}",
    ),
    "vlm-grpo": ("shapes-vlm", *TEXTS),
}  # fmt: skip
"""Those that the integration tests have."""
FURTHER: dict[str, tuple[str, ...]] = {
    "writer-and-painter": (
        "shapes-vlm", "policy.model=shapeworld:vlm-worlds", JOINT_PAINTER, "algorithm={name: joint_grpo, kl: 0.01}",
        "rewards=[{name: shapeworld}]",
        "data={path: 'shapeworld:terse-train', validation: 'shapeworld:terse-development', groups: 4, group_size: 4, "
        "micro_batch: 4}", "evaluation={prompts: 3, batch: 2}", "training={iterations: 2}",
        "sampling.max_new_tokens=8", "optimizer.eps=1e-6",
    ),
    "diffusion-nft": ("quickstart", *PICTURES, CALLS, "optimizer.ema=0.9", "training={iterations: 5, updates: 2}"),
    "flow-grpo-lora": ("flow-grpo", *PICTURES, CALLS, "sampling.window={}", "policy.train=lora"),
    "flow-grpo-bf16": ("flow-grpo", *PICTURES, CALLS, "sampling.window={}", "policy.dtype=bfloat16"),
    "learned-noise": (
        "flow-grpo", *PICTURES, CALLS, "sampling.window={}",
        "sampling.transition={name: flow_sde, noise_level: 0.5, learned: {low: 0.1, high: 0.9, entropy: 0.01}}",
    ),
    "running-baseline": ("flow-grpo", *PICTURES, CALLS, "sampling.window={}",
        "algorithm.advantage={name: running}"),
    "awm": ("quickstart", *PICTURES, CALLS, "algorithm={name: awm, kl: {coef: 0.01}}"),
    "online-dpo": ("quickstart", *PICTURES, CALLS, "algorithm={name: online_dpo}"),
    "rejection": ("quickstart", *PICTURES, CALLS, "algorithm={name: rejection_sft}"),
    "draft": ("quickstart", *PICTURES, CALLS, "algorithm={name: draft}", CLIP),
    "video": (
        "shapes-video", "data={path: 'shapeworld:video-development', groups: 2, group_size: 4, micro_batch: 2}",
        "sampling.steps=4",
    ),
    "edit": ("shapes-edit", "data={path: 'shapeworld:edit-development', groups: 2, group_size: 4, micro_batch: 2}"),
    "ar-grpo": ("shapes-ar", *PICTURES[:1], *PICTURES[2:], CALLS),
    "hacking": (
        "quickstart", *PICTURES, CALLS, "training.hacking={window: 3, then: stop}",
        "rewards=[{name: shapeworld_clip}, {name: shapeworld, weight: 0}]",
    ),
    "max-kl": ("shapes-vlm", *TEXTS, "training.max_kl=10"),
    "gspo-dynamic": (
        "shapes-vlm", *TEXTS, "algorithm={name: gspo}",
        "data.group_sampling={name: dynamic, max_rounds: 2}",
    ),
    "dapo-adaptive": (
        "shapes-vlm", *TEXTS, "algorithm={name: dapo}",
        "data.group_sampling={name: adaptive, max_rounds: 2}",
    ),
    "selective-replay": (
        "shapes-vlm", *TEXTS, "algorithm={name: cispo, kl: {coef: 0.01}}",
        "data.replay={name: selective}",
    ),
    "success-replay": ("shapes-vlm", *TEXTS, "data.prompts={name: variance_aware}", "data.replay={name: success}"),
    "mixed-demonstrations": ("shapes-vlm", *TEXTS, TRAIN, "data.demonstrations={share: 0.5}"),
    "pretraining": ("shapes-vlm", *TEXTS, TRAIN, "pretraining={iterations: 1}", "data.weighting={name: difficulty}"),
    "imitation": ("shapes-vlm", *TEXTS, TRAIN, "data.micro_batch=1", "algorithm={name: sft}"),
    "online-dpo-texts": ("shapes-vlm", *TEXTS, "algorithm={name: online_dpo, loss: bco}"),
    "lagged": ("shapes-vlm", *TEXTS, "run={dir: run, display: plain, overlap: {lag: 2}}"),
    "lagged-corrected": (
        "shapes-vlm", *TEXTS, "run={dir: run, display: plain, overlap: {lag: 2}}", "algorithm.mismatch={cap: 2.0}",
    ),
    "lagged-nft": ("quickstart", *PICTURES, CALLS, "run={dir: run, display: plain, overlap: {lag: 1}}"),
    "vlm-lora": ("shapes-vlm", *TEXTS, "policy.train=lora"),
    "critic": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4}",
        "models={critic: {model: 'shapeworld:sums', head: value, train: full}}", "algorithm.name=ppo",
        "optimizer.eps=1e-6",
    ),
    "mix": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4}",
        "algorithm={name: mix, terms: [{name: grpo}, {name: sft, path: 'shapeworld:sums-few', weight: 0.5}], "
        "balance: {name: volatility, window: 3}}", "optimizer.eps=1e-6",
    ),
    "learnt-weights": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4}",
        "algorithm={name: grpo, advantage: {channels: [{rewards: [numeric]}, {rewards: [length], weight: 0.5, "
        "learn: {rate: 0.5, most: 1.0}}]}}", "rewards=[{name: numeric}, {name: length, args: {limit: 30}}]",
        "optimizer.eps=1e-6",
    ),
    "controller": (
        "shapes-reasoning",
        "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4, controller: "
        "{name: balance_score, every: 4, prompts: 4, answers: 4, args: {temperatures: [0.7, 1.3]}}}",
        "algorithm={name: rejection_sft}", "optimizer.eps=1e-6",
    ),
    "learning-reward": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4}",
        "rewards=[{name: 'mmrl_shapeworld.reasoning.answer_rewards:CotrainedAnswers'}, {name: numeric, weight: 0}]",
        "optimizer.eps=1e-6",
    ),
    "two-writers": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 8, group_size: 4, micro_batch: 2}",
        "models={past: {of: policy, every: 3}}", "optimizer.eps=1e-6",
        "algorithm={name: online_dpo, writers: {chosen: policy, rejected: past}}",
    ),
    "outcomes": (
        "shapes-reasoning", "data={path: 'shapeworld:sums-train', groups: 4, group_size: 4, micro_batch: 4}",
        "models={tokens: {model: 'shapeworld:sums', head: value, train: full}}",
        "algorithm={name: oreal, critic: tokens}", "optimizer.eps=1e-6",
    ),
    "codec": (
        "shapes-ar", "data={path: 'shapeworld:pictured-train', groups: 4, group_size: 4, micro_batch: 4}", CODEC,
        "optimizer.eps=1e-6",
        f"stages=[{{iterations: 5, algorithm: {{name: reconstruction, discriminator: judge, {NEAR}}}, "
        "data: {micro_batch: 1}}]",
        f"algorithm={{name: ranke, discriminator: judge, best: 2, {NEAR}, steady: {{decay: 0.5, every: 1}}}}",
        CLIP,
    ),
    "by-turns": (
        "shapes-vlm", "policy.model=shapeworld:vlm-worlds", JOINT_PAINTER,
        "stages=[{iterations: 1}, {iterations: 1, train: painter, rewards: [{name: shapeworld}], "
        "data: {prompts: {name: written, by: policy, reader: {name: captions}}}}]", "rounds=5",
        "rewards=[{name: format}]", "data={path: 'shapeworld:terse-train', groups: 4, group_size: 4, micro_batch: 4}",
        "sampling.max_new_tokens=8", "optimizer.eps=1e-6",
    ),
    "unified": (
        "shapes-unified", *PICTURES[2:], CALLS, "optimizer.eps=1e-6", "models.painter.optimizer.eps=1e-6", "rounds=5",
        "stages.0.iterations=1", "stages.1.iterations=1", "stages.0.data={groups: 4, group_size: 4}",
    ),
}  # fmt: skip
EIGHT = {
    "flow-grpo": (*CASES["flow-grpo"], "data.groups=4"),
    "vlm-grpo": (*CASES["vlm-grpo"], "data.micro_batch=2"),
}
"""A pipeline and a vision-language model with a call for each of eight processes."""
UNEQUAL = ("seconds/", "memory_mib/", "replay_gap")
"""Beginnings of the names of metrics that may differ; the gap is rounding, by the rows that are packed together."""
BOUND = 1e-5
"""The largest difference of a parameter after 10 updates at the recipe's learning rate, 1e-4 to 2.5e-4."""


def train(fork_server: ForkServer, folder: Path, count: int, *words: str) -> Path:
    group = start_group(fork_server, folder, count, "train", *words[:1], *SHORT, *words[1:])
    assert group.wait() == [0] * count, group.output_text()
    return folder / "run"


def tensors(run: Path, part: str = "parameters") -> dict[str, Any]:
    """Return a part of the last checkpoint, of the policy and of all models that were trained beside it."""
    files = sorted((Checkpoints(run).path() / "trainer").glob(f"{part}*.safetensors"))
    return {f"{file.stem} {name}": tensor for file in files for name, tensor in load_file(file).items()}


def largest_difference(one: Path, other: Path) -> float:
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] in ("train", "evaluation")]


@pytest.mark.integration
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in FURTHER)])
def test_processes_give_the_numbers_of_one(fork_server, tmp_path, case):
    compare(fork_server, tmp_path, case, (CASES | FURTHER)[case], (2,) if case in CASES else (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("case", EIGHT)
def test_eight_processes_give_the_numbers_of_one(fork_server, tmp_path, case):
    compare(fork_server, tmp_path, f"{case}, calls of 2", EIGHT[case], (8,))


def compare(fork_server: ForkServer, folder: Path, case: str, words: tuple[str, ...], counts: tuple[int, ...]) -> None:
    """Train with one process and with each of `counts`, and compare parameters and metrics."""
    alone = train(fork_server, folder / "1", 1, *words)
    assert any(row.get("grad_norm") for row in metrics(alone))
    for count in counts:
        together = train(fork_server, folder / str(count), count, *words)
        print(f"{case}, {count} processes: {largest_difference(alone, together):.1e}")
        assert largest_difference(alone, together) <= BOUND
        for one, other in zip(metrics(alone), metrics(together), strict=True):
            names = [name for name in one if not name.startswith(UNEQUAL)]
            jumps = ("reward",) if CLIP in words else ()
            least = {name: 3e-3 if name.startswith(jumps) else 1e-5 for name in names}
            apart = [name for name in names if not close(one[name], other[name], least[name])]
            assert [(name, one[name], other[name]) for name in apart] == []


def close(one: Any, other: Any, least: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=least)
    return bool(one == other)
