"""Layouts with one process, and the blocks that a layout divides."""

from __future__ import annotations

import diffusers
import pytest
import torch
from torch import nn

from mmrl.distributed.choose_layout import choose_layout
from mmrl.distributed.layout import Replicas, layout_of
from mmrl.distributed.sharding_plan import blocks_to_shard
from mmrl.errors import ConfigError
from tests.generation import tiny_pipelines as tiny
from tests.understanding.tiny_vlms import FAMILIES


def kinds(model: nn.Module) -> set[str]:
    return {type(block).__name__ for block in blocks_to_shard(model)}


@pytest.mark.parametrize("place", ["auto", "replicas", "window", "strict"])
def test_one_process_has_all_parameters(place):
    layout = choose_layout(place)
    parameter = nn.Parameter(torch.ones(3))
    with layout.whole():
        assert not layout.is_whole
        assert layout.current(parameter) is parameter
    parameter.grad = torch.full((3,), 2.0)
    assert layout.clip_gradients([parameter], 1.0) == pytest.approx(12**0.5)
    assert parameter.grad.norm() == pytest.approx(1.0, rel=1e-5)
    layout.sum_gradients([parameter])
    assert layout.divide([parameter]) is None


def test_policies_without_a_layout_have_replicas():
    assert isinstance(layout_of(object()), Replicas)


def test_blocks_are_those_that_the_libraries_name():
    assert kinds(tiny.build("sd3").transformer) == {"JointTransformerBlock"}
    assert kinds(tiny.build("flux").transformer) == {"FluxTransformerBlock", "FluxSingleTransformerBlock"}
    assert kinds(FAMILIES["qwen3_vl"]()[0]) == {"Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"}


def test_inner_blocks_come_first():
    blocks = blocks_to_shard(tiny.build("sd15").unet)
    for number, block in enumerate(blocks):
        assert not any(inner in blocks[number:] for inner in list(block.modules())[1:])


def test_models_that_name_no_blocks_have_elements_of_lists():
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(2, 2) for _ in range(3))})

    assert len(blocks_to_shard(Steps())) == 3


def test_large_models_outside_of_blocks_raise_with_their_class():
    with torch.device("meta"):
        motion, plain = diffusers.UNetMotionModel(), nn.Sequential(nn.Linear(20_000, 10_000))
        embedded = nn.Sequential(nn.Embedding(20_000, 10_000), nn.ModuleList([nn.Linear(10_000, 10_000)]))
    with pytest.raises(ConfigError, match=r"50% of the parameters of UNetMotionModel are outside .*BasicTransformerBl"):
        blocks_to_shard(motion)
    with pytest.raises(ConfigError, match=r"100% of the parameters of Sequential are outside .*it names none"):
        blocks_to_shard(plain)
    assert len(blocks_to_shard(embedded)) == 1
