"""Pipelines from their configuration files: the shipped ones have the published sizes, saved ones their own."""

from __future__ import annotations

import inspect
import json

import huggingface_hub.constants
import pytest
import torch
from diffusers import DiffusionPipeline
from torch import nn

from mmrl.errors import UnsupportedError
from mmrl.generation.memory.architecture import (
    SHIPPED,
    Architecture,
    ArchitectureNotFound,
    build_component,
    find_architecture,
)
from mmrl.generation.memory.estimate import count_weights, module_bytes
from tests.generation import tiny_pipelines as tiny

FILES = sorted(SHIPPED.glob("*.json"))
UNITS = {"M": 10**6, "B": 10**9}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_networks_have_the_published_sizes(path):
    facts = json.loads(path.read_text())
    assert path.stem == facts["model"].replace("/", "--") and facts["sources"]
    architecture = find_architecture(facts["model"])
    assert issubclass(architecture.pipeline, DiffusionPipeline)
    kinds = dict(architecture.classes())
    assert set(inspect.signature(architecture.pipeline.__init__).parameters) >= kinds.keys()
    assert facts["published_parameters"].keys() >= {"transformer", "unet"} & kinds.keys()
    for name, (published, source) in facts["published_parameters"].items():
        assert source
        network = build_component(architecture, name, kinds[name], torch.bfloat16)
        assert rounded(stored_numbers(network), like=published) == published


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_settings_are_arguments_of_their_classes(path):
    """A misspelt key would be ignored by diffusers, and leave a default in its place."""
    architecture = find_architecture(json.loads(path.read_text())["model"])
    for name, kind in architecture.classes():
        if kind is not None and hasattr(kind, "from_config") and name != "scheduler":  # which hand settings on
            assert set(architecture.configs[name]) <= set(inspect.signature(kind.__init__).parameters), name


@pytest.mark.integration
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["wan", "sd15", "ltx2"])
def test_saved_pipeline_is_built_as_it_loads(name, dtype, tmp_path):
    tiny.build(name).save_pretrained(tmp_path)
    loaded = DiffusionPipeline.from_pretrained(tmp_path, dtype=dtype)
    counted = {each.name: each for each in count_weights(find_architecture(str(tmp_path)), dtype)}
    networks = {name: each for name, each in loaded.components.items() if isinstance(each, nn.Module)}
    assert counted.keys() == networks.keys()
    for name, network in networks.items():
        assert counted[name].parameters == sum(p.numel() for p in network.parameters())
        # transformers makes some scalars itself while the default dtype is another
        assert counted[name].bytes == pytest.approx(module_bytes(network), rel=0, abs=4), name


def test_missing_architectures_raise(tmp_path):
    with pytest.raises(ArchitectureNotFound, match=r"model_index\.json"):
        find_architecture(str(tmp_path))
    with pytest.raises(ArchitectureNotFound):
        find_architecture("no-such-owner/nothing")
    with pytest.raises(ArchitectureNotFound):  # what ships is the present state of a model, not any revision
        find_architecture("Qwen/Qwen-Image", revision="0" * 40)
    with pytest.raises(UnsupportedError, match="no pipeline Wan99Pipeline"):
        _ = Architecture("here", {"_class_name": "Wan99Pipeline"}, {}).pipeline
    with pytest.raises(UnsupportedError, match="transformer is a Wan99Model"):
        list(Architecture("here", {"transformer": ["diffusers", "Wan99Model"]}, {}).classes())


def stored_numbers(network: nn.Module) -> int:
    """Return the tensors of a checkpoint: parameters, and buffers that are saved."""
    parameters = {id(each): each for each in network.parameters()}  # tied ones once
    saved = [each for name, each in network.state_dict(keep_vars=True).items() if id(each) not in parameters]
    return sum(each.numel() for each in [*parameters.values(), *saved])


def rounded(number: int, like: str) -> str:
    """Rounded as `like` is: "2.6B" has one decimal."""
    digits, unit = like[:-1], like[-1]
    decimals = len(digits.partition(".")[2])
    return f"{number / UNITS[unit]:.{decimals}f}{unit}"


def test_rounding_test_detects_wrong_sizes():
    assert rounded(2_567_463_684, like="2.6B") == "2.6B"
    assert rounded(2_449_999_999, like="2.6B") == "2.4B"
