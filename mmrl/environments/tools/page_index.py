"""`FindPages` and `OpenPage`: the pages of documents as pictures, found by their text.

    {"id": "report-3", "text": "Exports by country ...", "image": "pages/report-3.png"}

The texts, such as OCR has read them, are ranked by BM25 (`local_search`) and never shown: a policy sees the pages
themselves, small at first, and one of them at its full size once it is opened.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from PIL import Image
from pydantic import Field

from mmrl.environments.environment import Observation
from mmrl.environments.source_pictures import SourcePictures
from mmrl.environments.tool import CallRejected, ToolArguments, ToolContext, TypedTool
from mmrl.environments.tools.local_search import BM25, read_passages
from mmrl.errors import ConfigError

MAX_QUERY = 2_000
"""The largest number of characters of a query."""


class PageQuery(ToolArguments):
    """A query."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]
    """Some words."""


class PageName(ToolArguments):
    """A page."""

    page: Annotated[str, Field(min_length=1, max_length=200)]
    """The id of a page that was found."""


class FindPages(TypedTool):
    """Find the pages of documents whose text has some words. The best pages come first, as small pictures."""

    name = "find_pages"
    Arguments = PageQuery

    def __init__(self, index: str, root: str = ".", top: int = 3, side: int = 336) -> None:
        """
        Args:
            index: a JSON Lines file; each line has an `id`, a `text`, and an `image`, its path from the file's folder.
            root: the folder that the file and its pictures must lie in, after links are followed.
            top: pages of one result.
            side: the longer side of a small picture, in pixels.
        """
        if top < 1 or side < 1:
            raise ConfigError(f"{self.name}: top ({top}) and side ({side}) must be at least 1")
        self.top, self.side = top, side
        texts, self._places = read_pages(Path(index), Path(root))
        self._ids, self._ranking = list(self._places), BM25(texts)
        self._sources = SourcePictures()

    def run(self, context: ToolContext, arguments: PageQuery) -> Observation:
        """Return the ids of the best pages, and their pictures."""
        ids = tuple(self._ids[number] for number, _ in self._ranking.search(arguments.query, self.top))
        pictures = tuple(self._small(self._sources.read(str(self._places[each]))) for each in ids)
        text = "\n".join(f"[{each}]" for each in ids) or "(no page has any of these words)"
        return Observation(text, pictures, found=ids)

    def _small(self, picture: Image.Image) -> Image.Image:
        small = picture.copy()
        small.thumbnail((self.side, self.side), Image.Resampling.BICUBIC)
        return small


class OpenPage(TypedTool):
    """Open a page by its id, at its full size."""

    name = "open_page"
    Arguments = PageName

    def __init__(self, index: str, root: str = ".") -> None:
        """
        Args:
            index: the file that `find_pages` searches.
            root: the folder that the file and its pictures must lie in, after links are followed.
        """
        _, self._places = read_pages(Path(index), Path(root))
        self._sources = SourcePictures()

    def run(self, context: ToolContext, arguments: PageName) -> Observation:
        """Return the picture of the page."""
        place = self._places.get(arguments.page)
        if place is None:
            raise CallRejected(f"there is no page {arguments.page!r:.60}: name one as find_pages wrote it in brackets")
        return Observation(images=(self._sources.read(str(place)),))


def read_pages(path: Path, root: Path) -> tuple[list[str], dict[str, Path]]:
    """Return the texts of the pages, and the places of their pictures by id, both in the order of the file.

    Raises:
        ConfigError: the file or a picture lies outside `root` or cannot be read, or a line is no page.
    """
    ids, texts = read_passages(path, root)
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    places: dict[str, Path] = {}
    for number, (name, line) in enumerate(zip(ids, lines, strict=True), start=1):
        image = json.loads(line).get("image")
        if not isinstance(image, str) or name in places:
            raise ConfigError(f"{path}: page {number}: expected an id that no other page has, and the path of an image")
        place = (path.parent / image).resolve()
        if not place.is_relative_to(root.resolve()) or not place.is_file():
            raise ConfigError(
                f"{path}: page {number}: the picture {image} is not there, or lies outside {root.resolve()}"
            )
        places[name] = place
    return texts, places
