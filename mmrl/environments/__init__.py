"""Environments: partners of several turns, and the tools that a policy calls in them.

environment            `Environment`, `Episode`, `Step`, `Observation`
episode_batch          `EpisodeBatch`: the episodes of all rows, stepped at once
tool                   `Tool`, `TypedTool`, `ToolContext`
tool_environment       `ToolEnvironment`: turns that call tools in the model family's own format
environment_registry   environments and tools by name
play                   a person in the place of the policy

Nothing here imports torch.
"""

from mmrl.environments.environment import Environment, Episode, Observation, Step
from mmrl.environments.environment_registry import (
    available_environments,
    available_tools,
    build_environment,
    describe,
    load_environment,
    load_tool,
    register,
)
from mmrl.environments.episode_batch import EpisodeBatch
from mmrl.environments.tool import BadArguments, CallRejected, Tool, ToolArguments, ToolContext, TypedTool
from mmrl.environments.tool_environment import ToolEnvironment

__all__ = [
    "BadArguments",
    "CallRejected",
    "Environment",
    "Episode",
    "EpisodeBatch",
    "Observation",
    "Step",
    "Tool",
    "ToolArguments",
    "ToolContext",
    "ToolEnvironment",
    "TypedTool",
    "available_environments",
    "available_tools",
    "build_environment",
    "describe",
    "load_environment",
    "load_tool",
    "register",
]
