"""How a benchmark is taken: a file of configs/evaluation/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from mmrl.config.rewards import RewardConfig
from mmrl.config.section import Section


class MetricConfig(Section):
    """One number over all rows."""

    name: str
    """In `mmrl.evaluation.metrics`: mean, share_at_least, ..."""
    of: str | None = None
    """The reward that it is made of; unset: the metric reads answers itself."""
    args: Mapping[str, Any] = {}
    """Its own settings."""


class ProtocolConfig(Section):
    """A benchmark as its paper takes it: which data in which format, how it is answered, scored and summed up."""

    name: str
    title: str
    paper: str
    """Where it was published."""
    suits: Annotated[tuple[Literal["pipeline", "vlm", "image_tokens"], ...], Field(min_length=1)]
    """The kinds of policy that it is for."""
    format: str
    """In `mmrl.data.benchmarks`: how its public files are read."""
    files: str
    """What its public files are called and where they come from, for whoever gives none."""
    task: str | None = None
    """Of VLMs: how they are asked and how their answers are read."""
    rewards: Annotated[tuple[RewardConfig, ...], Field(min_length=1)]
    shapeworld_rewards: tuple[RewardConfig, ...] = ()
    """On ShapeWorld's data, where others see better than models of photographs; empty: the same."""
    metrics: Annotated[tuple[MetricConfig, ...], Field(min_length=1)]
    """The first is the one that the paper reports."""
    draws: PositiveInt = 1
    """Of each sample."""
    sampling: Mapping[str, Any] = {}
    """What of a subject's own sampling is set, such as {temperature: 0.0}."""
