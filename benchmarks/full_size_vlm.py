"""A GRPO step of Qwen2.5-VL-3B at its real size with random weights, by mmrl and by trl's GRPOTrainer, on one GPU.

    python benchmarks/full_size_vlm.py                     # 2 prompts of a picture and text, 8 answers of 256 tokens
    python benchmarks/full_size_vlm.py --prompts 4 --checkpointing
    python benchmarks/full_size_vlm.py --profile step.json # where the time of mmrl's step goes
    python benchmarks/full_size_vlm.py --out docs/results  # full_size_vlm.md and .json
    python benchmarks/full_size_vlm.py --smoke             # the same code on a CPU, on a small model

Both train LoRA adapters of rank 32 on all linear layers of the language model, in bf16, from the same weights, prompts
and rewards, with one update a rollout and no reference; no answer ends early. They take turns in one process, each
with a copy of the model; the first turn of each warms up with short answers, and medians count. trl writes with
`generate` of transformers, and computes a few rows at a time when it learns (`--trl-rows`). Wall time; the GPU's queue
is empty at both ends. Peak memory is the allocator's peak in a side's turns, less what the other side holds between
turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from full_size import profile, synchronise
from peft import LoraConfig as PeftLoraConfig
from qwen_vlm import BF16_FLOPS, TEXT_3B, TEXT_SMALL, VISION_3B, VISION_SMALL, Cost, build, cost
from transformers.utils import logging as transformers_logging
from vlm_step import Ours, Theirs, Work

from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.run.timers import Phases
from mmrl.training.training_loop import TrainingLoop
from mmrl.understanding.decode_graph import FEWEST_TOKENS

SIDE, SMALL_SIDE = 784, 56
FULL = Work(prompts=2, answers=8, tokens=256, side=SIDE, words=224, width=0, layers=0, turns=3)
SMOKE = Work(prompts=2, answers=4, tokens=40, side=SMALL_SIDE, words=12, width=0, layers=0, turns=2)
RANK, ALPHA = 32, 64
ADAPTED = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
WARM_TOKENS = 24
"""The tokens of an answer in the turn that warms up: enough to record a graph."""
PROFILED_TOKENS = 32


@dataclass
class Side:
    """The measurements of one of the two, a number for each turn that counts."""

    name: str
    resting_mib: float = 0.0  # between its turns
    peak_mib: float = 0.0  # in its turns, less what the other holds
    step: list[float] = field(default_factory=list)  # seconds
    rollout: list[float] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return the median seconds of each phase that was measured."""
        phases = {"step": self.step, "rollout": self.rollout, "reward": self.reward, "update": self.update}
        return {name: median(values) for name, values in phases.items() if values}


class Memory:
    """A record of which side holds how much of the GPU's memory."""

    def __init__(self) -> None:
        self._before = 0.0

    def begin(self) -> None:
        """Start to count for one side."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._before = allocated_mib()

    def end(self, side: Side, other: Side, peak_mib: float = 0.0) -> None:
        """Book what was taken since `begin`; `peak_mib` is a peak that was read before the counter was reset."""
        peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0
        side.resting_mib += allocated_mib() - self._before
        side.peak_mib = max(side.peak_mib, max(peak, peak_mib) - other.resting_mib)


def allocated_mib() -> float:
    return torch.cuda.memory_allocated() / 2**20 if torch.cuda.is_available() else 0.0


class MeasuredTrl(Theirs):
    """trl's trainer, with its rollout and its update measured apart: answers are scored between them."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.rollout_seconds: list[float] = []
        self._started = self._written = 0.0
        self.tokens = arguments[0].tokens
        super().__init__(*arguments, **settings)

    def _reward(self, *arguments: Any, **named: Any) -> list[float]:
        synchronise()
        self._written = time.perf_counter()
        return super()._reward(*arguments, **named)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock; the first step writes few tokens."""
        tokens = self.tokens if self.spent else WARM_TOKENS
        self.trainer.generation_config.max_new_tokens = self.trainer.generation_config.min_new_tokens = tokens
        synchronise()
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop it, and let mmrl take its turn."""
        synchronise()
        self.spent.append(time.perf_counter() - self._started)
        self.rollout_seconds.append(self._written - self._started)
        self.after_step()


