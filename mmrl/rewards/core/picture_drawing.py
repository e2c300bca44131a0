"""The models of a run that draw, as rewards see them.

painter = painter_of(context, "painter")
pictures = painter.pictures([Sample(id="a", prompt="a red circle")], context.seed, draws=4)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import ScoringFailed

if TYPE_CHECKING:
    from mmrl.rewards.core.reward_io import RewardContext


@runtime_checkable
class PictureModel(Protocol):
    """A model of the run that draws what samples ask for."""

    def pictures(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[Any]]:
        """Return `draws` pictures, or videos as lists of them, for each sample; equal seeds give equal ones.

        They are drawn as evaluations draw, without exploration. Samples of one prompt without conditions share theirs.
        """


def lacks_sample(reward: str) -> ScoringFailed:
    """Return the error of a reward whose answer comes without a sample, which a model of the run is to draw."""
    return ScoringFailed(f"{reward} needs the sample of an answer, which the reference draws", "missing")


def painter_of(context: RewardContext, name: str) -> PictureModel:
    """Return a model of the run that draws.

    Raises:
        ScoringFailed: answers are scored outside of a run, or it has no such model.
    """
    found = context.models.get(name)
    if not isinstance(found, PictureModel):
        raise context.no_model(f"model {name} that draws")
    return found
