"""Comparisons of divided policies with whole ones, which all processes of a group make together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import diffusers
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForImageTextToText

from mmrl.distributed import processes
from mmrl.distributed.tensor_parts import on_main_whole
from mmrl.errors import RunError
from mmrl.rollout import Rollout
from mmrl.training.ema import ParameterCopy
from mmrl.training.run.checkpoints import load_optimizer_tensors, load_parameters, optimizer_tensors
from tests.distributed import divided_policies as made

LEARNED = {"name": "flow_sde", "noise_level": 0.7, "learned": {"low": 0.1, "high": 1.5}}
CASES: dict[str, Callable[[Path], Any]] = {
    "sd3-full": lambda folder: made.generator("full"),
    "sd3-lora": lambda folder: made.generator("lora"),
    "sd3-learned-noise": lambda folder: made.generator("full", transition=LEARNED),
    "sd3-bfloat16": lambda folder: made.generator("full", torch.bfloat16),
    "vlm-full": lambda folder: made.answerer("full", folder / "model", fused_log_probs=True),
    "vlm-lora-bfloat16": lambda folder: made.answerer("lora", folder / "model", dtype="bfloat16"),
}
DAILY = ("sd3-full", "vlm-lora-bfloat16")


def compare_daily(folder: Path) -> dict[str, dict[str, float]]:
    """All comparisons of some cases."""
    return {case: Comparison(case, folder).all() for case in DAILY}


def compare_all(folder: Path) -> dict[str, dict[str, float]]:
    """All comparisons of all cases."""
    return {case: Comparison(case, folder).all() for case in CASES}


class Comparison:
    """A policy whose parameters are divided, and the same one whole, in every process."""

    def __init__(self, case: str, folder: Path) -> None:
        self.folder, self.make = folder / case, lambda: CASES[case](folder)
        self.is_generator = case.startswith("sd3")
        self.requests = made.PROMPTS if self.is_generator else made.QUESTIONS
        self.ours, self.whole = made.divided(self.make()), self.make()
        self.trained, self.layout = self.ours.parameters_to_train(), self.ours.layout
        self.shake(0)
        self.samples = {self.whole: self.sampled(self.whole)}
        with self.layout.whole():
            self.samples[self.ours] = self.sampled(self.ours)
        self.found: dict[str, float] = {}

    def sampled(self, policy: Any) -> dict[int, Rollout]:
        """Rollouts of a policy by their seeds; learned noise levels are those of the policy that sampled."""
        return {seed: policy.rollout(self.requests, seed=seed) for seed in (3, 4)}

    def all(self) -> dict[str, float]:
        """The largest difference of each kind."""
        self.folder.mkdir(exist_ok=True)
        self.rollouts()
        self.gradients()
        self.copies()
        self.files()
        self.updates()
        return self.found

    def rollouts(self) -> None:
        self.found["parameters"] = made.distance(self.ours, self.whole)
        own, theirs = self.samples[self.ours][4], self.samples[self.whole][4]
        self.found["rollout"] = made.difference(own, theirs)
        with self.layout.whole():
            self.found["replay_gap"] = abs(self.ours.replay_gap(own) - self.whole.replay_gap(theirs))
        if self.is_generator:  # outside, all processes together
            call = dict(prompt="a red circle", num_inference_steps=2, height=16, width=16, output_type="pt")
            with self.whole._trainable.precision():
                pictures = [
                    policy.pipeline(**call, max_sequence_length=8, generator=torch.Generator().manual_seed(0))[0]
                    for policy in (self.ours, self.whole)
                ]
            self.found["call_outside"] = (pictures[0] - pictures[1]).abs().max().item()

    def gradients(self) -> None:
        self.found["gradients"] = self.summed({0: [3], 1: [4]})
        self.found["gradients_uneven"] = self.summed({0: [3, 4], 1: []})
        self.found["gradients_none"] = self.summed({0: [], 1: []})
        with collectives() as one:
            self.summed({0: [3], 1: [4]}, steps=[2])
        with collectives() as six:
            self.summed({0: [3], 1: [4]})
        self.found["collectives"] = len(six) / len(one)

    def summed(self, work: dict[int, list[int]], steps: list[int] | None = None) -> float:
        """The largest difference of gradients, as a part of the largest gradient, if process r computes `work[r]`."""
        for policy in (self.ours, self.whole):
            for parameter in policy.parameters_to_train().values():
                parameter.grad = None
        with self.layout.whole():
            for seed in work.get(processes.rank(), []):
                made.backward(self.ours, self.samples[self.ours][seed], steps)
        self.layout.sum_gradients(self.trained.values())
        for seed in (seed for seeds in work.values() for seed in seeds):
            made.backward(self.whole, self.samples[self.whole][seed], steps)
        ours, whole = made.gradients(self.ours), made.gradients(self.whole)
        assert bool(whole) == any(work.values())
        largest = max((each.abs().max().item() for each in whole.values()), default=1.0)
        return made.furthest(ours, whole) / largest

    def copies(self) -> None:
        """The old policy, a moving average and the reference."""
        old, average = (
            (
                ParameterCopy(self.trained, self.layout, used_in_batches=used),
                ParameterCopy(self.whole.parameters_to_train()),
            )
            for used in (True, False)
        )
        assert old[0].is_live()
        self.shake(1)
        for ours, whole in (old, average):
            assert not ours.is_live()
            ours.follow(0.5)
            whole.follow(0.5)
        with self.layout.whole():
            assert not old[0].is_live()
            for _ in range(1 + processes.rank()):  # without waiting for one another
                self.note("rollout_old", old[0].in_place(), old[1].in_place())
                self.note("rollout_reference", self.ours.reference(), self.whole.reference())
        with average[0].in_place(), self.layout.whole(copies=False):
            self.note("rollout_average", nullcontext(), average[1].in_place())
        with self.layout.whole(copies=False):
            self.note("rollout_after", nullcontext(), nullcontext())
            try:
                with old[0].in_place():
                    raise AssertionError("the copy is not whole")
            except RunError:
                pass
        state = old[0].state_dict()
        if processes.is_main():
            self.found["state"] = made.furthest(state, old[1].state_dict())
            save_file(state, self.folder / "old.safetensors")
        processes.barrier()
        old[0].follow(0.0)
        assert old[0].is_live()
        old[0].load_state_dict(load_file(self.folder / "old.safetensors"))
        with self.layout.whole():
            self.note("rollout_loaded", old[0].in_place(), old[1].in_place())

    def note(self, name: str, ours: Any, whole: Any) -> None:
        """Note the difference of rollouts under two contexts."""
        with ours, whole, torch.no_grad():
            pair = [policy.rollout(self.requests, seed=5) for policy in (self.ours, self.whole)]
        self.found[name] = max(self.found.get(name, 0.0), made.difference(*pair))

    def files(self) -> None:
        """Saved policies: equal files, which their libraries and a divided policy load."""
        folders = self.folder / "ours", self.folder / "whole"
        with self.layout.whole(copies=False):
            if processes.is_main():
                for policy, folder in zip((self.ours, self.whole), folders, strict=True):
                    folder.mkdir()
                    policy.save(folder)
        if processes.is_main():
            ours, whole = (
                {str(file.relative_to(folder)): contents(file) for file in folder.rglob("*") if file.is_file()}
                for folder in folders
            )
            different = [name for name in ours.keys() | whole.keys() if ours.get(name) != whole.get(name)]
            assert not different, different
            self.load_elsewhere(folders[0])
        processes.barrier()
        self.shake(2, only_ours=True)
        assert made.distance(self.ours, self.whole) > 1e-3
        with self.layout.whole():
            self.ours.load(folders[0])
            self.layout.parameters_changed()
        self.found["loaded"] = made.distance(self.ours, self.whole)

    def load_elsewhere(self, folder: Path) -> None:
        """Load a saved policy with the library that its format is of."""
        if self.is_generator and (folder / "transformer").is_dir():
            loaded = diffusers.AutoModel.from_pretrained(str(folder / "transformer"))
            assert type(loaded) is diffusers.SD3Transformer2DModel
        elif self.is_generator:
            self.make().pipeline.load_lora_weights(folder, adapter_name="another")
        elif (folder / "config.json").is_file():
            AutoModelForImageTextToText.from_pretrained(folder)
        else:
            PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(self.folder.parent / "model"), folder)

    def updates(self) -> None:
        """Two updates, a checkpoint, and a third one: also by a whole and by a divided policy that resume there."""
        one, two = optimizer_of(self.whole), optimizer_of(self.ours)
        for _ in range(2):
            self.update(self.whole, one, alone=True)
            self.update(self.ours, two)
        self.found["updated"] = made.distance(self.ours, self.whole)
        state, parameters = optimizer_tensors(two), on_main_whole({k: p.detach() for k, p in self.trained.items()})
        if processes.is_main():
            self.found["moments"] = made.furthest(state, optimizer_tensors(one))
            save_file(state, self.folder / "optimizer.safetensors")
            save_file({name: each.contiguous() for name, each in parameters.items()}, self.folder / "all.safetensors")
        processes.barrier()
        resumed = {"resumed_by_one": self.make(), "resumed_by_two": made.divided(self.make())}
        self.samples = {}  # those that resume sample what is sampled now
        self.update(self.ours, two)
        for name, policy in resumed.items():
            load_parameters(policy.parameters_to_train(), load_file(self.folder / "all.safetensors"))
            optimizer = optimizer_of(policy)
            load_optimizer_tensors(optimizer, load_file(self.folder / "optimizer.safetensors"))
            self.update(policy, optimizer, alone=name == "resumed_by_one")
            self.found[name] = made.distance(policy, self.ours)

    def update(self, policy: Any, optimizer: torch.optim.Optimizer, alone: bool = False) -> None:
        """Make an update with the clipped gradient of two rollouts: both in each process, or dealt to processes."""
        if policy not in self.samples:
            with policy.layout.whole():
                self.samples[policy] = self.sampled(policy)
        optimizer.zero_grad(set_to_none=True)
        parameters = optimizer.param_groups[0]["params"]
        with policy.layout.whole(copies=False):
            for number, seed in enumerate((3, 4)):
                if alone or processes.owns(number):
                    made.backward(policy, self.samples[policy][seed])
        if not alone:
            policy.layout.sum_gradients(parameters)
        norm = policy.layout.clip_gradients(parameters, 0.01).item()
        assert norm > 0.01
        optimizer.step()
        policy.layout.parameters_changed()

    def shake(self, seed: int, only_ours: bool = False) -> None:
        """Move the parameters of both policies by the same amounts."""
        for policy in (self.ours,) if only_ours else (self.ours, self.whole):
            made.shake(policy, seed)


def contents(file: Path) -> Any:
    """The bytes of a file; of safetensors the header parsed, since its keys are written in random order."""
    found = file.read_bytes()
    if file.suffix != ".safetensors":
        return found
    end = 8 + int.from_bytes(found[:8], "little")
    return json.loads(found[8:end]), found[end:]


def optimizer_of(policy: Any) -> torch.optim.Optimizer:
    """AdamW over all trained parameters."""
    return torch.optim.AdamW(policy.parameters_to_train().values(), lr=1e-3, eps=1e-4, weight_decay=0.01)


@contextmanager
def collectives() -> Iterator[list[str]]:
    """Names of the collectives that this process takes part in."""
    found: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "c10d":
                found.append(str(function))
            return function(*args, **kwargs or {})

    with Count():
        yield found
