"""The parts of HPSv3's and VideoReward's network: names, LoRA, head, sizes."""

import pytest
import torch

from mmrl.rewards import RewardError
from mmrl.rewards.models.qwen_head import backbone_tensors, build_head, merged_lora, resized, sequential_positions


def test_lora_is_merged_by_hand():
    """W + 2 · B A with W = [[1, 0], [0, 1]], B = [[1], [3]], A = [[1, 2]]: [[3, 4], [6, 13]]."""
    start = "base_model.model.model.layers.0.mlp.up_proj"
    tensors = {
        f"{start}.base_layer.weight": torch.eye(2),
        f"{start}.base_layer.bias": torch.ones(2),
        f"{start}.lora_A.default.weight": torch.tensor([[1.0, 2.0]]),
        f"{start}.lora_B.default.weight": torch.tensor([[1.0], [3.0]]),
        "base_model.model.rm_head.weight": torch.zeros(1, 2),
    }
    merged = merged_lora(tensors, 2.0)
    assert set(merged) == {"model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.bias", "rm_head.weight"}
    assert merged["model.layers.0.mlp.up_proj.weight"].tolist() == [[3, 4], [6, 13]]
    del tensors[f"{start}.lora_A.default.weight"]
    with pytest.raises(RewardError, match=r"the LoRA of model.layers.0.mlp.up_proj is incomplete"):
        merged_lora(tensors, 2.0)


def test_names_of_both_ages_are_mapped_alike():
    ages = (
        {"visual.merger.mlp.0.bias": 0, "model.layers.3.mlp.up_proj.weight": 1, "model.embed_tokens.weight": 2},
        {
            "model.visual.merger.mlp.0.bias": 0,
            "model.language_model.layers.3.mlp.up_proj.weight": 1,
            "model.language_model.embed_tokens.weight": 2,
        },
    )
    old, new = (backbone_tensors(age | {"lm_head.weight": 3, "rm_head.weight": 4}) for age in ages)
    assert old == new and list(old.values()) == [0, 1, 2]


def test_head_by_hand():
    """Two layers on x = [1, -1]: [1, -2] -> ReLU [1, 0] -> 3 · 1 + 5 · 0 + 0.5."""
    tensors = {
        "rm_head.0.weight": torch.tensor([[1.0, 0.0], [0.0, 2.0]]),
        "rm_head.0.bias": torch.zeros(2),
        "rm_head.10.weight": torch.tensor([[3.0, 5.0]]),
        "rm_head.10.bias": torch.tensor([0.5]),
    }
    assert build_head(tensors, "x")(torch.tensor([1.0, -1.0])).item() == 3.5
    with pytest.raises(RewardError, match=r"x cannot be loaded"):
        build_head(tensors | {"rm_head.0.bias": torch.zeros(3)}, "x")


def test_positions_are_those_of_a_text():
    assert sequential_positions(2, 3).tolist() == [[[0, 1, 2]] * 2] * 3


SIZES = [
    (height, width)
    for width in (5, 100, 333, 1024, 1920)
    for height in (1, 20, 29, 448, 720, 1080, 4000)
    if max(height, width) <= 200 * min(height, width)  # the rule of transformers refuses longer ones
]


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_sizes_are_those_of_transformers(height, width):
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    for least, most in ((200_704, 200_704), (100_352, 200_704)):
        assert resized(height, width, 28, least, most) == smart_resize(height, width, 28, least, most)
