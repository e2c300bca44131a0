"""`PictureSearch`: the pictures of a local index that look like parts of a picture, with the texts about them.

{"id": "Q243", "text": "The Eiffel Tower, built in 1889.", "image": "pictures/Q243.jpg"}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from mmrl.environments.environment import Observation
from mmrl.environments.picture_index import PictureIndex
from mmrl.environments.source_pictures import SourcePictures
from mmrl.environments.tool import ToolArguments, ToolContext, TypedTool
from mmrl.environments.tools.page_index import read_pages
from mmrl.environments.tools.picture_regions import SPACE_TEXT, box_in_picture, check_space_setting
from mmrl.errors import ConfigError

MAX_BOXES = 8
"""The largest number of boxes of one call."""


class PictureQuery(ToolArguments):
    """Boxes in a picture."""

    boxes: Annotated[tuple[tuple[float, float, float, float], ...], Field(max_length=MAX_BOXES)] = ()
    """Boxes x1, y1, x2, y2, one around each thing to search for. None: the whole picture."""
    image: int = Field(default=0, ge=0)
    """The number of the picture, from 0; pictures of earlier results count on."""


class PictureSearch(TypedTool):
    """Search for pictures that look like what boxes of a picture show, and return the texts about them.

    Several things are searched at once, each at several scales, as in Vision-DeepResearch (arXiv:2601.22060).
    """

    name = "search_picture"
    concurrency = 1  # one network
    Arguments = PictureQuery

    def __init__(
        self,
        index: str,
        model: str,
        root: str = ".",
        top: int = 3,
        scales: Sequence[float] = (1.0, 1.5, 2.5),
        space: str = "norm_1000",
        max_passage: int = 1_000,
        device: str = "auto",
    ) -> None:
        """Read the index, and embed its pictures.

        Args:
            index: a JSON Lines file; each line has an `id`, a `text`, and an `image`, its path from the file's folder.
            model: a CLIP or SigLIP of transformers or open_clip, by hub id or local path.
            root: the folder that the file and its pictures must lie in, after links are followed.
            top: pictures that are found for one box.
            scales: by which boxes are enlarged about their middles; each is a query.
            space: the coordinate space of boxes: pixel (of the policy's input), norm_1 or norm_1000.
            max_passage: characters of one text.
            device: of the model; "auto" is CUDA if available.
        """
        from mmrl.rewards.models.clip_encoder import load_encoder

        if top < 1 or max_passage < 1 or not scales or not all(0 < scale <= 100 for scale in scales):
            raise ConfigError(
                f"{self.name}: top ({top}) and max_passage ({max_passage}) must be at least 1, and scales "
                f"({list(scales)}) one or several numbers above 0, at most 100"
            )
        self.top, self.scales, self.max_passage = top, tuple(scales), max_passage
        self.space = check_space_setting(self.name, space)
        self._texts, places = read_pages(Path(index), Path(root))
        self._ids = list(places)
        self._encoder = load_encoder(self.name, model)
        self._encoder.freeze(device)
        sources = SourcePictures()
        self._index = PictureIndex(self._embed, [sources.read(str(place)) for place in places.values()])

    @property
    def description(self) -> str:
        """The purpose and the coordinates of boxes."""
        return (
            "Search for pictures that look like what boxes of a picture show, and return the texts about them. "
            f"Coordinates go {SPACE_TEXT[self.space]}."
        )

    def run(self, context: ToolContext, arguments: PictureQuery) -> Observation:
        """Return the best texts for each box, each after its id."""
        scene = context.image(arguments.image)
        boxes = [box_in_picture(context, arguments.image, box, self.space) for box in arguments.boxes]
        scales = self.scales if boxes else (1.0,)
        found = self._index.search(scene, boxes or [(0, 0, *scene.size)], scales, self.top)
        lines: list[str] = []
        for number, matches in enumerate(found):
            lines += [f"box {number}:"] if boxes else []
            lines += [f"[{self._ids[each]}] {self._texts[each][: self.max_passage]}" for each, _ in matches]
        ids = tuple(dict.fromkeys(self._ids[each] for matches in found for each, _ in matches))
        return Observation("\n".join(lines), found=ids)

    def _embed(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        import torch

        encoder = self._encoder
        device = next(encoder.network.parameters()).device
        with torch.no_grad():
            vectors = encoder.embed_pixels(encoder.pixels([each.convert("RGB") for each in pictures]).to(device))
        return np.asarray(vectors.float().cpu().numpy(), np.float32)
