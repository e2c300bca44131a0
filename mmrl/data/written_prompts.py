"""`WrittenSampler`: prompts that a model of the run writes, such as a proposer that learns in turn with the policy, and
the readers of captions and instructions that it writes, and of pictures that it draws."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol

from PIL import Image

from mmrl.data.listed_questions import questions_of
from mmrl.data.media.uris import png_uri
from mmrl.data.prompts import PromptSampler, PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.seeds import fold_in

WRITTEN_STREAM = 10
"""The number of the random stream that prompts are written with."""


class Write(Protocol):
    """A function that lets a model answer samples, with texts or with pictures."""

    def __call__(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> Sequence[Sequence[Any]]:
        """Return `draws` answers to each sample; equal seeds give equal ones."""


class QuestionReader(ABC):
    """A reader of what a model wrote or drew as a question: the sample that the policy is to answer.

    A reader of your own is a class in a file, which `data.prompts.reader.name` names as `path/to/file.py:Class`.
    """

    reads: ClassVar[Literal["text", "picture"]] = "text"
    """The answers of the model: `text` of one that writes, `picture` of one that draws."""

    @abstractmethod
    def request(self, parent: Sample) -> Sample:
        """Return what the model is to answer with a question, given a sample of the data set as an example."""

    @abstractmethod
    def read(self, text: Any, parent: Sample) -> Sample | None:
        """Return the sample of a written question, with its answer; None: it is none that has one.

        `text` is what the model answered: a str, or a PIL image of one that draws.
        """


class WrittenSampler(PromptSource):
    """Batches of samples that a model writes anew in each iteration, one for each sample of a shuffled epoch.

    The model writes `tries` texts for each; the first one that is a question, and none of the batch yet, takes the
    place of the sample of the data set, which stays where none is.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        groups: int,
        seed: int,
        write: Write,
        reader: QuestionReader,
        *,
        tries: int = 2,
    ) -> None:
        self._base = PromptSampler(samples, groups, seed)
        self._groups, self._seed, self._tries = groups, seed, tries
        self._write, self._reader = write, reader
        self._iterations = self._calls = 0
        self._prompts: set[tuple[str, ...]] = set()  # of the current iteration, by what makes a question another one
        self._counts = (0, 0)  # written and all samples of the current iteration

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._base.begin_batch()
        self._iterations += 1
        self._calls, self._prompts, self._counts = 0, set(), (0, 0)
        return self.more(self._groups)

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        parents = self._base.more(count)
        seed = fold_in(self._seed, WRITTEN_STREAM, self._iterations, self._calls)
        texts = self._write([self._reader.request(each) for each in parents], seed, self._tries)
        found = [self._first(own, parent) for own, parent in zip(texts, parents, strict=True)]
        self._calls += 1
        written = sum(sample is not parent for sample, parent in zip(found, parents, strict=True))
        self._counts = self._counts[0] + written, self._counts[1] + len(found)
        return found

    def sample(self, id: str) -> Sample:
        """Return the sample of the data set with this id; written ones are not kept.

        Raises:
            DataError: there is no such sample.
        """
        return self._base.sample(id)

    def metrics(self) -> dict[str, float]:
        """Return the share of the iteration's samples that were written."""
        written, every = self._counts
        return {"prompts/written_share": written / every if every else 0.0}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that decides which samples follow, fit for JSON."""
        return {"base": self._base.state_dict(), "iterations": self._iterations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to other samples.
        """
        if "iterations" not in state:
            raise DataError("the state is that of another source of prompts: resume with the data.prompts of before")
        self._base.load_state_dict(state["base"])
        self._iterations = int(state["iterations"])

    def _first(self, texts: Sequence[Any], parent: Sample) -> Sample:
        for text in texts:
            sample = self._reader.read(text, parent)
            if sample is not None and _question(sample) not in self._prompts:
                self._prompts.add(_question(sample))
                return replace(sample, id=f"written-{self._iterations}-{len(self._prompts)}")
        self._prompts.add(_question(parent))
        return parent


def _question(sample: Sample) -> tuple[str, ...]:
    """Return what two samples share if they are one question: the prompt, its pictures and the answer."""
    return (sample.prompt, *sample.images, repr(sample.answer))


class Captions(QuestionReader):
    """A reader of captions, for a stage that trains a painter: `data.prompts: {name: written, by: policy, ...}`.

    Samples are those of the model that writes: their prompt is the request for a caption, with a picture. The painter's
    have the caption in its place; their picture stays for rewards, such as `reconstruction`. An empty text is refused.
    """

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: str, parent: Sample) -> Sample | None:
        """Return the sample with the caption as its prompt."""
        caption = text.strip()
        return replace(parent, prompt=caption, messages=()) if caption else None


class DrawnPictures(QuestionReader):
    """A reader of pictures, for a policy that answers about what a model of the run draws (UniRL, arXiv:2505.23380).

    `data.prompts: {name: written, by: painter, reader: {name: drawn_pictures}}`. Samples are prompts for the painter
    with `questions` in their metadata, and the answers that a right picture has; the picture decides one. None is
    refused.

        {"prompt": "two red circles", "metadata": {"questions": [{"question": "How many red circles?", "answer": "2"}]}}
    """

    reads = "picture"

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: Any, parent: Sample) -> Sample | None:
        """Return a question about a picture.

        Raises:
            DataError: the sample has no questions, or the model wrote a text.
        """
        found = questions_of(parent.metadata.get("questions", ()))
        if not found or not isinstance(text, Image.Image):
            lacks = "has no metadata.questions" if not found else "was answered by a text, not by a picture"
            raise DataError(f"sample {parent.id!r} {lacks} (data.prompts.reader: drawn_pictures)")
        picture = png_uri(text)
        chosen = found[zlib.crc32(picture.encode()) % len(found)]
        return replace(parent, prompt=chosen.question, messages=(), images=(picture,), answer=chosen.answer)


class Instructions(QuestionReader):
    """A reader of instructions, for an editor of the picture that the writer sees (ThinkRL-Edit, arXiv:2601.03467).

    Samples are those of the model that writes: their prompt is the user's request, with the picture to edit. The
    editor's have the text behind the last `behind` as their prompt, or the whole text where that is not written, and
    the picture as a condition. Where nothing stands there, the editor gets the user's own words.
    """

    def __init__(self, behind: str = "</think>", condition: str = "image") -> None:
        """`condition` is the name of the pipeline's argument for the picture."""
        self._behind, self._condition = behind, condition

    def request(self, parent: Sample) -> Sample:
        """Return the sample itself."""
        return parent

    def read(self, text: str, parent: Sample) -> Sample:
        """Return the editor's sample.

        Raises:
            ValueError: the user's sample does not have one picture.
        """
        if len(parent.images) != 1:
            raise ValueError(f"sample {parent.id!r} has {len(parent.images)} images, and an edit starts from one")
        instruction = text.rpartition(self._behind)[2].strip() or parent.last_text
        condition = {self._condition: parent.images[0]}
        return replace(parent, prompt=instruction, messages=(), images=(), conditions=condition)
