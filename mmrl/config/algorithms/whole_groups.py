"""Losses that see all answers to a prompt together: P3O and PACS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from mmrl.config.algorithms.base import AlgorithmConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class WholeGroupsConfig(AlgorithmConfig):
    """An algorithm whose loss compares the answers of a group, which must lie in one micro-batch."""

    on_decisions: ClassVar[bool] = True
    reads_advantages: ClassVar[bool] = False

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key by which a micro-batch would hold a part of a group."""
        yield from super().validation_errors(config)
        size, rows = config.data.group_size, config.data.micro_batch
        if size < 2:
            yield f"data.group_size: {self.name} compares answers to the same prompt: choose at least 2"
        elif rows is not None and rows % size:
            yield f"data.micro_batch: {rows} rows cut a group of {size}, which {self.name} compares: take a multiple"
        if config.data.replay is not None:
            yield f"data.replay: {self.name} compares the answers of an iteration: leave it out, or choose grpo"
        if config.data.starts is not None:
            yield f"data.starts: {self.name} compares answers to the same prompt: leave it out, or choose grpo"
        if config.data.demonstrations is not None:
            yield (
                f"data.demonstrations: they are read in other micro-batches than the answers to their prompts, which "
                f"{self.name} would not compare with them: leave them out, or choose grpo"
            )
        if (draws := config.data.group_sampling.name) in ("adaptive", "timed"):
            yield (
                f"data.group_sampling.name: {draws} draws a group in several rounds, each in other micro-batches, and "
                f"{self.name} compares the answers of one: choose fixed, dynamic or spread"
            )


class P3OConfig(WholeGroupsConfig):
    """P3O (arXiv:2310.00212): a policy gradient on the reward differences of pairs, with a clipped ratio of each
    trajectory."""

    objective: ClassVar[str] = "mmrl.training.objectives.group_comparison:PairwisePolicyGradient"
    name: Literal["p3o"] = "p3o"
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio of an answer's probabilities counts between 1 - clip and 1 + clip."""


class PACSConfig(WholeGroupsConfig):
    """PACS (arXiv:2509.02522): the log-ratios of a group's answers predict which are right, by cross-entropy."""

    objective: ClassVar[str] = "mmrl.training.objectives.group_comparison:OutcomePrediction"
    name: Literal["pacs"] = "pacs"
    beta: PositiveFloat = 1.0
    """The factor on an answer's log-ratio, which is its score."""
    threshold: float = 1.0
    """An answer is right if its total reward reaches this."""
    balanced: bool = True
    """Right and wrong answers of a group weigh alike, however many there are."""
