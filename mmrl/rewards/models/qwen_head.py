"""A Qwen2-VL with a small head on its states at special tokens: the network of HPSv3 and of VideoReward.

Their files have the tensors of Qwen2-VL under the names of transformers before or after version 4.52, that of
VideoReward with its LoRA apart. Both are mapped to the names of today's `Qwen2VLModel`.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.models.model_files import VOCABULARIES, find_file, load_component, loading_errors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

HEAD = "rm_head."
INPUTS = (
    *("input_ids", "attention_mask", "pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw"),
    "position_ids",
)
_LORA = re.compile(r"^(.+)\.lora_([AB])\.(?:default\.)?weight$")
_BACKBONE_NAMES = (  # the start of a published name -> that of transformers' Qwen2VLModel
    ("model.visual.", "visual."),
    ("model.language_model.", "language_model."),
    ("visual.", "visual."),
    ("model.", "language_model."),
)


def merged_lora(
    tensors: Mapping[str, Tensor],  # as peft names them: base_model.model.*, *.base_layer.*, *.lora_A.*, *.lora_B.*
    scale: float,
) -> dict[str, Tensor]:
    """Return the tensors of the network, with W + scale · B A in the place of each adapted W; plain ones as they are.

    Raises:
        RewardError: an adapter lacks a part, or the weight that it adapts.
    """
    names = {name: name.removeprefix("base_model.model.").replace(".base_layer.", ".") for name in tensors}
    plain = {short: tensors[name] for name, short in names.items() if not _LORA.match(short)}
    adapters: dict[str, dict[str, Tensor]] = {}
    for name, short in names.items():
        if found := _LORA.match(short):
            adapters.setdefault(found[1], {})[found[2]] = tensors[name]
    for place, parts in adapters.items():
        if set(parts) != {"A", "B"} or f"{place}.weight" not in plain:
            raise RewardError(f"the LoRA of {place} is incomplete: expected lora_A, lora_B and {place}.weight")
        weight = plain[f"{place}.weight"]
        plain[f"{place}.weight"] = (weight.float() + scale * parts["B"].float() @ parts["A"].float()).to(weight.dtype)
    return plain


def backbone_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `Qwen2VLModel`, by its names; without the language model's own head, which is not used.

    >>> list(backbone_tensors({"visual.patch_embed.proj.weight": 0, "model.norm.weight": 1, "lm_head.weight": 2}))
    ['visual.patch_embed.proj.weight', 'language_model.norm.weight']
    """
    found = {}
    for name, tensor in tensors.items():
        for start, renamed in _BACKBONE_NAMES:
            if name.startswith(start):
                found[renamed + name.removeprefix(start)] = tensor
                break
        else:
            if not name.startswith((HEAD, "lm_head.")):
                raise RewardError(f"Qwen2-VL with a head has no tensor {name!r}")
    return found


def build_head(tensors: Mapping[str, Tensor], label: str) -> nn.Sequential:
    """Return the head in float32: one linear layer, or several with ReLU between them; `label` names the file.

    Raises:
        RewardError: there are no tensors rm_head.*.weight.
    """
    from torch import nn

    own = {name.removeprefix(HEAD): tensor for name, tensor in tensors.items() if name.startswith(HEAD)}
    places = sorted({name.rpartition(".")[0] for name in own}, key=lambda place: int(place or 0))
    if not places:
        raise RewardError(f"{label} has no tensors {HEAD}*: it is no Qwen2-VL with a head")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    with loading_errors(label):
        for place in places:
            prefix = f"{place}." if place else ""
            width, inner = own[f"{prefix}weight"].shape
            layer = nn.Linear(inner, width, bias=f"{prefix}bias" in own)
            layer.load_state_dict({part: own[f"{prefix}{part}"].float() for part in layer.state_dict()})
            if layers:
                layers[f"relu_{place}"] = nn.ReLU()
            layers[f"linear_{place or 0}"] = layer
    return nn.Sequential(layers)