class AlternatingSteps:
    """Both sides, in turns."""

    def __init__(self, work: Work, arguments: argparse.Namespace, device: torch.device, folder: Path) -> None:
        self.work, self.device = work, device
        self.mine, self.theirs, self.memory = Side("mmrl"), Side("trl"), Memory()
        dtype = torch.float32 if arguments.smoke else torch.bfloat16
        sizes = (TEXT_SMALL, VISION_SMALL) if arguments.smoke else (TEXT_3B, VISION_3B)
        self.memory.begin()
        model, processor = build(*sizes, work.side, device, dtype)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.memory.end(self.mine, self.theirs)
        self.memory.begin()
        trl_model = copy.deepcopy(model)
        self.memory.end(self.theirs, self.mine)
        self.memory.begin()
        config = VLMConfig(
            model="benchmark",
            lora=LoraConfig(rank=RANK, alpha=ALPHA),
            attention="mmrl",
            dtype="float32" if arguments.smoke else "bfloat16",
            gradient_checkpointing=arguments.checkpointing,
        )
        self.ours = Ours(work, model, processor, folder, config)
        self.memory.end(self.mine, self.theirs)
        vlm = self.ours.trainer.policy.vlm
        never = vlm.suppressed.tolist()
        rows = min(arguments.trl_rows, work.prompts * work.answers)
        self.memory.begin()
        self.trl = MeasuredTrl(
            work,
            trl_model,
            processor,
            folder,
            self._after_step,
            adapters=PeftLoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=ADAPTED),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=work.prompts * work.answers // rows,
            generation_kwargs={"min_new_tokens": work.tokens, "suppress_tokens": never},
            gradient_checkpointing=arguments.checkpointing,
            bf16=not arguments.smoke,
            use_cpu=device.type == "cpu",
        )
        trained = [
            sum(p.numel() for p in parameters if p.requires_grad)
            for parameters in (self.ours.trainer.policy.vlm.model.parameters(), self.trl.trainer.model.parameters())
        ]
        assert trained[0] == trained[1], f"mmrl trains {trained[0]} parameters, and trl {trained[1]}"
        self.trained = trained[0]

    def run(self) -> None:
        """Let both take all of their turns: trl's trainer calls mmrl's after each of its steps."""
        self.trl.trainer.train()

    def _after_step(self) -> None:
        self.memory.end(self.theirs, self.mine)
        counts = len(self.trl.spent) > 1  # the first turn warms up
        if counts:
            whole, writing = self.trl.spent[-1], self.trl.rollout_seconds[-1]
            self.theirs.step.append(whole)
            self.theirs.rollout.append(writing)
            self.theirs.update.append(whole - writing)
        self._tell(self.theirs, self.trl.spent[-1])
        self.memory.begin()
        tokens = self.work.tokens if counts else WARM_TOKENS
        self.ours.trainer.policy.sampling = TokenSamplingConfig(max_new_tokens=tokens)
        synchronise()
        started = time.perf_counter()
        metrics, phases = self.ours.trainer.iterate()
        synchronise()
        took = time.perf_counter() - started
        seconds = phases.metrics()
        peaks = [value for name, value in seconds.items() if name.startswith("memory_mib/")]
        self.memory.end(self.mine, self.theirs, max(peaks) if torch.cuda.is_available() else 0.0)
        assert round(metrics["length"]) == tokens, f"mmrl wrote {metrics['length']} tokens an answer"
        if counts:
            self.mine.step.append(took)
            for name, into in (("rollout", self.mine.rollout), ("reward", self.mine.reward)):
                into.append(seconds[f"seconds/{name}"])
            self.mine.update.append(took - seconds["seconds/rollout"] - seconds["seconds/reward"])
        self._tell(self.mine, took, metrics["replay_gap"])
        self.memory.begin()

    def _tell(self, side: Side, took: float, gap: float | None = None) -> None:
        turn = len(self.trl.spent)
        about = "" if gap is None else f", replay gap {gap:.1e}"
        print(
            f"turn {turn}{' (warm-up)' if turn == 1 else ''}: {side.name} {took:.2f} s, "
            f"holds {side.resting_mib / 1024:.1f} GiB, peak {side.peak_mib / 1024:.1f} GiB{about}",
            flush=True,
        )


