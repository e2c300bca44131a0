"""Environments and tools by name: those that mmrl ships, those of other packages, and those of a user's file.

    load_tool("crop", side=336)
    load_tool("my_tools.py:weather")                      # a Tool class, or a function with annotated parameters
    load_environment("my_world.py:World", size=4)
    build_environment(EnvironmentConfig(name="tools", tools=[{"name": "crop"}]), family="qwen2_5_vl")

A package registers them as entry points of the groups `mmrl.environments` and `mmrl.tools`. Listing names imports none
of them; loading runs the package or file, so name only code that you trust.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from mmrl.components import Registry, is_reference
from mmrl.config.environment import EnvironmentConfig
from mmrl.environments.environment import Environment
from mmrl.environments.tool import Tool
from mmrl.environments.tools.function_tool import FunctionTool
from mmrl.errors import ConfigError

C = TypeVar("C", bound=Callable[..., Any])

ENVIRONMENTS: Registry[Any] = Registry(
    "mmrl.environments",
    "environment",
    {
        "attempts": "mmrl.environments.attempts:Attempts",
        "attributed": "mmrl.environments.attributed_progress:AttributedProgress",
        "rechecks": "mmrl.environments.rechecks:Rechecks",
        "recorded": "mmrl.environments.recorded:RecordedTraces",
        "ruled": "mmrl.environments.rule_tree:RuledProgress",
        "tagged": "mmrl.environments.tagged_steps:TaggedSteps",
        "tools": "mmrl.environments.tool_environment:ToolEnvironment",
    },
)
TOOLS: Registry[Any] = Registry(
    "mmrl.tools",
    "tool",
    {
        "calculator": "mmrl.environments.tools.calculator:Calculator",
        "crop": "mmrl.environments.tools.crop:Crop",
        "draw": "mmrl.environments.tools.draw:Draw",
        "find_pages": "mmrl.environments.tools.page_index:FindPages",
        "open_page": "mmrl.environments.tools.page_index:OpenPage",
        "read_text": "mmrl.environments.tools.read_text:ReadText",
        "search": "mmrl.environments.tools.local_search:LocalSearch",
        "search_picture": "mmrl.environments.tools.picture_search:PictureSearch",
    },
)


def register(component: C) -> C:
    """Register an environment class or a tool class under its `name`, or a function as a tool under its `__name__`.

    Raises:
        ConfigError: it is neither, or another one has the name.
    """
    registry = ENVIRONMENTS if hasattr(component, "begin") else TOOLS
    name = getattr(component, "name", None) or component.__name__
    if registry is TOOLS and not _is_tool(component):
        raise ConfigError(f"{name} is neither an environment, with `begin`, nor a tool, with `call`")
    registry.register(name, component)
    return component


def available_environments() -> list[str]:
    """Return the sorted names that `load_environment` takes."""
    return ENVIRONMENTS.available()


def available_tools() -> list[str]:
    """Return the sorted names that `load_tool` takes."""
    return TOOLS.available()


def load_environment(name: str, **args: Any) -> Environment:
    """Return an environment, built with the given arguments.

    Raises:
        ConfigError: there is no such environment, or the arguments do not fit it.
    """
    made: Environment = _built(ENVIRONMENTS, name, args)
    return made


def load_tool(name: str, **args: Any) -> Tool:
    """Return a tool, built with the given arguments; a function of a file becomes a `FunctionTool`.

    Raises:
        ConfigError: there is no such tool, or the arguments do not fit it.
    """
    made: Tool = _built(TOOLS, name, args)
    return made


def build_environment(config: EnvironmentConfig, family: str | None = None) -> Environment:
    """Return the environment of a configuration; `family` is the model type that the format of calls follows.

    A class with the attribute `played_argument` plays another environment, which this argument holds. In a
    configuration it is the other one's name or section.

    Raises:
        ConfigError: see `load_environment` and `load_tool`.
    """
    args = dict(config.args)
    if config.name == "tools":
        from mmrl.environments.call_formats import call_format

        args = {
            "tools": [load_tool(tool.name, **tool.args) for tool in config.tools],
            "format": call_format(config.format, family).name,
            "first_turn": config.first_turn,
            "deadline_s": config.deadline_s,
            **args,
        }
    key = getattr(_component(ENVIRONMENTS, config.name), "played_argument", None)
    if key is not None and isinstance(played := args.get(key), str | dict):
        section = {"name": played} if isinstance(played, str) else played
        args[key] = build_environment(EnvironmentConfig.model_validate(section), family)
    if config.max_turns is not None:
        args["max_turns"] = config.max_turns
    return load_environment(config.name, **args)


def describe(name: str) -> str:
    """Return a text with the purpose and arguments of an environment or, if none has the name, of a tool.

    Raises:
        ConfigError: there is neither.
    """
    registry = TOOLS if name in available_tools() or _is_tool_of_file(name) else ENVIRONMENTS
    component = _component(registry, name)
    facts = [
        f"{name}: {inspect.getdoc(component) or 'no description'}",
        "",
        f"kind       {registry.kind}",
        f"arguments  {_arguments(component)}",
    ]
    return "\n".join(facts)


def _is_tool_of_file(name: str) -> bool:
    if not is_reference(name):
        return False
    found = TOOLS.load(name)
    return _is_tool(found) and not hasattr(found, "begin")


def _is_tool(component: Any) -> bool:
    return inspect.isfunction(component) or hasattr(component, "call")


def _component(registry: Registry[Any], name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = registry.load(name)
    wanted = "begin" if registry is ENVIRONMENTS else "call"
    if inspect.isfunction(found) and registry is TOOLS:
        return found
    if not inspect.isclass(found) or not hasattr(found, wanted):
        raise ConfigError(f"{name} is no {registry.kind}: it must be a class with `{wanted}`")
    return found


def _built(registry: Registry[Any], name: str, args: dict[str, Any]) -> Any:
    component = _component(registry, name)
    if inspect.isfunction(component):
        if args:
            raise ConfigError(f"{name} is a function, which takes no settings: {', '.join(args)}")
        return FunctionTool(component)
    try:
        inspect.signature(component).bind(**args)
    except TypeError as err:
        raise ConfigError(f"{name}({_arguments(component)}): {err}") from None
    return component(**args)


def _arguments(component: Callable[..., Any]) -> str:
    parameters = inspect.signature(component).parameters.values()
    return ", ".join(str(parameter).replace("'", "").replace('"', "") for parameter in parameters) or "none"
