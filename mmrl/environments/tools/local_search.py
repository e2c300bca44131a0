"""`LocalSearch`: passages of a local JSON Lines file that match a query, ranked by BM25.

    {"id": "page-3", "text": "The bridge was opened in 1932."}

BM25 (Robertson and Zaragoza, 2009): a passage d scores the sum over query terms t of
ln(1 + (N − n_t + ½) / (n_t + ½)) · f · (k1 + 1) / (f + k1 · (1 − b + b · |d| / mean |d|)), where f is the number of
times that t occurs in d, n_t the number of passages with t, and N the number of passages.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mmrl.environments.environment import Observation
from mmrl.environments.tool import ToolArguments, ToolContext, TypedTool
from mmrl.errors import ConfigError

MAX_TERMS = 64
"""The largest number of different terms of a query that are used, in their order."""
_TERM = re.compile(r"\w+")


class SearchArguments(ToolArguments):
    """A query."""

    query: Annotated[str, Field(min_length=1, max_length=2_000)]
    """Some words."""


class LocalSearch(TypedTool):
    """Search passages of text for words. The best matches come first."""

    name = "search"
    Arguments = SearchArguments

    def __init__(self, index: str, root: str = ".", top: int = 3, max_passage: int = 1_000) -> None:
        """Read the index.

        Args:
            index: a JSON Lines file; each line has a `text`, and may have an `id`.
            root: the folder that the file must lie in, after links are followed.
            top: passages of one result.
            max_passage: characters of one passage.

        Raises:
            ConfigError: the file lies outside `root`, cannot be read, or has a bad line.
        """
        if top < 1 or max_passage < 1:
            raise ConfigError(f"search: top ({top}) and max_passage ({max_passage}) must be at least 1")
        self.top, self.max_passage = top, max_passage
        self._ids, self._texts = read_passages(Path(index), Path(root))
        self._ranking = BM25(self._texts)

    def run(self, context: ToolContext, arguments: SearchArguments) -> Observation:
        """Return the best passages, each after its id."""
        found = self._ranking.search(arguments.query, self.top)
        lines = [f"[{self._ids[number]}] {self._texts[number][: self.max_passage]}" for number, _ in found]
        ids = tuple(self._ids[number] for number, _ in found)
        return Observation("\n".join(lines) or "(no passage has any of these words)", found=ids)


class BM25:
    """An index of texts."""

    def __init__(self, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        counts = [Counter(terms_of(text)) for text in texts]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._size = len(texts)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            norm = k1 * (1 - b + b * lengths[number] / mean)
            for term, occurrences in count.items():
                self._postings[term].append((number, occurrences * (k1 + 1) / (occurrences + norm)))

    def search(self, query: str, top: int) -> list[tuple[int, float]]:
        """Return the numbers and scores (> 0) of the best `top` texts; of equal ones the earlier comes first."""
        scores: dict[int, float] = defaultdict(float)
        for term in list(dict.fromkeys(terms_of(query)))[:MAX_TERMS]:
            postings = self._postings.get(term, [])
            weight = math.log(1 + (self._size - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, frequency in postings:
                scores[number] += weight * frequency
        return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:top]


def terms_of(text: str) -> list[str]:
    """Return the words of a text in their order, without case."""
    return _TERM.findall(unicodedata.normalize("NFKC", text).casefold())


def read_passages(path: Path, root: Path) -> tuple[list[str], list[str]]:
    """Return the ids and texts of a JSON Lines file below `root`.

    Raises:
        ConfigError: see `LocalSearch`.
    """
    place = path.resolve()
    if not place.is_relative_to(root.resolve()):
        raise ConfigError(f"search: the index {path} lies outside {root.resolve()}: move it there, or set root")
    ids: list[str] = []
    texts: list[str] = []
    try:
        with place.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                    raise ConfigError(f"{path}:{number}: a passage is an object with a text")
                ids.append(str(row.get("id", number)))
                texts.append(row["text"])
    except (OSError, ValueError, RecursionError) as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"search: the index {path} cannot be read: {err}") from None
    if not texts:
        raise ConfigError(f"search: the index {path} contains no passages")
    return ids, texts
