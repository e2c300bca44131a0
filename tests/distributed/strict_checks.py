"""Comparisons of policies that gather their blocks in each call with whole ones, made by all processes of a group."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import diffusers
import torch

from mmrl.distributed import processes
from mmrl.distributed.strict import Strict
from mmrl.training.ema import ParameterCopy
from tests.distributed import divided_policies as made
from tests.distributed.window_checks import collectives, contents


def compare(folder: Path) -> dict[str, dict[str, float]]:
    """The largest difference of each kind, and the collectives of a replay, of full training and of adapters."""
    found = {train: compare_one(train, folder, torch.float32) for train in ("full", "lora")}
    return found | {"bfloat16": compare_one("full", folder / "bfloat16", torch.bfloat16)}


def compare_one(train: str, folder: Path, dtype: torch.dtype) -> dict[str, float]:
    ours, whole = made.generator(train, dtype), made.generator(train, dtype)
    ours.place(Strict())
    for policy in (ours, whole):
        made.shake(policy)
    policies = ours, whole
    found: dict[str, float] = {}

    def differing(seed: int) -> float:
        with torch.no_grad():
            return made.difference(*(policy.rollout(made.PROMPTS, seed=seed) for policy in policies))

    found["rollout"] = differing(3)
    old = [ParameterCopy(policy.parameters_to_train(), policy.layout) for policy in policies]
    for policy in policies:
        made.shake(policy, 1)
    with old[0].in_place(), old[1].in_place():
        found["rollout_old"] = differing(5)
    with ours.reference(), whole.reference():
        found["rollout_reference"] = differing(5)
    found["rollout_after"] = differing(5)
    seeds = (3, 4)
    samples = [{seed: policy.rollout(made.PROMPTS, seed=seed) for seed in seeds} for policy in policies]
    for seed in (seeds * processes.size())[: processes.size()]:
        made.backward(whole, samples[1][seed])
    with collectives() as seen:
        made.backward(ours, samples[0][seeds[processes.rank() % 2]])
    for name, number in Counter("gather" if "gather" in each else "reduce" for each in seen).items():
        found[f"{name}s"] = number
    ours.layout.sum_gradients(ours.parameters_to_train().values())
    found["gradients"] = made.furthest(made.gradients(ours), made.gradients(whole))
    found["largest_gradient"] = max(each.abs().max().item() for each in made.gradients(whole).values())
    with collectives() as seen:
        made.backward(ours, samples[0][3], [2])
    found["gathers_of_one_step"] = len([each for each in seen if "gather" in each])
    found["steps"] = samples[0][3].log_probs.shape[1]
    found["blocks"] = 1 + len(ours.pipeline.transformer.transformer_blocks)
    compare_files(train, folder, policies, found)
    return found


def compare_files(train: str, folder: Path, policies: tuple[Any, Any], found: dict[str, float]) -> None:
    """Save both policies, compare their files, and load them with diffusers and into the divided policy."""
    ours, whole = policies
    folders = folder / f"{train}-ours", folder / f"{train}-whole"
    with ours.layout.saving():
        if processes.is_main():
            for policy, place in zip(policies, folders, strict=True):
                place.mkdir(parents=True)
                policy.save(place)
    if processes.is_main():
        mine, theirs = (
            {str(file.relative_to(place)): contents(file) for file in place.rglob("*") if file.is_file()}
            for place in folders
        )
        assert mine == theirs
        if train == "full":
            loaded = diffusers.AutoModel.from_pretrained(str(folders[0] / "transformer"))
            assert type(loaded) is diffusers.SD3Transformer2DModel
        else:
            made.generator(train).pipeline.load_lora_weights(folders[0], adapter_name="another")
    processes.barrier()
    made.shake(ours, 2)
    assert made.distance(ours, whole) > 1e-3
    ours.load(folders[0])
    found["loaded"] = made.distance(ours, whole)
