"""The memory estimate against what tiny pipelines really hold when they are rolled out and trained on a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils._pytree import tree_iter

from mmrl.config import TrainConfig, list_recipes, load_config
from mmrl.config.policy import LoraConfig, PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.errors import ConfigError
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl.generation.memory.architecture import find_architecture
from mmrl.generation.memory.estimate import (
    Trial,
    count_weights,
    estimate_memory,
    extrapolate,
    find_block_runs,
    placeholder_sample,
    recording_bytes,
)
from mmrl.generation.memory.memory_report import MemoryEstimate, UpdateMemory
from mmrl.generation.memory.meta_run import AllocationTracker
from mmrl.policy import StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny

TINY = [
    *("sd3", "flux_kontext"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("wan22", "sd15_inpaint_9_channels", "sdxl", "qwen_image", "ltx2", "flux2_klein")
    ),
]
ROWS = 2


def configured(name: str, folder: Path, changes: dict[str, object] | None = None) -> TrainConfig:
    """A run of a tiny pipeline, saved to `folder`."""
    tiny.build(name).save_pretrained(folder)
    changes = changes or {}
    sections = {
        "policy": {"model": str(folder), "lora": {"rank": 4, "alpha": 8}},
        "sampling": tiny.sampling(name, steps=4).model_dump(),
        "data": {"path": "none.jsonl", "groups": 2, "group_size": ROWS, "micro_batch": ROWS},
    }
    for key, value in changes.items():
        section, _, last = key.rpartition(".")
        target = sections.setdefault(section.partition(".")[0], {}) if section else sections
        for part in section.split(".")[1:]:
            target = target.setdefault(part, {})
        target[last] = value
    return TrainConfig(name="it", rewards=({"name": "compressibility"},), **sections)


def estimated(config: TrainConfig) -> MemoryEstimate:
    return estimate_memory(config, find_architecture(config.policy.model))


@pytest.mark.integration
@pytest.mark.parametrize("name", TINY)
def test_estimate_equals_measured_bytes(name, tmp_path):
    config = configured(name, tmp_path)
    estimate = estimated(config)
    policy = PipelinePolicy.from_config(config.policy, config.sampling)
    parameters = list(policy.parameters_to_train().values())
    assert estimate.trained == sum(p.numel() for p in parameters)

    with placeholder_sample(policy.pipeline, config.sampling) as sample:
        rollout = policy.rollout([RolloutRequest(sample, n=ROWS, group=0)], seed=0)
    assert estimate.recording == recording_bytes(rollout)

    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    for recompute, expected in ((False, estimate.plain), (True, estimate.recomputed)):
        for denoiser in policy._denoisers.values():
            denoiser.enable_gradient_checkpointing() if recompute else denoiser.disable_gradient_checkpointing()
        kept, peak, inputs = measured_update(policy, rollout)
        # The estimate has the denoiser's inputs, as far as they are kept. Masked attention of a GPU pads its log-sums.
        assert 0.999 * kept <= expected.kept <= 1.005 * (kept + inputs)
        assert 0.999 * peak <= expected.peak <= 1.06 * (peak + inputs)


NFT = {"algorithm": {"name": "diffusion_nft"}, "sampling.transition": {}}


@pytest.mark.integration
@pytest.mark.parametrize(
    ("denoiser", "changes"), [("transformer_2", {}), pytest.param("transformer", NFT, marks=pytest.mark.slow)]
)
def test_the_update_of_one_of_two_denoisers_keeps_activations(denoiser, changes, tmp_path):
    """Each computes some noise levels; where the frozen one does, an update keeps nothing."""
    estimate = estimated(configured("wan22", tmp_path, {**changes, "policy.denoisers": [denoiser]}))
    assert estimate.plain.kept > estimate.recomputed.kept > 0


def measured_update(policy: PipelinePolicy, rollout: Rollout) -> tuple[int, int, int]:
    """Bytes that the denoiser's forward pass keeps for the first decision, the peak of both passes, and its inputs."""
    counted, kept, inputs = AllocationTracker(), [], []

    def counting(forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            inputs.extend(each.nbytes for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor))
            with counted:
                return forward(*args, **kwargs)

        return call

    def visit(now: StepOutputs) -> None:
        kept.append(counted.now)
        with counted:
            now.log_probs.sum().backward()

    denoisers = policy._denoisers.values()
    with torch.enable_grad(), replaced_attributes((each, "forward", counting(each.forward)) for each in denoisers):
        policy.replay(rollout, [0], visit)
    return kept[0], counted.peak, sum(inputs)


