"""`FunctionTool`: a Python function as a tool, whose JSON schema follows from its signature.

    def weather(city: str, days: int = 1) -> str:
        '''Forecast the weather of a city.'''

    FunctionTool(weather)      # in a recipe: tools: [{name: "my_tools.py:weather"}]

The first paragraph of the docstring describes the tool. A parameter named `context` gets the `ToolContext`. The result
is a text, a picture, an `Observation`, or a value that is written as JSON.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from PIL import Image
from pydantic import PydanticUserError, create_model

from mmrl.environments.environment import Observation
from mmrl.environments.tool import ToolArguments, ToolContext, checked_arguments, without_titles
from mmrl.errors import ConfigError


class FunctionTool:
    """A tool that calls a function with checked arguments."""

    concurrency: int | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        """
        Raises:
            ConfigError: a parameter has no annotation, cannot be passed by name, or has no JSON schema.
        """
        self.name = function.__name__
        self.description = " ".join((inspect.getdoc(function) or self.name).partition("\n\n")[0].split())
        self._function = function
        self._takes_context = "context" in inspect.signature(function).parameters
        self._model = _arguments_of(function)
        schema: dict[str, Any] = without_titles(self._model.model_json_schema())
        schema.pop("description", None)  # of the base class
        self.parameters: Mapping[str, Any] = schema

    def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Observation:
        """Check the arguments and call the function."""
        checked = checked_arguments(self._model, arguments)
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        result = self._function(**values, **({"context": context} if self._takes_context else {}))
        if isinstance(result, Observation):
            return result
        if isinstance(result, Image.Image):
            return Observation(images=(result,))
        return Observation(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))


def _arguments_of(function: Callable[..., Any]) -> type[ToolArguments]:
    name = function.__name__
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "context":
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"the tool {name}: {parameter} cannot be passed by name")
        if parameter.name not in hints:
            raise ConfigError(f"the tool {name}: annotate {parameter.name}, as in {parameter.name}: str")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    try:
        model = create_model(f"{name}_arguments", __base__=ToolArguments, **fields)
        model.model_json_schema()
    except (PydanticUserError, NameError) as err:
        raise ConfigError(f"the tool {name}: its parameters have no JSON schema: {err}") from None
    return model