def rollout_seconds(trainer: TrainingLoop, work: Work, tokens: int, seed: int = 0) -> float:
    """Return the wall time of a rollout whose answers have that many tokens."""
    sampling = TokenSamplingConfig(max_new_tokens=tokens)
    samples = trainer.source.prompts.next()
    requests = [RolloutRequest(sample, work.answers, group, sampling=sampling) for group, sample in enumerate(samples)]
    synchronise()
    started = time.perf_counter()
    with torch.no_grad():
        trainer.policy.rollout(requests, seed=seed)
    synchronise()
    return time.perf_counter() - started


def launched_seconds(trainer: TrainingLoop, work: Work) -> float:
    """Return the wall time of a token whose kernels are launched one by one: without room no graph is recorded."""
    few, many = (rollout_seconds(trainer, work, tokens) for tokens in (1, FEWEST_TOKENS - 1))
    return (many - few) / (FEWEST_TOKENS - 2)


def profile_step(trainer: TrainingLoop, work: Work) -> dict[str, Any]:
    """Profile a rollout of a few tokens, and an update of a whole step."""
    experience = trainer.source.collect(trainer.step, 0.0, Phases())
    parts = {
        f"rollout of {PROFILED_TOKENS} tokens": lambda: rollout_seconds(trainer, work, PROFILED_TOKENS),
        "update": lambda: trainer._update(experience.micro_batches, MetricAccumulator(), check_gap=True),
    }
    return {name: profile(name, part) for name, part in parts.items()}


