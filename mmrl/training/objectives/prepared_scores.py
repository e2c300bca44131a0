"""`PreparedScores`: what offloaded models say of the micro-batches of an update, computed before its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel

T = TypeVar("T")


class PreparedScores(Generic[T]):
    """Scores of micro-batches by models of the run, computed when they are needed, or ahead by offloaded models.

    Ahead means that the weights of the models are loaded once for all micro-batches of an update, and freed before the
    policy's passes keep activations. The scores of all micro-batches are in memory then.
    """

    def __init__(self, models: Iterable[NamedModel]) -> None:
        """`models` are those that the scores are computed with."""
        self._offloaded = [model for model in models if model.offloaded is not None]
        self._found: dict[int, T] = {}

    def prepare(self, batches: Sequence[MicroBatch], compute: Callable[[MicroBatch], T]) -> None:
        """Compute the scores of these micro-batches, if a model is offloaded."""
        if self._offloaded:
            self._found = {id(batch): compute(batch) for batch in batches}
            for model in self._offloaded:
                model.release()

    def get(self, batch: MicroBatch, compute: Callable[[], T]) -> T:
        """Return the scores of a micro-batch: those that were prepared, once, or else what `compute` returns."""
        found = self._found.pop(id(batch), None)
        return compute() if found is None else found
