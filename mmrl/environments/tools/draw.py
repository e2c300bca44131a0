"""`Draw`: boxes, lines and points on a picture."""

from __future__ import annotations

from typing import Annotated, Literal

from PIL import ImageDraw
from pydantic import Field

from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.environments.environment import Observation
from mmrl.environments.tool import CallRejected, ToolArguments, ToolContext, TypedTool
from mmrl.environments.tools.picture_regions import (
    SPACE_TEXT,
    box_in_picture,
    check_space_setting,
    point_in_picture,
)

MAX_DRAWING = 2_097_152
"""The pixels (width x height) above which a drawing is reduced: each is kept until its episode is over."""
MOST = 50
"""The largest number of boxes, of lines and of points in one call."""
Four = tuple[float, float, float, float]


class DrawArguments(ToolArguments):
    """Marks and their colour."""

    image: int = Field(default=0, ge=0)
    """The number of the picture, from 0; pictures of earlier results count on."""
    boxes: Annotated[tuple[Four, ...], Field(max_length=MOST)] = ()
    """Each x1, y1, x2, y2."""
    lines: Annotated[tuple[Four, ...], Field(max_length=MOST)] = ()
    """Each from x1, y1 to x2, y2."""
    points: Annotated[tuple[tuple[float, float], ...], Field(max_length=MOST)] = ()
    """Each x, y."""
    color: Literal["red", "green", "blue", "yellow", "black", "white"] = "red"


class Draw(TypedTool):
    """Draw boxes, lines and points on a picture."""

    name = "draw"
    Arguments = DrawArguments

    def __init__(self, space: str = "norm_1000") -> None:
        """
        Args:
            space: the coordinate space of marks: pixel (of the policy's input), norm_1 or norm_1000.
        """
        self.space = check_space_setting(self.name, space)

    @property
    def description(self) -> str:
        """The purpose and the coordinates of marks."""
        return f"Draw boxes, lines and points on a picture. Coordinates go {SPACE_TEXT[self.space]}."

    def run(self, context: ToolContext, arguments: DrawArguments) -> Observation:
        """Return the picture with the marks."""
        if not (arguments.boxes or arguments.lines or arguments.points):
            raise CallRejected("there is nothing to draw: name boxes, lines or points")
        index = arguments.image
        picture = context.image(index).copy()
        pen, width = ImageDraw.Draw(picture), max(1, round(max(picture.size) / 200))
        for box in arguments.boxes:
            x1, y1, x2, y2 = box_in_picture(context, index, box, self.space)
            pen.rectangle((x1, y1, x2 - 1, y2 - 1), outline=arguments.color, width=width)
        for line in arguments.lines:
            ends = [point_in_picture(context, index, end, self.space) for end in (line[:2], line[2:])]
            pen.line(ends, fill=arguments.color, width=width)
        for point in arguments.points:
            x, y = point_in_picture(context, index, point, self.space)
            pen.ellipse((x - 2 * width, y - 2 * width, x + 2 * width, y + 2 * width), fill=arguments.color)
        return Observation(images=(fit_image(picture, ImageBudget(0, MAX_DRAWING)),))
