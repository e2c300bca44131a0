"""Pictures that come more than once in a forward pass, such as a screen that several rows saw: each is encoded once.

    model(**tokens, **media_once(vlm, units))   # instead of vlm.to_device(media_inputs(units))

The features of distinct units are computed, repeated where they come again, and passed to the model instead of pixels
(`mm_encoder_outputs` of transformers); a gradient is the sum over all places. Units are equal if they hold the same
tensors, and nothing outlives the pass, so no feature is older than the weights.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.understanding.encoded_prompt import EncodedPrompt, media_inputs, sequence_inputs
from mmrl.understanding.vlm import VLM

log = logging.getLogger(__name__)

_FEATURES = ("pooler_output", "deepstack_features")
"""The fields of a tower's output that language models read."""
_EXACT = 1e-4


def media_once(vlm: VLM, units: Sequence[EncodedPrompt]) -> dict[str, Any]:
    """Return the inputs of one forward pass for the media of units, in order, on the model's device.

    They are features where a picture comes again and the model computes equal logits from them, else pixels. Divided
    models take pixels: a measurement in one process would wait for the others.
    """
    seen = [unit for unit in units if unit.inputs.keys() - sequence_inputs(unit.inputs)]
    if not seen:
        return {}
    distinct, order = _distinct(seen)
    if len(distinct) < len(seen) and not vlm.is_divided and all(unit.images and not unit.videos for unit in seen):
        if "repeated media" not in vlm.measured:
            again = next(unit for place, unit in enumerate(seen) if order[place] in order[:place])
            vlm.measured["repeated media"] = _is_exact(vlm, [again, *distinct[:2], again])
        if vlm.measured["repeated media"]:
            return _features(vlm, distinct, order)
    return vlm.to_device(media_inputs(seen))


def agree(
    found: Tensor,  # [..., V]
    expected: Tensor,  # [..., V]
) -> bool:
    """Return True if logits differ by no more than rounding."""
    size = expected.abs().amax().clamp(min=1.0)
    return bool((found - expected).abs().amax() <= size * max(_EXACT, 4 * torch.finfo(expected.dtype).eps))


def _distinct(units: Sequence[EncodedPrompt]) -> tuple[list[EncodedPrompt], list[int]]:
    """Return the units that differ in their tensors, and the number of each unit among them."""
    numbers: dict[tuple[int, ...], int] = {}
    distinct: list[EncodedPrompt] = []
    order: list[int] = []
    for unit in units:
        key = tuple(id(unit.inputs[name]) for name in sorted(unit.inputs.keys() - sequence_inputs(unit.inputs)))
        if key not in numbers:
            numbers[key] = len(distinct)
            distinct.append(unit)
        order.append(numbers[key])
    return distinct, order


def _features(vlm: VLM, distinct: Sequence[EncodedPrompt], order: Sequence[int]) -> dict[str, Any]:
    encode = vlm.model.base_model.get_image_features
    taken = inspect.signature(encode).parameters
    media = vlm.to_device(media_inputs(distinct))
    encoded = encode(**{name: value for name, value in media.items() if name in taken}, return_dict=True)
    counts = [int((unit.inputs["input_ids"] == vlm.placeholders["image"]).sum()) for unit in distinct]
    features = {name: _repeat(encoded[name], counts, order) for name in _FEATURES if name in encoded}
    return {"mm_encoder_outputs": {"image": type(encoded)(**(dict.fromkeys(encoded) | features))}}


def _repeat(features: Any, counts: Sequence[int], order: Sequence[int]) -> Any:
    """Return the features of units at `order`: of a tensor, of one for each image, or of such for several layers."""
    if isinstance(features, Tensor):
        parts = features.flatten(0, -2).split(list(counts))
        return torch.cat([parts[number] for number in order]).unflatten(0, (-1, *features.shape[1:-1]))
    if all(isinstance(each, Tensor) for each in features):
        flat = [each.flatten(0, -2) for each in features]
        if sum(map(len, flat)) == sum(counts):
            return [_repeat(torch.cat(flat), counts, order)]
    return [_repeat(each, counts, order) for each in features]


@torch.no_grad()
def _is_exact(vlm: VLM, units: Sequence[EncodedPrompt]) -> bool:
    """Return True if the logits of units end to end are those of pixels where equal pictures are encoded once."""
    names = {name for unit in units for name in sequence_inputs(unit.inputs)}
    tokens = {
        name: torch.cat([unit.inputs.get(name, torch.zeros_like(unit.inputs["input_ids"])) for unit in units], dim=1)
        for name in names | {"attention_mask"}
    }
    tokens = vlm.to_device(tokens | {"attention_mask": torch.ones_like(tokens["input_ids"])})
    places = torch.arange(tokens["input_ids"].shape[1], device=vlm.device)
    tokens["position_ids"] = places[None] if vlm.family.axes == 1 else places.expand(vlm.family.axes, 1, -1)
    expected = vlm.model(**tokens, **vlm.to_device(media_inputs(units)), use_cache=False).logits
    try:
        found = vlm.model(**tokens, **_features(vlm, *_distinct(units)), use_cache=False).logits
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as err:
        log.info("%s encodes a picture each time it comes: it takes no features (%s)", type(vlm.model).__name__, err)
        return False
    exact = agree(found, expected)
    if not exact:
        log.info("%s encodes a picture each time it comes: features change its logits", type(vlm.model).__name__)
    return exact
