"""`Crop`: a part of a picture, enlarged."""

from __future__ import annotations

from PIL import Image
from pydantic import Field

from mmrl.environments.environment import Observation
from mmrl.environments.source_pictures import MAX_PIXELS
from mmrl.environments.tool import ToolArguments, ToolContext, TypedTool
from mmrl.environments.tools.picture_regions import SPACE_TEXT, box_in_picture, check_space_setting
from mmrl.errors import ConfigError


class CropArguments(ToolArguments):
    """A box in a picture."""

    box: tuple[float, float, float, float]
    """x1, y1, x2, y2."""
    image: int = Field(default=0, ge=0)
    """The number of the picture, from 0; pictures of earlier results count on."""


class Crop(TypedTool):
    """Crop a box out of a picture and enlarge it.

    The crop is cut from the picture at its full size and resized so that its longer side is `side` pixels; a policy
    sees it within its own pixel budget.
    """

    name = "crop"
    Arguments = CropArguments

    def __init__(self, side: int = 448, space: str = "norm_1000", enlarge: bool = True) -> None:
        """
        Args:
            side: the longer side of the result, in pixels.
            space: the coordinate space of boxes: pixel (of the policy's input), norm_1 or norm_1000.
            enlarge: False: crops smaller than `side` keep their size.
        """
        if not 1 <= side <= MAX_PIXELS**0.5:
            raise ConfigError(f"crop: side is {side}; it is 1 to {int(MAX_PIXELS**0.5)} pixels")
        self.side, self.enlarge = side, enlarge
        self.space = check_space_setting(self.name, space)

    @property
    def description(self) -> str:
        """The purpose and the coordinates of the box."""
        return f"Crop a box out of a picture and enlarge it. Coordinates go {SPACE_TEXT[self.space]}."

    def run(self, context: ToolContext, arguments: CropArguments) -> Observation:
        """Return the crop."""
        box = box_in_picture(context, arguments.image, arguments.box, self.space)
        part = context.image(arguments.image).crop(box)
        longer = max(part.size)
        if self.enlarge or longer > self.side:
            width, height = (max(1, round(side * self.side / longer)) for side in part.size)
            part = part.resize((width, height), Image.Resampling.BICUBIC)
        return Observation(images=(part,))
