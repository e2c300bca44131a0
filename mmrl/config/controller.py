"""Controllers: rules that move settings between rounds of training, by what a few answers at each setting are worth."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveInt

from mmrl.components import Registry
from mmrl.config.algorithms.answer_weights import BestOfConfig
from mmrl.config.section import Section, registered
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

CONTROLLERS: Registry[Any] = Registry(
    "mmrl.controllers",
    "controller",
    {"balance_score": "mmrl.training.rollouts.balance_score:BalanceScore"},
    base="mmrl.training.rollouts.controllers:Controller",
)
"""The controllers by name; packages add theirs in the entry-point group `mmrl.controllers`."""

TEMPERATURE = "sampling.temperature"
THRESHOLD = "algorithm.advantage.min_value"
TURNS = "environment.max_turns"
WEIGHTS = "data.prompts.weights."
"""Begins the key of the weight of a source in a mixture of prompts."""
MOVABLE = (TEMPERATURE, THRESHOLD, TURNS)
"""The settings that a controller may move, beside the weights of sources."""


class ControllerConfig(Section):
    """A controller by name, with its settings and the answers of its probes."""

    name: Annotated[str, registered(CONTROLLERS)]
    """`balance_score`, an installed controller, or `path/to/file.py:Class` for one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the controller's constructor."""
    every: PositiveInt = 10
    """The iterations of a round: settings are chosen before the first one, and before each that follows a round."""
    prompts: PositiveInt = 32
    """The prompts that are answered at each setting, another choice in each round."""
    answers: Annotated[int, Field(ge=2)] = 8
    """The answers to each of them; they are scored and not learnt from."""

    def controller(self) -> Any:
        """Return the controller, a `mmrl.training.rollouts.controllers.Controller`.

        Raises:
            ConfigError: it cannot be imported, does not take these arguments, or moves what cannot be moved.
        """
        built = CONTROLLERS.build(self.name, self.args, "data.controller")
        if unknown := [each for each in built.moves if each not in MOVABLE and not each.startswith(WEIGHTS)]:
            raise ConfigError(
                f"data.controller: {self.name} moves {unknown[0]}; a controller may move {', '.join(MOVABLE)} and "
                f"{WEIGHTS}SOURCE"
            )
        return built


def controller_errors(config: TrainConfig, capabilities: Collection[str] | None) -> Iterator[str]:
    """Yield one message for each setting that a controller cannot work with."""
    chosen = config.data.controller
    if chosen is None:
        return
    try:
        moves = chosen.controller().moves
    except ConfigError as err:
        yield str(err)
        return
    if config.algorithm.experience != "rollouts":
        yield f"data.controller: {config.algorithm.name} samples no answers: leave it out"
    if TEMPERATURE in moves and capabilities is not None and "row_starts" not in capabilities:
        yield f"data.controller: {chosen.name} moves the temperature, which this policy does not have: leave it out"
    if TEMPERATURE in moves and config.data.starts is not None:
        yield f"data.starts: {chosen.name} moves the temperature of all rows: leave one of the two out"
    if THRESHOLD in moves and not isinstance(getattr(config.algorithm, "advantage", None), BestOfConfig):
        yield f"data.controller: {chosen.name} moves {THRESHOLD}, which rejection_sft has: choose that algorithm"
    if TURNS in moves and (config.environment is None or config.environment.horizon):
        yield (
            f"data.controller: {chosen.name} moves {TURNS}: name an environment, and leave its horizon out, which "
            "moves them too"
        )
    prompts = config.data.prompts
    sources = prompts.weights if prompts.name == "mixture" else {}
    for key in moves:
        if key.startswith(WEIGHTS) and key.removeprefix(WEIGHTS) not in sources:
            yield (
                f"data.controller: {chosen.name} moves {key}: give data.prompts the name mixture, with a weight of "
                f"{key.removeprefix(WEIGHTS)}"
            )
    if config.run.overlap.is_on:
        yield "data.controller: it samples between iterations, which run.overlap does not separate: take lag 0"
    if config.run.servers is not None:
        yield "data.controller: servers sample at one temperature: leave one of the two out"
