"""`ReadText`: the text in a picture, by OCR."""

from __future__ import annotations

from pydantic import Field

from mmrl.environments.environment import Observation
from mmrl.environments.tool import ToolArguments, ToolContext, TypedTool
from mmrl.environments.tools.picture_regions import SPACE_TEXT, box_in_picture, check_space_setting
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_errors import RewardError


class ReadTextArguments(ToolArguments):
    """A picture, or a box in it."""

    image: int = Field(default=0, ge=0)
    """The number of the picture, from 0; pictures of earlier results count on."""
    box: tuple[float, float, float, float] | None = None
    """x1, y1, x2, y2; unset: the whole picture."""


class ReadText(TypedTool):
    """Read the text in a picture.

    RapidOCR reads lines from top to bottom, in Latin and Chinese: pip install mmrl-suite[ocr]. One call at a time.
    """

    name = "read_text"
    Arguments = ReadTextArguments
    concurrency = 1

    def __init__(self, space: str = "norm_1000", threads: int = 1, least_confidence: float = 0.5) -> None:
        """
        Args:
            space: the coordinate space of boxes: pixel (of the policy's input), norm_1 or norm_1000.
            threads: CPU threads of the OCR.
            least_confidence: lines below this confidence are dropped, in [0, 1].
        """
        from mmrl.rewards.images.rendered_text import RenderedText

        self.space = check_space_setting(self.name, space)
        try:
            self._reader = RenderedText(threads, least_confidence)
        except RewardError as err:
            raise ConfigError(f"environment.tools: {self.name}: {err}") from err

    @property
    def description(self) -> str:
        """The purpose and the coordinates of the box."""
        return f"Read the text in a picture or in a box of it. Coordinates go {SPACE_TEXT[self.space]}."

    def run(self, context: ToolContext, arguments: ReadTextArguments) -> Observation:
        """Return the lines of text."""
        picture = context.image(arguments.image)
        if arguments.box is not None:
            picture = picture.crop(box_in_picture(context, arguments.image, arguments.box, self.space))
        return Observation(self._reader.read(picture) or "(no text)")
