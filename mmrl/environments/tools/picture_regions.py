"""Boxes and points that a policy writes, as places in a picture of an episode."""

from __future__ import annotations

from mmrl.environments.tool import CallRejected, ToolContext
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.boxes import SPACES, Box, Size, Space, check_box, convert_box, extent
from mmrl.rewards.parsing.points import Point, check_point

SPACE_TEXT = {
    "pixel": "in pixels of the picture",
    "norm_1": "from 0 to 1 over its width and height",
    "norm_1000": "from 0 to 1000 over its width and height",
}
"""The words for each coordinate space in the descriptions of tools."""


def check_space_setting(tool: str, space: str) -> Space:
    """Return a coordinate space.

    Raises:
        ConfigError: it is none of `SPACES`.
    """
    for known in SPACES:
        if space == known:
            return known
    raise ConfigError(f"{tool}: space is {space!r}; it is one of {', '.join(SPACES)}")


def box_in_picture(context: ToolContext, index: int, box: Box, space: Space) -> tuple[int, int, int, int]:
    """Return a box in whole pixels of a picture at its full size: at least 1 by 1, clipped at the edges.

    In the space `pixel`, boxes count pixels of the policy's input: within the pixel budget, in the processor's patches.

    Raises:
        CallRejected: there is no such picture, or the box is empty, swapped or outside.
    """
    width, height = context.image(index).size
    seen = _float_size(context.input_size(index))
    try:
        x1, y1, x2, y2 = convert_box(check_box(box, space, seen), space, "norm_1", seen)
    except InvalidAnswer as err:
        raise CallRejected(str(err)) from None
    left, top = min(max(int(x1 * width), 0), width - 1), min(max(int(y1 * height), 0), height - 1)
    return left, top, min(max(round(x2 * width), left + 1), width), min(max(round(y2 * height), top + 1), height)


def point_in_picture(context: ToolContext, index: int, point: Point, space: Space) -> tuple[int, int]:
    """Return a point in whole pixels of a picture at its full size, clipped at the edges.

    Raises:
        CallRejected: there is no such picture, or the point lies outside.
    """
    width, height = context.image(index).size
    seen = _float_size(context.input_size(index))
    try:
        x, y = check_point(point, space, seen)
    except InvalidAnswer as err:
        raise CallRejected(str(err)) from None
    across, down = extent(space, seen)
    return min(max(round(x / across * width), 0), width - 1), min(max(round(y / down * height), 0), height - 1)


def _float_size(size: tuple[int, int]) -> Size:
    return float(size[0]), float(size[1])
