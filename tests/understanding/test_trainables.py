"""Adapters and whole parts: which parameters learn, what the reference computes, what is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForImageTextToText

from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.errors import ConfigError
from mmrl.understanding.vlm import full_training_of_parts, lora_of_parts, part_of, trained_parts

IDS = torch.tensor([[65, 66, 67, 68]])
SMALL = LoraConfig(rank=2, alpha=4)


@pytest.fixture
def model(folder_of) -> nn.Module:
    return AutoModelForImageTextToText.from_pretrained(folder_of("qwen3_vl")).eval()


@torch.no_grad()
def says(model: nn.Module) -> torch.Tensor:
    return model(input_ids=IDS).logits


@torch.no_grad()
def move(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def test_parts_are_identified_by_parameter_names():
    expected = {
        "model.visual.blocks.0.attn.qkv.weight": "vision",
        "model.visual.merger.linear_fc1.weight": "connector",
        "model.visual.deepstack_merger_list.0.norm.weight": "connector",
        "model.vision_tower.encoder.layers.0.layer_norm1.bias": "vision",
        "model.vision_model.patch_embedding.weight": "vision",
        "model.connector.modality_projection.proj.weight": "connector",
        "model.multi_modal_projector.linear_1.weight": "connector",
        "model.image_newline": "connector",
        "model.language_model.layers.0.self_attn.q_proj.lora_A.default.weight": "language",
        "model.text_model.embed_tokens.weight": "language",
        "lm_head.weight": "language",
    }
    assert {name: part_of(name) for name in expected} == expected


@pytest.mark.parametrize("part", ["vision", "connector"])
def test_trained_parts_follow_the_configuration(part):
    bare = VLMConfig(model="any")
    assert trained_parts(bare) == {"language"}
    assert trained_parts(VLMConfig(model="any", **{part: {"train": True}})) == {"language", part}


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_reference_is_the_model_before_training(model, kind):
    before = says(model)
    parts = {"language", "vision"}
    trained = lora_of_parts(model, SMALL, parts) if kind == "lora" else full_training_of_parts(model, parts)
    assert says(model).equal(before)
    move(model)
    after = says(model)
    assert (after - before).abs().max() > 0.1
    with trained.reference():
        assert says(model).equal(before)
    assert says(model).equal(after)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_autograd_graph_survives_a_reference_context(model, kind):
    trained = (
        lora_of_parts(model, SMALL, {"language"}) if kind == "lora" else full_training_of_parts(model, {"language"})
    )
    move(model)
    logits = model(input_ids=IDS).logits
    with trained.reference():
        says(model)
    logits.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters() if p.requires_grad)


def test_adapters_are_added_to_linear_layers_of_trained_parts(model):
    lora_of_parts(model, SMALL, {"language", "connector"})
    adapted = {name.split(".lora_")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert {part_of(name) for name in adapted} == {"language", "connector"}
    assert not any("lm_head" in name for name in adapted)
    assert len([name for name in adapted if "language_model.layers.0" in name]) == 7


def test_adapters_are_added_to_the_configured_targets(model):
    lora_of_parts(model, LoraConfig(rank=2, targets=("q_proj", "mlp.up_proj")), {"language"})
    adapted = {name.split(".lora_")[0].split(".", 4)[-1] for name, p in model.named_parameters() if p.requires_grad}
    assert adapted == {"self_attn.q_proj", "mlp.up_proj"}


def test_unknown_targets_raise_with_the_known_ones(model):
    with pytest.raises(
        ConfigError, match=r"policy\.lora\.targets: .* no linear layer qkv; they have down_proj, .*q_proj"
    ):
        lora_of_parts(model, LoraConfig(targets=("q_proj", "qkv")), {"language"})


def test_parts_without_linear_layers_cannot_be_adapted(folder_of):
    gemma = AutoModelForImageTextToText.from_pretrained(folder_of("gemma3"))
    with pytest.raises(
        ConfigError, match=r"policy\.connector\.train: the connector of Gemma3.* policy\.train=full can"
    ):
        lora_of_parts(gemma, SMALL, {"language", "connector"})
    full_training_of_parts(gemma, {"language", "connector"})


def test_missing_parts_cannot_be_trained():
    with pytest.raises(ConfigError, match=r"policy\.vision\.train: ModuleDict has no vision apart"):
        full_training_of_parts(nn.ModuleDict({"language_model": nn.Linear(2, 2)}), {"language", "vision"})


@pytest.mark.integration
def test_adapter_folders_have_the_format_of_peft(model, folder_of, tmp_path):
    trained = lora_of_parts(model, SMALL, {"language", "vision"})
    move(model)
    trained.save(tmp_path)
    plain = AutoModelForImageTextToText.from_pretrained(folder_of("qwen3_vl"))
    assert says(PeftModel.from_pretrained(plain, tmp_path)).equal(says(model))
    assert not list(tmp_path.glob("*.bin"))


@pytest.mark.integration
def test_other_adapters_raise_with_the_difference(model, folder_of, tmp_path):
    lora_of_parts(model, SMALL, {"language"}).save(tmp_path)
    wider = lora_of_parts(fresh(folder_of), LoraConfig(rank=3, alpha=4), {"language"})
    with pytest.raises(ConfigError, match=r"lora_A.weight is \[2, 32\], policy.lora makes it \[3, 32\]"):
        wider.load(tmp_path)
    further = lora_of_parts(fresh(folder_of), SMALL, {"language", "vision"})
    with pytest.raises(ConfigError, match=r"another adapter than policy.lora describes; they differ in .*visual"):
        further.load(tmp_path)


def test_other_models_raise_with_the_difference(model, folder_of, tmp_path):
    """transformers would leave what is missing at random, and warn."""
    trained = full_training_of_parts(model, {"language"})
    before = says(model)
    other = fresh(folder_of)
    del other.model.language_model.layers[1].mlp.up_proj
    other.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"another model than policy.model names; they differ in .*up_proj"):
        trained.load(tmp_path)
    assert says(model).equal(before)


@pytest.mark.integration
def test_half_precision_trains_float32_parameters_only(folder_of):
    for kind in ("lora", "full"):
        halved = AutoModelForImageTextToText.from_pretrained(folder_of("qwen3_vl"), dtype=torch.bfloat16)
        lora_of_parts(halved, SMALL, {"language"}) if kind == "lora" else full_training_of_parts(halved, {"language"})
        kinds = {(p.requires_grad, p.dtype) for p in halved.parameters()}
        assert kinds == {(True, torch.float32), (False, torch.bfloat16)}


def test_adapters_take_their_inputs_in_half_precision(folder_of):
    """Autocast narrows what peft would widen: no output and no gradient changes by a bit."""
    halved = AutoModelForImageTextToText.from_pretrained(folder_of("qwen3_vl"), dtype=torch.bfloat16)
    layers = lora_of_parts(halved, SMALL, {"language"})._layers
    trained = [p for p in halved.parameters() if p.requires_grad]
    torch.manual_seed(0)
    for parameter in trained:
        torch.nn.init.normal_(parameter, std=0.1)
    found = []
    for widened in (False, True):
        for layer in layers:
            assert widened or not layer.cast_input_dtype_enabled
            layer.cast_input_dtype_enabled = widened
        with torch.autocast("cpu", torch.bfloat16):
            logits = halved(input_ids=torch.arange(1, 9)[None]).logits
        found.append((logits.detach(), *torch.autograd.grad(logits.float().logsumexp(-1).sum(), trained)))
    for ours, theirs in zip(*found, strict=True):
        assert ours.equal(theirs) and ours.any()


def test_adapters_are_on_the_named_layers_of_fused_experts(folder_of):
    """peft alone would move those of a GLM-4V MoE from dense layers and shared experts to the fused experts."""
    model = AutoModelForImageTextToText.from_pretrained(folder_of("glm4v_moe"))
    lora_of_parts(model, SMALL, {"language"})
    adapted = {name.rpartition(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    assert any("layers.0.mlp.gate_proj" in name for name in adapted)
    assert any("shared_experts.up_proj" in name for name in adapted)
    assert not any(name.endswith("mlp.experts") for name in adapted)
    assert model.config.model_type == "glm4v_moe"


def fresh(folder_of) -> nn.Module:
    folder: Path = folder_of("qwen3_vl")
    return AutoModelForImageTextToText.from_pretrained(folder).eval()
