"""Prompts that are added and dropped while training: `data.prompts: {name: growing}`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from mmrl.components import Registry
from mmrl.config.section import Section, registered
from mmrl.errors import ConfigError

PROPOSERS: Registry[Any] = Registry(
    "mmrl.proposers",
    "proposer",
    {
        "word_swaps": "mmrl.data.proposers:WordSwaps",
        "attempts": "mmrl.data.proposers:AttemptStarts",
    },
    base="mmrl.data.proposers:Proposer",
)
"""The proposers by name; packages add theirs in the entry-point group `mmrl.proposers`."""


class ProposerConfig(Section):
    """A maker of new samples by name, with its settings."""

    name: Annotated[str, registered(PROPOSERS)]
    """`word_swaps`, `attempts`, an installed proposer, or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the proposer's constructor."""

    def proposer(self) -> Any:
        """Return the proposer, a `mmrl.data.proposers.Proposer`.

        Raises:
            ConfigError: it cannot be imported, or does not take these arguments.
        """
        return PROPOSERS.build(self.name, self.args, "data.prompts.proposer")


class GrowingPromptsConfig(Section):
    """The samples, and others made from them while training (eva, arXiv:2411.00062; ExIt, arXiv:2509.04575)."""

    name: Literal["growing"] = "growing"
    proposer: ProposerConfig
    """The maker of new samples."""
    score: Literal["regret", "range", "variance"] = "regret"
    """The score of a prompt by the rewards of its answers: best minus mean (`regret`), best minus worst (`range`), or
    their variance."""
    parents: Literal["score", "uniform"] = "score"
    """`score`: parents are drawn with odds by score; `uniform`: all alike, for comparison."""
    every: PositiveInt = 1
    """The iterations from one addition to the next."""
    add: PositiveInt = 8
    """The samples that are added then."""
    capacity: PositiveInt = 256
    """The most added samples; those of the lowest scores are dropped."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The share of a batch that is drawn from the added samples, by score."""

    def errors(self) -> Iterator[str]:
        """Yield one message for each setting that cannot work."""
        try:
            self.proposer.proposer()
        except ConfigError as err:
            yield str(err)