def results(
    comparison: AlternatingSteps, prompt_seconds: float, least: Cost, recomputes: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return all numbers, and lines about them."""
    work, mine, theirs = comparison.work, comparison.mine.summary(), comparison.theirs.summary()
    ratios = [b / a for a, b in zip(comparison.mine.step, comparison.theirs.step, strict=True)]
    written = work.prompts * work.answers * work.tokens
    read = work.prompts * comparison.ours.prompt_tokens
    decode = mine["rollout"] - prompt_seconds
    numbers: dict[str, Any] = {
        "mmrl": mine | {"resting_mib": comparison.mine.resting_mib, "peak_mib": comparison.mine.peak_mib},
        "trl": theirs | {"resting_mib": comparison.theirs.resting_mib, "peak_mib": comparison.theirs.peak_mib},
        "times_as_fast": median(ratios),
        "prompt_s": prompt_seconds,
        "decode_s": decode,
        "rollout_tokens_a_second": written / mine["rollout"],
        "decode_ms_a_token": 1000 * decode / (work.tokens - 1),
        "update_tokens_a_second": (read + written) / mine["update"],
        "trl_rollout_tokens_a_second": written / theirs["rollout"],
        "trl_update_tokens_a_second": (work.answers * read + written) / theirs["update"],
        "least": asdict(least),
        "share_of_bandwidth": least.decode_seconds / decode,
        "share_of_flops": least.update_flops / BF16_FLOPS / mine["update"],
    }
    rows = [
        f"| {name} | {side['step']:.2f} | {side['rollout']:.2f} | {side['update']:.2f} "
        f"| {side['peak_mib'] / 1024:.1f} | {side['resting_mib'] / 1024:.1f} |"
        for name, side in (("mmrl", numbers["mmrl"]), ("trl", numbers["trl"]))
    ]
    lines = [
        "| | step s | rollout s | update s | peak GiB | GiB between turns |",
        "|-|-|-|-|-|-|",
        *rows,
        "",
        f"mmrl is {numbers['times_as_fast']:.2f} times as fast (median of {len(ratios)} turns).",
        "",
        f"- mmrl's rollout: {numbers['rollout_tokens_a_second']:.0f} tokens/s; {prompt_seconds:.3f} s for prompts and "
        f"first tokens, then {numbers['decode_ms_a_token']:.2f} ms for a token of all {work.prompts * work.answers} "
        f"answers: {numbers['share_of_bandwidth']:.1%} of the memory's bandwidth (the least is "
        f"{least.decode_bytes / work.tokens / 1e9:.2f} GB a token at 3.35 TB/s). Rewards took {mine['reward']:.3f} s.",
        f"- mmrl's update: {numbers['update_tokens_a_second']:.0f} tokens/s of {read + written}, prompts counted once; "
        f"{least.update_flops / 1e12:.1f} TFLOP, {numbers['share_of_flops']:.1%} of 989 TFLOP/s. Counted are the "
        "forward pass and gradients of activations and adapters: the base is frozen"
        f"{'; what checkpointing computes again is not counted' if recomputes else ''}.",
        f"- trl's rollout: {numbers['trl_rollout_tokens_a_second']:.0f} tokens/s; its update "
        f"{numbers['trl_update_tokens_a_second']:.0f} tokens/s of {work.answers * read + written}: each answer has its "
        "own copy of the prompt.",
    ]
    return numbers, lines


def write(folder: Path, about: str, command: str, numbers: dict[str, Any], lines: list[str]) -> None:
    """full_size_vlm.md and .json."""
    page = [
        "# A GRPO step of Qwen2.5-VL-3B on one GPU, by mmrl and by trl",
        "",
        "<!-- Written by benchmarks/full_size_vlm.py. -->",
        "",
        about,
        "",
        "```bash",
        command,
        "```",
        "",
        *lines,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "full_size_vlm.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    (folder / "full_size_vlm.json").write_text(json.dumps({"about": about, **numbers}, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a small model, on the CPU")
    parser.add_argument("--prompts", type=int, help="prompts of a step, 8 answers to each")
    parser.add_argument("--turns", type=int, help="turns of each side, after the one that warms up")
    parser.add_argument("--trl-rows", type=int, default=4, help="rows that trl computes at once when it learns")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations, on both sides")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="profile a step of mmrl, and write what was found")
    parser.add_argument("--out", type=Path, help="a folder for the table and the numbers")
    return parser.parse_args()


def main() -> None:
    """Build, compare, and print."""
    arguments = parsed()
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    device = torch.device("cpu" if arguments.smoke else "cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        print("not measured: a model of this size needs a GPU, and there is none here; --smoke runs a small one")
        return
    work = SMOKE if arguments.smoke else FULL
    work = replace(work, prompts=arguments.prompts or work.prompts, turns=arguments.turns or work.turns)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        comparison = AlternatingSteps(work, arguments, device, Path(folder))
        prompt_tokens = comparison.ours.prompt_tokens
        where = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
        about = (
            f"{comparison.parameters / 1e6:.1f} M parameters, {comparison.trained / 1e6:.2f} M of them trained; "
            f"{work.prompts} prompts of {prompt_tokens} tokens ({(work.side // 28) ** 2} of a picture), "
            f"{work.answers} answers of {work.tokens} tokens to each. {where}, torch {torch.__version__}."
        )
        print(f"{about}\nbuilt in {time.perf_counter() - began:.1f} s", flush=True)
        comparison.run()
        assert set(comparison.trl.lengths[1:]) == {work.tokens}, f"trl wrote {comparison.trl.lengths} tokens an answer"
        trainer = comparison.ours.trainer
        prompt_seconds = min(rollout_seconds(trainer, work, 1) for _ in range(2))
        model = trainer.policy.vlm.model
        least = cost(model, work.prompts, work.answers, prompt_tokens, work.tokens, (work.side // 14) ** 2)
        numbers, lines = results(comparison, prompt_seconds, least, arguments.checkpointing)
        if device.type == "cuda":
            launched = launched_seconds(trainer, work)
            numbers["launched_ms_a_token"] = 1000 * launched
            lines.append(f"- Without a CUDA graph a token takes {1000 * launched:.1f} ms.")
        print("\n".join(lines), flush=True)
        if arguments.out:
            flags = [f"--prompts {work.prompts}", *(["--checkpointing"] if arguments.checkpointing else [])]
            write(arguments.out, about, f"python benchmarks/full_size_vlm.py {' '.join(flags)}", numbers, lines)
        if arguments.profile:
            arguments.profile.write_text(json.dumps(profile_step(trainer, work), indent=1) + "\n")
    print(f"{time.perf_counter() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    main()