@pytest.mark.integration
def test_estimate_includes_the_optimizer_state(tmp_path):
    config = configured("sd3", tmp_path, {"optimizer.ema": 0.9})
    estimate = estimated(config)
    parameters = list(PipelinePolicy.from_config(config.policy, config.sampling).parameters_to_train().values())
    optimizer = torch.optim.AdamW(parameters)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [each for state in optimizer.state.values() for each in state.values() if each.ndim]
    copies = [*parameters, *(p.grad for p in parameters), *moments, *parameters]  # the last: a moving average
    assert estimate.training_state == sum(each.numel() * each.element_size() for each in copies)
    assert estimate.copies == ("moving average",)


@pytest.mark.integration
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_full_training_counts_float32_weights_and_a_reference(dtype, tmp_path):
    config = configured("sd3", tmp_path, {"policy.train": "full", "policy.dtype": dtype})
    estimate = estimated(config)
    policy = PipelinePolicy.from_config(config.policy, config.sampling)
    denoiser = policy.pipeline.transformer
    assert estimate.trained == sum(p.numel() for p in denoiser.parameters())
    assert "transformer" not in {each.name for each in estimate.frozen}
    with policy.reference():
        assert estimate.reference == bytes_of(denoiser)
    (buffers,) = [each for each in estimate.frozen if each.name == "transformer's buffers"]
    assert buffers.bytes == sum(b.numel() * b.element_size() for b in denoiser.buffers())
    assert estimate.plain.peak > estimate.trained * (0 if dtype == "float32" else 2)


def bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


@pytest.mark.integration
def test_estimate_counts_velocity_losses_and_an_old_policy(tmp_path):
    ode = {"name": "ode"}
    config = configured("sd3", tmp_path, {"algorithm.name": "diffusion_nft", "sampling.transition": ode})
    estimate = estimated(config)
    assert estimate.copies == ("old policy",)
    assert estimate.plain.peak >= estimate.plain.kept > estimate.recomputed.kept > 0


@pytest.mark.slow
def test_estimate_grows_with_sizes(tmp_path):
    small = estimated(configured("sd3", tmp_path))
    large = {"sampling.height": 32, "sampling.width": 32, "data.micro_batch": 1}
    wide = estimated(configured("sd3", tmp_path, large))
    assert wide.plain.kept > 1.2 * small.plain.kept / 2
    assert wide.micro_batches == 2 * small.micro_batches


@pytest.mark.integration
def test_estimate_uses_the_configured_scheduler(tmp_path):
    ddim = {"name": "ddim", "noise_level": 1.0}
    config = configured("sd3", tmp_path, {"sampling.transition": ddim})
    with pytest.raises(ConfigError, match="ddim does not fit"):
        estimated(config)
    flow = configured("sdxl", tmp_path / "sdxl", {"policy.scheduler": "PNDMScheduler"})
    with pytest.raises(UnsupportedError, match="PNDMScheduler cannot be trained through"):
        estimated(flow)


# Repeated blocks


@pytest.mark.slow
def test_extrapolation_from_two_blocks_is_exact_for_six(tmp_path):
    deep = {**tiny.PIPELINES["sd3"].components}
    name, settings = deep["transformer"]
    described = replace(
        tiny.PIPELINES["sd3"], components={**deep, "transformer": (name, {**settings, "num_layers": 6})}
    )
    tiny.make(described, 0).save_pretrained(tmp_path)
    config = TrainConfig(
        name="it",
        policy=PolicyConfig(model=str(tmp_path), lora=LoraConfig(rank=4, alpha=8)),
        sampling=SamplingConfig(**{"steps": 4, "transition": {"name": "flow_sde"}, **described.sampling}),
        rewards=({"name": "compressibility"},),
        data={"path": "none.jsonl", "groups": 2, "group_size": 2, "micro_batch": 2},
    )
    trial = Trial(config, find_architecture(str(tmp_path)), torch.float32)
    runs = find_block_runs(trial.policy.pipeline.transformer)
    assert [len(run.names) for run in runs] == [5]  # the sixth block is another: it drops the text
    assert extrapolate(runs, trial._measure) == trial._measure()


