"""Coordinate spaces of answers: that of each model family, its sentence in the prompt, conversion of true boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.data.media.budget import ImageBudget
from mmrl.data.media.decode import image_size
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.parsing.boxes import SPACES, Size, Space, convert_box, true_boxes


def _identity(size: Size) -> Size:
    return size


@dataclass(frozen=True)
class CoordinateFormat:
    """The format in which a model writes coordinates of an image."""

    space: Space
    input_size: Callable[[Size], Size] = _identity
    """Maps the size of an image to its size as a model input, in whose pixels the model answers."""
    location_tokens: bool = False
    """True if boxes are written as `<loc0128>...` after a prompt "detect ..." (PaliGemma)."""

    def sentence(self, size: Size | None) -> str:
        """Return the sentence of a prompt about coordinates; `size` is that of the image as a model input."""
        if self.space == "norm_1000":
            return "Coordinates go from 0 to 1000 over the width and the height of the picture."
        if self.space == "norm_1":
            return "Coordinates go from 0 to 1 over the width and the height of the picture, with three decimals."
        if size is None:
            return "Coordinates are pixels."
        return f"Coordinates are pixels of the picture, which is {size[0]:g} wide and {size[1]:g} high."


def coordinate_format(
    family: str, own: Space, processor: Any, budget: ImageBudget, requested: Space | None = None
) -> CoordinateFormat:
    """Return the coordinate format of a model family: in its own space, or in the requested one.

    Args:
        family: the name of the family.
        own: the space of the family (`mmrl.understanding.vlm`).
        processor: the model's processor.
        budget: the pixel budget that images are resized to before the processor.
        requested: a space from the configuration; None: the family's own.
    """
    if family == "paligemma" and requested is None:
        return CoordinateFormat("norm_1", location_tokens=True)
    return CoordinateFormat(requested or own, input_size=model_input_sizes(processor, budget))


def model_input_sizes(processor: Any, budget: ImageBudget) -> Callable[[Size], Size]:
    """Return the map from the size of an image to its size as a model input: within the budget, in whole patches.

    Processors like Qwen's resize an image to whole patches and keep its aspect ratio; pixel coordinates are those of
    the resized image. Others cut an image into tiles or squares of a fixed size, where a pixel has no unique place:
    pixel coordinates are then those of the image within the budget.
    """
    images: Any = getattr(processor, "image_processor", None)
    patch, merge, limits = (getattr(images, name, None) for name in ("patch_size", "merge_size", "size"))
    step = patch * merge if isinstance(patch, int) and isinstance(merge, int) else None

    def input_size(size: Size) -> Size:
        width, height = budget.size(round(size[0]), round(size[1]))
        if step is None or limits is None:
            return width, height
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        height, width = smart_resize(height, width, step, limits.shortest_edge, limits.longest_edge)
        return width, height

    return input_size


def convert_coordinates(sample: Sample, answers: CoordinateFormat) -> tuple[Any, dict[str, Any], Size | None]:
    """Convert a sample's true boxes so that they can be compared with a model's answers.

    If answers are pixels of a resized image, true boxes in pixels of the file become coordinates in [0, 1], and `size`
    is that of the resized image.

    Returns:
        The answer, the metadata to add (`space`, `size`), and the size of the image as a model input (None if the
        format does not depend on it).

    Raises:
        DataError: the sample does not state the space of its coordinates, or its boxes are malformed.
    """
    stated = sample.metadata.get("space")
    if sample.answer is not None and stated not in SPACES:
        came = "does not say" if stated is None else f"says {stated!r} to"
        raise DataError(
            f"sample {sample.id!r} {came} what its coordinates count: write "
            f'"metadata": {{"space": "pixel"}}, or another of {", ".join(SPACES)}'
        )
    own = answer_image_size(sample)
    if answers.space != "pixel":
        return sample.answer, {} if own is None else {"size": list(own)}, None
    if own is None:
        raise DataError(f"sample {sample.id!r} has no picture whose pixels its answer could count")
    size = answers.input_size(own)
    known = {"size": list(size)}
    if stated != "pixel" or size == own or sample.answer is None:
        return sample.answer, known, size
    return _normalised_answer(sample, own), known | {"space": "norm_1"}, size


def answer_image_size(sample: Sample) -> Size | None:
    """Return width and height of the image of a sample's boxes: the stated `size`, or that of its only image.

    Raises:
        DataError: it has several images and states no size, or the image cannot be read.
    """
    stated = sample.metadata.get("size")
    if isinstance(stated, list | tuple) and len(stated) == 2:
        return stated[0], stated[1]
    if not sample.images:
        return None
    if len(sample.images) > 1:
        raise DataError(
            f"sample {sample.id!r} has {len(sample.images)} pictures and boxes in one of them: write that one's "
            '"size": [width, height] into its metadata'
        )
    return image_size(sample.images[0], sample.id)


def _normalised_answer(sample: Sample, size: Size) -> Any:
    """Return the answer with its boxes converted from pixels to [0, 1]."""
    action = sample.answer if isinstance(sample.answer, Mapping) and "action" in sample.answer else None
    if action is not None and action.get("box") is None:
        return sample.answer
    value = sample.answer if action is None else action["box"]
    try:
        truth = true_boxes({"answer": value, "space": "pixel", "size": list(size)})
    except ScoringFailed as err:
        raise DataError(f"sample {sample.id!r}: {err}") from None
    boxes = [(list(convert_box(found.box, "pixel", "norm_1", size)), found.label) for found in truth.boxes]
    if action is not None:
        return {**action, "box": boxes[0][0]}
    return [{"box": box} if label is None else {"box": box, "label": label} for box, label in boxes]
