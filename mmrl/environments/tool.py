"""The interface of tools: a name, a JSON schema of arguments, and a call that returns an observation.

    class Shout(TypedTool):
        '''Return a text in capitals.'''

        name = "shout"

        class Arguments(ToolArguments):
            text: str

        def run(self, context: ToolContext, arguments: Arguments) -> Observation:
            return Observation(arguments.text.upper())

A tool never opens a path from its arguments. It raises `CallRejected` if it does not do what a well-formed call says,
such as cropping outside the picture, which is the policy's mistake. Any other exception makes the episode void.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

from mmrl.data.media.budget import ImageBudget, fit_image
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation
from mmrl.environments.source_pictures import MAX_PIXELS, SourcePictures

MAX_PROBLEMS = 3
"""The number of wrong arguments that one message names."""


class CallRejected(Exception):
    """A well-formed call that a tool does not carry out. The message is the observation, so it says what to change."""


class BadArguments(Exception):
    """Arguments that do not fit the schema of a tool. The message is the observation."""


class ToolContext:
    """The pictures that the calls of one episode may use: those of the sample, then those of earlier observations.

    Pictures are RGB at the size of their files, up to `MAX_PIXELS`, so that a crop has details that the policy's own
    input has not. They are numbered from 0 in the order in which the policy reads them.
    """

    def __init__(self, sample: Sample, reader: MediaReader, sources: SourcePictures | None = None) -> None:
        self.sample, self.reader = sample, reader
        self._sources = sources or SourcePictures()
        self._observed: tuple[Image.Image, ...] = ()

    @property
    def count(self) -> int:
        """The number of pictures."""
        return len(self.sample.images) + len(self._observed)

    def image(self, index: int) -> Image.Image:
        """Return a picture by its number.

        Raises:
            CallRejected: there is no such picture.
        """
        if not 0 <= index < self.count:
            known = f"the pictures are numbered 0 to {self.count - 1}" if self.count else "there is no picture"
            raise CallRejected(f"there is no picture {index}: {known}")
        if index < len(self.sample.images):
            return self._sources.read(self.sample.images[index], self.sample.id)
        return self._observed[index - len(self.sample.images)]

    def input_size(self, index: int) -> tuple[int, int]:
        """Return width and height of a picture as an input of the policy, in whose pixels it may answer."""
        return self.reader.input_size(*self.image(index).size)

    def with_images(self, images: tuple[Image.Image, ...]) -> ToolContext:
        """Return the context after an observation with these pictures."""
        after = ToolContext(self.sample, self.reader, self._sources)
        after._observed = (*self._observed, *(fit_image(image, ImageBudget(0, MAX_PIXELS)) for image in images))
        return after


class Tool(Protocol):
    """A function that a policy calls by writing its name and arguments. Several threads may call one tool at once."""

    name: str
    description: str
    """The sentence by which the policy knows what the tool does."""
    parameters: Mapping[str, Any]
    """The JSON schema of the arguments, an object."""
    concurrency: int | None
    """The largest number of calls at once; None: any number."""

    def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Observation:
        """Carry out a call.

        Raises:
            BadArguments: the arguments do not fit `parameters`.
            CallRejected: they fit, and the tool does not do what they say.
        """


class ToolArguments(BaseModel):
    """The base of the arguments of a `TypedTool`: unknown names, NaN and infinite numbers are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class TypedTool(ABC):
    """A tool whose arguments are a pydantic model, which makes the schema and checks each call."""

    name: ClassVar[str]
    concurrency: int | None = None
    Arguments: type[ToolArguments]

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        return " ".join((inspect.getdoc(self) or "").partition("\n\n")[0].split())

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of `Arguments`."""
        schema: dict[str, Any] = without_titles(self.Arguments.model_json_schema())
        return schema

    def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Observation:
        """Check the arguments and run the tool."""
        return self.run(context, checked_arguments(self.Arguments, arguments))

    @abstractmethod
    def run(self, context: ToolContext, arguments: Any) -> Observation:
        """Carry out a call whose arguments are an instance of `Arguments`."""


def checked_arguments(model: type[ToolArguments], arguments: Mapping[str, Any]) -> ToolArguments:
    """Return the arguments as an instance of a model.

    Raises:
        BadArguments: they do not fit it; the message names at most `MAX_PROBLEMS` of them.
    """
    try:
        return model.model_validate(arguments)
    except ValidationError as err:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the arguments'}: {problem['msg']}"[:200]
            for problem in err.errors(include_url=False, include_input=False, include_context=False)[:MAX_PROBLEMS]
        ]
        raise BadArguments("; ".join(problems)) from None


def without_titles(schema: Any) -> Any:
    """Return a JSON schema without the titles that pydantic derives from names, which only cost tokens."""
    if isinstance(schema, list):
        return [without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    properties = kept.pop("properties", None)
    cleaned = {key: without_titles(value) for key, value in kept.items()}
    if properties is not None:
        cleaned["properties"] = {name: without_titles(value) for name, value in properties.items()}
    return cleaned
