"""`StandardisedHeads`: the heads of a reward model's folder as one score, in units of the training answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.learned.reward_folder import RewardModelSettings

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.rewards.learned.score_head import ScoreHead


class StandardisedHeads:
    """The mean score of an ensemble of heads, and its spread, in deviations from the mean of the training answers."""

    def __init__(
        self,
        model: str,
        settings: RewardModelSettings,
        heads: Sequence[ScoreHead],
        axis: str | None = None,
        pessimism: float = 0.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """
        Args:
            model: the folder, for messages.
            settings: those of the folder.
            heads: the members of the ensemble.
            axis: the score that counts; None: the mean of all axes.
            pessimism: factor of the spread that is subtracted from the mean.
            weights: of axes by name, whose weighted sum counts in the place of one axis or of the mean.

        Raises:
            RewardError: there is no such axis, or both an axis and weights are given.
        """
        if weights is not None and (axis is not None or not weights):
            raise RewardError(f"weights is {weights!r} and axis {axis!r}: name weights of some axes, or one axis")
        for name in (axis,) if weights is None else weights:
            if name is not None and name not in settings.axes:
                raise RewardError(f"{model} has no axis {name!r}: it has {', '.join(settings.axes)}")
        self.heads = heads
        self.inverses: Tensor | None = None  # [E, H, H] of `error_bound`, if the folder has them
        self._settings, self._pessimism = settings, pessimism
        chosen = weights or {name: 1.0 for name in settings.axes if axis in (None, name)}
        self._columns = [settings.axes.index(name) for name in chosen]
        self._weights = [each / (1.0 if weights else len(chosen)) for each in chosen.values()]

    def score_and_spread(
        self,
        features: Tensor,  # [B, F]
        latents: Tensor | None = None,  # [E, L] of a rater
    ) -> tuple[Tensor, Tensor]:  # [B] each
        """Return the standardised score, less `pessimism` times the spread, and the spread."""
        import torch

        means, variances = [], []
        for member, head in enumerate(self.heads):
            latent = None if latents is None else latents[member].expand(len(features), -1)
            mean, variance = head(features, latent)
            means.append(mean[:, self._columns])
            variances.append((torch.zeros_like(mean) if variance is None else variance)[:, self._columns])
        centre = features.new_tensor(self._settings.mean)[self._columns]
        unit = features.new_tensor(self._settings.spread)[self._columns]
        scores = (torch.stack(means) - centre) / unit  # [E, B, A]
        within = (torch.stack(variances) / unit.square()).mean(0)
        weights = features.new_tensor(self._weights)
        shares = weights.abs() / weights.abs().sum().clamp(min=1e-12)
        total = ((within + scores.var(0, correction=0)) * shares).sum(1)
        spread = total.clamp(min=1e-12).sqrt().where(total > 0, 0.0)  # the root has no gradient at 0
        return (scores.mean(0) * weights).sum(1) - self._pessimism * spread, spread

    def bounds(
        self,
        features: Tensor,  # [B, F]
        latents: Tensor | None = None,  # [E, L] of a rater
    ) -> Tensor:  # [B]
        """Return |phi|_{V^-1} of each answer, the mean over the members.

        Raises:
            RewardError: the folder has no bound.
        """
        import torch

        from mmrl.rewards.learned.error_bound import error_bounds

        if self.inverses is None:
            raise RewardError("the reward model has no bound: train it with the key bound set")
        found = []
        for member, head in enumerate(self.heads):
            latent = None if latents is None else latents[member].expand(len(features), -1)
            found.append(error_bounds(head.represent(features, latent), self.inverses[member]))
        return torch.stack(found).mean(0)
