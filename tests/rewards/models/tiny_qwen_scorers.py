"""HPSv3's and VideoReward's files, with the tensor names of the published ones, around a tiny Qwen2-VL.

Nothing of mmrl is used here.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROWS = 9
"""Rows of the tiny model's vocabulary beyond its tokenizer, as in Qwen2-VL, which the tokens of a scorer cut off."""
STATISTICS = {"VQ_mean": 3.6757, "VQ_std": 2.2476, "MQ_mean": 1.1646, "MQ_std": 1.3811, "TA_mean": 2.8105}
STATISTICS |= {"TA_std": 2.5121}
DATA = {"fps": 2.0, "max_frame_pixels": 2304, "num_frames": None, "prompt_template_type": "detailed_special"}
DATA |= {"sample_type": "uniform", "eval_dim": ["VQ", "MQ", "TA"], "meta_data": "x.csv", "data_dir": "x"}


@cache
def whole_network(base: str, tokens: int) -> Any:
    """The tiny Qwen2-VL with a vocabulary of its tokenizer's size and `tokens` more, in float64."""
    from transformers import AutoTokenizer, Qwen2VLForConditionalGeneration

    network = Qwen2VLForConditionalGeneration.from_pretrained(base).double().eval()
    network.resize_token_embeddings(len(AutoTokenizer.from_pretrained(base)) + tokens)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        table = network.get_input_embeddings().weight
        table[-tokens:] = torch.randn(tokens, table.shape[1], generator=generator)
    return network


def as_on_the_hub(base: str, folder: Path) -> str:
    """The base model with its files in the form of Qwen/Qwen2-VL-7B-Instruct's, which are of transformers 4.45."""
    import shutil

    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    text, vision = config.pop("text_config"), config.pop("vision_config")
    rope = text.pop("rope_parameters")
    for key in ("layer_types", "model_type", "pad_token_id"):
        del text[key]
    vision |= {"in_chans": vision.pop("in_channels"), "spatial_patch_size": vision["patch_size"]}
    del vision["rope_parameters"], vision["model_type"]
    flat = {"rope_theta": rope["rope_theta"], "torch_dtype": "bfloat16", "vision_config": vision}
    flat["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    (folder / "config.json").write_text(json.dumps(text | config | flat))
    pictures = json.loads((folder / "processor_config.json").read_text())["image_processor"]
    size = pictures.pop("size")
    pictures |= {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    (folder / "preprocessor_config.json").write_text(json.dumps(pictures | {"processor_class": "Qwen2VLProcessor"}))
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (folder / "processor_config.json").unlink()
    (folder / "chat_template.jinja").unlink()
    return str(folder)


def old_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names that transformers gave them before version 4.52, by which the published files have them."""
    moved = {}
    for name, tensor in tensors.items():
        name = name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        moved[name] = tensor.float().contiguous()
    return moved


def hps_v3_file(base: str, folder: Path) -> Path:
    """HPSv3.safetensors, whose head has ReLUs and a dropout between its layers, so numbers 0, 3 and 5."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    tensors, generator = old_names(whole_network(base, 1).state_dict()), torch.Generator().manual_seed(3)
    for place, before, after in ((0, 32, 24), (3, 24, 16), (5, 16, 2)):
        spread = 1.5 / math.sqrt(before)
        tensors[f"rm_head.{place}.weight"] = torch.randn(after, before, generator=generator) * spread
        tensors[f"rm_head.{place}.bias"] = torch.randn(after, generator=generator) * 0.1
    save_file(tensors, folder / "HPSv3.safetensors")
    return folder


def video_reward_tensors(base: str, outputs: int) -> dict[str, Tensor]:
    """The network with the LoRA merged, by the names of before 4.52."""
    tensors = old_names(whole_network(base, 3).state_dict())
    generator = torch.Generator().manual_seed(4)
    return tensors | {"rm_head.weight": torch.randn(outputs, 32, generator=generator) * 0.3}


def video_reward_folder(base: str, folder: Path, outputs: int = 1, **data: Any) -> Path:
    """A folder as VideoReward's, with the LoRA of rank 4 apart, as peft saves a whole network."""
    (folder / "checkpoint-11352").mkdir(parents=True)
    generator, saved = torch.Generator().manual_seed(5), {}
    for name, tensor in video_reward_tensors(base, outputs).items():
        place, _, part = name.rpartition(".")
        if not place.endswith("_proj") or name.startswith("visual"):
            saved[f"base_model.model.{name}"] = tensor
            continue
        if part == "weight":
            down = torch.randn(4, tensor.shape[1], generator=generator) * 0.2
            up = torch.randn(tensor.shape[0], 4, generator=generator) * 0.2
            saved[f"base_model.model.{place}.lora_A.default.weight"] = down
            saved[f"base_model.model.{place}.lora_B.default.weight"] = up
            tensor = tensor - 2.0 * up @ down  # alpha / rank is 2
        saved[f"base_model.model.{place}.base_layer.{part}"] = tensor
    torch.save(saved, folder / "checkpoint-11352" / "model.pth")
    settings = {
        "data_config": DATA | data,
        "peft_lora_config": {"lora_enable": True, "lora_r": 4, "lora_alpha": 8, "use_rslora": False},
        "inference_config": STATISTICS,
    }
    (folder / "model_config.json").write_text(json.dumps(settings))
    return folder


def states_without_positions(network: Any, inputs: Any) -> Tensor:
    """[B, L, D]: as the published `forward` computes them, which gives the decoder embeddings and a mask alone."""
    tables = network.get_input_embeddings()
    embedded, ids = tables(inputs["input_ids"]), inputs["input_ids"]
    for pixels, grid, token in (
        ("pixel_values", "image_grid_thw", network.config.image_token_id),
        ("pixel_values_videos", "video_grid_thw", network.config.video_token_id),
    ):
        if pixels in inputs:
            seen = network.model.visual(inputs[pixels].double(), grid_thw=inputs[grid]).pooler_output
            embedded = embedded.masked_scatter((ids == token)[..., None].expand_as(embedded), seen)
    found: Tensor = network.model.language_model(
        inputs_embeds=embedded, attention_mask=inputs["attention_mask"]
    ).last_hidden_state
    return found
