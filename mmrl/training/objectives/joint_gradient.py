"""Joint GRPO: the policy gradients of a text and of the picture that was drawn of it, with one advantage for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mmrl.config.algorithms.drawn_texts import JointGRPOConfig
from mmrl.config.named_models import POLICY
from mmrl.policy import Capability
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs
from mmrl.training.objectives.policy_gradient import PolicyGradient


class JointGradient(Objective):
    """Two policy gradients on the same trajectories: of the writer's tokens, and of the painter's denoising steps.

    Each is the mean over its own decisions, and each model has its optimizer. Metrics of the painter are `NAME/...`
    with its name in the run. A painter that is not trained has no gradient.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(self, policy: Any, config: JointGRPOConfig, text: Objective, picture: Objective | None) -> None:
        """`picture` is the objective of the painter; None: it does not learn."""
        super().__init__(policy, config)
        self._text, self._picture = text, picture
        self.trained = (POLICY,) if picture is None else (POLICY, config.painter)

    @classmethod
    def build(cls, config: JointGRPOConfig, inputs: ObjectiveInputs) -> JointGradient:
        """Return the objective with that of its painter, one of the models of the run."""
        painter: Any = inputs.models[config.painter].policy
        picture: Objective | None = None
        if any(parameter.requires_grad for parameter in painter.parameters_to_train().values()):
            picture = config.picture.objective_class().build(config.picture, ObjectiveInputs(painter, painter.sampling))
        return cls(inputs.policy, config, PolicyGradient.build(config, inputs), picture)

    def uses_copies(self) -> bool:
        """Return True with a penalty on the text."""
        return self._text.uses_copies()

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return that of the text; the picture has its own mean (`accumulate`)."""
        return self._text.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate a micro-batch that is an update by itself."""
        self.accumulate([batch], share, [seed], metrics)

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        """Add the gradient of all texts of an update to the writer's parameters, that of all pictures to the painter's.

        Raises:
            ValueError: a micro-batch has no pictures.
        """
        self._text.accumulate(batches, factor, seeds, metrics, gathers_in_calls)
        if self._picture is not None:
            own = MetricAccumulator()
            self._picture.accumulate([of_picture(batch) for batch in batches], factor, seeds, own)
            metrics.absorb(own, prefix=f"{self._config.painter}/")


def of_picture(batch: MicroBatch) -> MicroBatch:
    """Return what a painter learns from: its own decisions, each with the advantage of the whole trajectory.

    Raises:
        ValueError: nothing was drawn.
    """
    drawn = batch.rollout.drawn
    if drawn is None:
        raise ValueError("a painter learns from the pictures of texts, and this micro-batch has none")
    picture = MicroBatch.of_rows(drawn, batch.advantages)
    return replace(picture, scored=batch.scored, sampled=batch.sampled, totals=batch.totals)