@pytest.mark.integration
def test_pictures_that_a_pipeline_edits_have_its_own_size_where_none_is_set():
    pipeline = tiny.build("sd15_pix2pix")
    with placeholder_sample(pipeline, SamplingConfig()) as sample, Image.open(sample.conditions["image"]) as picture:
        assert picture.size == (pipeline.unet.config.sample_size * pipeline.vae_scale_factor,) * 2


def test_repeated_blocks_are_restored_in_order():
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(5)] + [nn.Linear(2, 3) for _ in range(4)])
    before = list(model.blocks)
    seen = []

    def measure() -> list[int]:
        seen.append([each.out_features for each in model.blocks])
        return [sum(p.numel() for p in model.parameters())]

    total = sum(p.numel() for p in model.parameters())
    assert extrapolate(find_block_runs(model), measure) == [total]
    assert seen == [[2, 2, 3, 3], [2, 2, 2, 3, 3], [2, 2, 3, 3, 3]]
    assert list(model.blocks) == before


# Every recipe


RECIPES = [recipe.name for recipe in list_recipes() if recipe.path.parent.name == "generation"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_an_estimate(recipe):
    config = load_config(recipe)
    estimate = estimated(config)
    weights = count_weights(find_architecture(config.policy.model), torch.bfloat16)
    assert estimate.frozen == tuple(weights)
    assert 2**30 < estimate.resident < 140 * 2**30  # of an H200
    least = 3.5 if recipe.startswith("sd15") else 4  # of a UNet, what is kept between blocks weighs more
    assert estimate.plain.peak > least * estimate.recomputed.peak > 0
    assert 10**5 < estimate.trained < 10**9
    assert all(figures for _, figures in estimate.rows())


def test_window_divides_state_and_keeps_parameters_and_gradients_whole():
    """With 2**30 trained parameters: 16 GiB of state and a reference of 4 GiB; all but 8 GiB are divided."""
    update = UpdateMemory(kept=0, peak=2**30)
    whole = MemoryEstimate(
        frozen=(), trained=2**30, copies=(), reference=4 * 2**30, recording=2**30, micro_batches=8, rollout=0,
        rollout_at="", plain=update, recomputed=None, checkpointing=False, assumptions=(), adapted=0,
        gathered=2**30,
    )  # fmt: skip
    saving = 12  # GiB
    assert dict(whole.of_processes(1))["replicas"] == f"{16 + 4 + 8 + saving} GiB"
    four = dict(whole.of_processes(4))
    assert four["replicas"] == f"{16 + 4 + 2 + saving} GiB"
    assert four["window"].startswith(f"{5 + 8 + 4 + 2 + saving} GiB, of which 5.0 GiB")
    assert four["strict"].startswith(f"{5 + 1 + 2 + saving} GiB")
    adapters = replace(whole, reference=0, trained=2**20)
    assert {dict(adapters.of_processes(4))[place].partition(",")[0] for place in ("replicas", "window")} == {"3.0 GiB"}


@pytest.mark.slow
def test_teachers_are_counted_as_whole_pipelines_and_snapshots_as_copies(tmp_path):
    alone = configured("sd3", tmp_path / "sd3")
    folder = str(tmp_path / "sd3")
    beside = configured(
        "sd3",
        tmp_path / "sd3",
        {"models": {"one": {"model": folder}, "two": {"model": folder}, "slow": {"of": "policy", "ema": 0.9}}},
    )
    plain, more = (estimate_memory(each, find_architecture(folder)) for each in (alone, beside))
    whole = sum(each.bytes for each in plain.frozen)
    assert more.frozen == plain.frozen and [each.weights for each in more.others] == [whole, whole]
    assert more.copies == (*plain.copies, "slow")
    assert more.total - plain.total >= 2 * whole + 4 * plain.trained
    assert any("as large as it: one, two" in each for each in more.assumptions)
