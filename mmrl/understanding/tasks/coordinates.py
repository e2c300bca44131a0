"""What the coordinates count that a model answers with: each family's own habit, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.data.media.budget import ImageBudget
from mmrl.data.media.decode import picture_size
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.parsing.boxes import SPACES, Size, Space, convert_box, true_boxes


def _as_it_is(size: Size) -> Size:
    return size


@dataclass(frozen=True)
class CoordinateFormat:
    """How a model writes places in a picture."""

    space: Space
    shown: Callable[[Size], Size] = _as_it_is
    """The size at which the model sees a picture of the given size: what its pixels count in."""
    location_tokens: bool = False
    """Boxes are written as `<loc0128>...` (PaliGemma), after a prompt of its own kind."""

    def sentence(self, size: Size | None) -> str:
        """What a prompt says of coordinates; `size` is the picture's as the model sees it."""
        if self.space == "norm_1000":
            return "Coordinates go from 0 to 1000 over the width and the height of the picture."
        if self.space == "norm_1":
            return "Coordinates go from 0 to 1 over the width and the height of the picture, with three decimals."
        if size is None:
            return "Coordinates are pixels."
        return f"Coordinates are pixels of the picture, which is {size[0]:g} wide and {size[1]:g} high."


def coordinate_format(
    family: str, own: Space, processor: Any, budget: ImageBudget, asked: Space | None = None
) -> CoordinateFormat:
    """How a model of a family writes places: in its own space, or in the one that is asked for.

    `own` is the family's (`mmrl.understanding.vlm`), `budget` what pictures are fitted into before its processor.
    """
    if family == "paligemma" and asked is None:
        return CoordinateFormat("norm_1", location_tokens=True)
    return CoordinateFormat(asked or own, shown=model_input_sizes(processor, budget))


def model_input_sizes(processor: Any, budget: ImageBudget) -> Callable[[Size], Size]:
    """The size at which a picture reaches the model, from its own: fitted into the budget, then cut into patches.

    Processors of Qwen's kind resize a picture to whole patches and keep its sides' ratio; pixels then count in that.
    Others show a picture in tiles or squares of a fixed size, in which no pixel of it has one place: there pixels are
    those of the fitted picture.
    """
    pictures: Any = getattr(processor, "image_processor", None)
    patch, merge, limits = (getattr(pictures, name, None) for name in ("patch_size", "merge_size", "size"))
    step = patch * merge if isinstance(patch, int) and isinstance(merge, int) else None

    def shown(size: Size) -> Size:
        width, height = budget.size(round(size[0]), round(size[1]))
        if step is None or limits is None:
            return width, height
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        height, width = smart_resize(height, width, step, limits.shortest_edge, limits.longest_edge)
        return width, height

    return shown


def placed(sample: Sample, answers: CoordinateFormat) -> tuple[Any, dict[str, Any], Size | None]:
    """A sample's true boxes as they can be compared with answers in a space.

    Returns the answer, what `metadata` is to say of it (`space`, `size`), and the size of the picture as the model
    sees it (None where that is not looked at). Where answers are pixels of a resized picture, true boxes in pixels of
    the file become shares of it, and `size` is that of the resized one.

    Raises:
        DataError: the sample does not say what its coordinates count, or its boxes are malformed.
    """
    given = sample.metadata.get("space")
    if sample.answer is not None and given not in SPACES:
        came = "does not say" if given is None else f"says {given!r} to"
        raise DataError(
            f"sample {sample.id!r} {came} what its coordinates count: write "
            f'"metadata": {{"space": "pixel"}}, or another of {", ".join(SPACES)}'
        )
    own = answer_image_size(sample)
    if answers.space != "pixel":
        return sample.answer, {} if own is None else {"size": list(own)}, None
    if own is None:
        raise DataError(f"sample {sample.id!r} has no picture whose pixels its answer could count")
    shown = answers.shown(own)
    known = {"size": list(shown)}
    if given != "pixel" or shown == own or sample.answer is None:
        return sample.answer, known, shown
    return _in_shares(sample, own), known | {"space": "norm_1"}, shown


def answer_image_size(sample: Sample) -> Size | None:
    """Width and height of the picture that a sample's boxes are in: as it states, else that of its one picture.

    Raises:
        DataError: it has several pictures and does not say which; or the picture cannot be read.
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
    return picture_size(sample.images[0], sample.id)


def _in_shares(sample: Sample, size: Size) -> Any:
    """The answer with its boxes in shares of the picture rather than in pixels."""
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