def build_backbone(
    config: Any,  # of the base model
    tensors: Mapping[str, Tensor],
    label: str,
    dtype: torch.dtype,
    vocabulary: int,  # tokens of the base model's tokenizer, with those of the scores
) -> Any:
    """Return a `Qwen2VLModel` with its weights, and with the vocabulary of its tokenizer.

    Raises:
        RewardError: the base is another model, or a tensor is missing or unknown.
    """
    from transformers import Qwen2VLModel

    if config.model_type != "qwen2_vl":
        raise RewardError(f"the base of {label} is a {config.model_type}; expected a qwen2_vl")
    weights = backbone_tensors(tensors)
    with loading_errors(label):
        rows = weights["language_model.embed_tokens.weight"].shape[0]
        if rows != vocabulary:  # the token of a score would be another one
            raise RewardError(
                f"{label} knows {rows} tokens, and the tokenizer of the base {vocabulary}: name its own base"
            )
        config.text_config.vocab_size = rows
        network, report = Qwen2VLModel.from_pretrained(
            None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True
        )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found := sorted(map(str, report[kind])):
            kind = kind.removesuffix("_keys")
            raise RewardError(
                f"{label} has {len(found)} {kind} tensors for a {config.model_type}: {', '.join(found[:4])}"
            )
    return network


def load_processor(base: str, revision: str | None, tokens: Sequence[str]) -> tuple[Any, list[int]]:
    """Return the processor of the base model, which pads on the right, and the ids of `tokens`, added to its end."""
    from transformers import AutoProcessor

    find_file(base, VOCABULARIES, revision)  # without it transformers silently builds a tokenizer of few tokens
    processor = load_component(AutoProcessor, base, revision)
    if processor.chat_template is None:
        raise RewardError(f"{base} has no chat template, which the prompt needs")
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "right"
    tokenizer.add_tokens(list(tokens), special_tokens=True)
    return processor, [int(number) for number in tokenizer.convert_tokens_to_ids(list(tokens))]


def question_texts(
    processor: Any,
    medium: Literal["image", "video"],
    question: str,  # with the slot {text_prompt}
    prompts: Sequence[str],
) -> list[str]:
    """Return one user turn for each prompt, in the processor's chat template: the medium, and then the question."""
    texts = []
    for prompt in prompts:
        content = [{"type": medium}, {"type": "text", "text": question.replace("{text_prompt}", prompt)}]
        turns = [{"role": "user", "content": content}]
        texts.append(processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    return texts


def head_outputs(
    backbone: Any,
    head: nn.Module,
    inputs: Mapping[str, Tensor],  # as the processor returns them, padded on the right
    tokens: Sequence[int],  # K ids, each of which occurs once in every row
) -> Tensor:  # [B, K, N] float32
    """Return the head's output at each of the tokens.

    All places count as text, one after the other, on each of the three axes of Qwen2-VL's positions: so the published
    networks were trained and are run (see `sequential_positions`).
    """
    import torch

    ids = inputs["input_ids"]
    arguments = {name: inputs[name] for name in INPUTS if name in inputs}
    arguments["position_ids"] = sequential_positions(*ids.shape).to(ids.device)
    for name in ("pixel_values", "pixel_values_videos"):
        if name in arguments:
            arguments[name] = arguments[name].to(backbone.dtype)
    states = backbone(**arguments, use_cache=False).last_hidden_state  # [B, L, D]
    places = torch.stack([(ids == token).int().argmax(-1) for token in tokens], dim=1)  # [B, K]
    chosen = states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
    found: Tensor = head(chosen.float())
    return found


def sequential_positions(rows: int, length: int) -> Tensor:  # [3, B, L] int64
    """Return the positions of a text, for places of pictures too.

    VideoAlign's and HPSv3's own `forward` calls the decoder without positions and without the grids of the pictures,
    whereupon transformers counts them 0, 1, 2, ... (KwaiVGI/VideoAlign@219ab9d trainer.py:Qwen2VLRewardModelBT).
    """
    import torch

    return torch.arange(length).expand(3, rows, length)


def resized(
    height: int,
    width: int,
    factor: int,  # pixels of a token's side: 28 in the published models
    least: int,  # pixels
    most: int,
) -> tuple[int, int]:
    """Return height and width as multiples of `factor` with a product between `least` and `most`, of nearly one ratio.

    Qwen2-VL's rule (qwen_vl_utils:smart_resize).

    >>> resized(480, 832, 28, 200_704, 200_704)
    (336, 588)
    """
    rows, columns = (max(factor, round(side / factor) * factor) for side in (height, width))
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (math.floor(side / shrink / factor) * factor for side in (height, width))
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return max(factor, rows), max(factor, columns)
