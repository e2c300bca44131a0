"""Objectives that train the decoder of a policy's image tokens: on true pictures, and together with the policy.

The pictures that are rewarded are those of a moving average of the decoder, so that the policy's rewards do not jump.
Decoder and discriminator are trained models of the run, each with its optimizer; both take their step at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.algorithms.picture_decoding import best_of_groups, discriminator_loss, gradient_balance, realism_loss
from mmrl.config.algorithms.decoder_turns import PerceptualConfig, RankEConfig, ReconstructionConfig
from mmrl.config.named_models import POLICY
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.images.similarity import ReferenceReward
from mmrl.trained_models import CodeDecoder, PictureJudge
from mmrl.training.ema import ParameterCopy
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.reward_gradient import DifferentiableReward
from mmrl.training.rollouts.collect import reward_inputs
from mmrl.training.rollouts.true_pictures import true_pictures

TRUE, CHOSEN = 0, 1
"""The numbers of the losses of RankE's decoder, by which they are dealt to the processes of a run."""


class DecoderLosses:
    """The losses of a decoder and its discriminator; each adds its gradient to the parameters of one of the two.

    Metrics: `decoder/reconstruction`, `decoder/consistency`, `decoder/realism`, `decoder/reward`;
    `discriminator/loss`, and the mean logits `discriminator/true` and `discriminator/made`.
    """

    def __init__(self, decoder: CodeDecoder, discriminator: PictureJudge | None, perceptual: ReferenceReward) -> None:
        self.decoder, self._discriminator, self._perceptual = decoder, discriminator, perceptual

    def distance(self, pixels: Tensor, others: Tensor) -> Tensor:
        """Return the mean perceptual distance of pictures, both [B, 3, H, W] around [-1, 1]."""
        return self._perceptual.compare(in_unit(pixels), in_unit(others)).mean()

    def learn_true(
        self, pictures: Sequence[Image.Image], adversarial: float, scale: float, metrics: MetricAccumulator
    ) -> None:
        """Backpropagate `scale` times the loss of repeating true pictures, and the discriminator's own loss."""
        codes = self.decoder.encode(pictures)
        with torch.enable_grad():
            made = self.decoder.decode(codes)
            true = self.decoder.pixels(pictures, like=made)
            loss = (made - true).abs().mean() + self.distance(made, true)
            metrics.mean("decoder/reconstruction", loss.item())
            judge = self._discriminator
            if judge is not None and adversarial:
                self._learn_to_tell(judge, true, made.detach(), scale, metrics)
                with frozen(judge):
                    realism = realism_loss(judge.logits(made))
                    balance = gradient_balance(loss, realism, self.decoder.last_layer())
                    loss = loss + adversarial * balance * realism
            (scale * loss).backward()

    def realism(self, pixels: Tensor, weights: Tensor) -> Tensor | None:
        """Return minus the discriminator's mean weighted logit, whose gradient leaves it as it is; None without one."""
        if self._discriminator is None:
            return None
        with frozen(self._discriminator):
            return realism_loss(self._discriminator.logits(pixels), weights)

    def _learn_to_tell(
        self, judge: PictureJudge, true: Tensor, made: Tensor, scale: float, metrics: MetricAccumulator
    ) -> None:
        found = [judge.logits(true), judge.logits(made)]
        loss = discriminator_loss(*found)
        (scale * loss).backward()
        metrics.mean("discriminator/loss", loss.item())
        for name, logits in zip(("true", "made"), found, strict=True):
            metrics.mean(f"discriminator/{name}", logits.mean().item())


class TruePictureLoss(Objective):
    """The decoder learns to repeat the true pictures of samples; the policy does not change."""

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.TEACHER_FORCE})

    def __init__(self, losses: DecoderLosses, config: ReconstructionConfig) -> None:
        self._losses, self._config = losses, config
        self.trained = trained_parts(config)

    @classmethod
    def build(cls, config: ReconstructionConfig, inputs: ObjectiveInputs) -> TruePictureLoss:
        """Return the objective on the run's decoder."""
        return cls(build_losses(config, config.perceptual, inputs.parts), config)

    def uses_copies(self) -> bool:
        """Return False: there is no reference."""
        return False

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of pictures."""
        return batch.rollout.rows

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate the losses of the samples' true pictures."""
        pictures = true_pictures(batch.rollout.samples)
        self._losses.learn_true(pictures, self._config.adversarial, share, metrics)


class RankE(PolicyGradient):
    """A policy gradient for the generator, and the losses of its decoder on the best pictures of each group.

    All rows of a group must lie in one update. Further metrics: `decoder/chosen`, the mean reward of the pictures that
    the decoder learns from.

    The decoder's losses are of all pictures of an update together: of true ones because their two parts are balanced by
    the lengths of their gradients. So with several processes, process 0 computes that of the true pictures, process 1
    that of the chosen ones, each as one process would, and the sum of all gradients passes them on.
    """

    _config: RankEConfig
    _losses: DecoderLosses
    _steady: ParameterCopy
    _rewards: tuple[DifferentiableReward, ...]

    @classmethod
    def build(cls, config: RankEConfig, inputs: ObjectiveInputs) -> RankE:  # type: ignore[override]
        """Return the objective with its decoder.

        Raises:
            ConfigError: a reward has no gradient, or the perceptual distance is none.
        """
        built = super().build(config, inputs)
        assert isinstance(built, RankE)
        built._losses = build_losses(config, config.perceptual, inputs.parts)
        built._rewards = differentiable(inputs.rewards) if config.reward else ()
        built._steady = ParameterCopy(built._losses.decoder.parameters_to_train())
        built.trained = (POLICY, *trained_parts(config))
        return built

    def sampling_weights(self) -> AbstractContextManager[None]:
        """Return a context in which pictures are decoded with the moving average of the decoder."""
        return self._steady.in_place()

    def begin(self) -> None:
        """Begin the moving average at the decoder that earlier stages have trained."""
        self._steady.follow(0.0)

    def finish_iteration(self, updates: int) -> None:
        """Let the moving average follow the decoder if it is time."""
        if updates % self._config.steady.every == 0:
            self._steady.follow(self._config.steady.decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the moving average."""
        return self._steady.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._steady.load_state_dict(state)

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        """Add the gradients of the policy's loss, then those of the decoder's and the discriminator's."""
        super().accumulate(batches, factor, seeds, metrics, gathers_in_calls)
        if self._config.reconstruction and processes.owns(TRUE):
            samples = {sample.id: sample for batch in batches for sample in batch.rollout.samples}
            pictures = true_pictures(list(samples.values()))
            self._losses.learn_true(pictures, self._config.adversarial, self._config.reconstruction, metrics)
        if processes.owns(CHOSEN):
            self._learn_best(batches, metrics)

    def _learn_best(self, batches: Sequence[MicroBatch], metrics: MetricAccumulator) -> None:
        """Backpropagate the decoder's losses on the best pictures of each group."""
        totals = torch.cat([_totals(batch) for batch in batches])
        groups = torch.cat([batch.rollout.group_index.cpu() for batch in batches])
        rows, weights = best_of_groups(totals, groups, self._config.best, self._config.best_temperature)
        if not len(rows):
            return
        codes = [ids for batch in batches for ids in batch.rollout.token_ids or ()]
        items = [item for batch in batches for item in reward_inputs(batch.rollout)]
        decoder, config = self._losses.decoder, self._config
        device = decoder.last_layer().device
        chosen = torch.tensor([codes[row] for row in rows.tolist()], device=device)
        metrics.mean("decoder/chosen", totals[rows].mean().item())
        with torch.no_grad(), self._steady.in_place():
            steady = decoder.decode(chosen).clamp(-1, 1)
        with torch.enable_grad():
            made, weights = decoder.decode(chosen).clamp(-1, 1), weights.to(device)
            distance = self._losses.distance(made, steady)
            metrics.mean("decoder/consistency", distance.item())
            loss = config.consistency * distance
            if config.adversarial and (realism := self._losses.realism(made, weights)) is not None:
                metrics.mean("decoder/realism", realism.item())
                loss = loss + config.adversarial * realism
            if self._rewards:
                rewards = self._reward(made, [items[row] for row in rows.tolist()])
                metrics.mean("decoder/reward", rewards.mean().item())
                loss = loss - config.reward * (rewards * weights).mean()
            loss.backward()

    def _reward(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """Return the weighted sum of rewards [B], with a graph."""
        total = pixels.new_zeros(len(pixels))
        for each in self._rewards:
            total = total + each.weight * each.reward.score_tensor(in_unit(pixels), items).to(total)
        return total


def build_losses(
    config: RankEConfig | ReconstructionConfig, perceptual: PerceptualConfig, parts: Mapping[str, Any]
) -> DecoderLosses:
    """Return the losses of the decoder that a section names.

    Raises:
        ConfigError: the perceptual distance does not compare a picture with a reference.
    """
    distance = load(perceptual.name, **perceptual.args)
    if not isinstance(distance, ReferenceReward):
        raise ConfigError(
            f"algorithm.perceptual.name: {perceptual.name} does not compare a picture with a reference: take lpips, or "
            "a reward that derives from mmrl.rewards.images.similarity.ReferenceReward"
        )
    judge = None if config.discriminator is None else parts[config.discriminator]
    return DecoderLosses(parts[config.decoder], judge, distance)


def trained_parts(config: RankEConfig | ReconstructionConfig) -> tuple[str, ...]:
    """Return the names of the decoder and, if there is an adversarial loss, of the discriminator."""
    judged = config.discriminator is not None and config.adversarial > 0
    return (config.decoder, str(config.discriminator)) if judged else (config.decoder,)


def differentiable(rewards: Any) -> tuple[DifferentiableReward, ...]:
    """Return the rewards of the total, through which a decoder's pictures are differentiated.

    Raises:
        ConfigError: samples name other rewards than the recipe, or one has no gradient.
    """
    if not isinstance(rewards, RewardSuite):
        raise ConfigError("algorithm.reward: samples ask for other rewards than the recipe's, which are not "
                          "differentiated: set it to 0")  # fmt: skip
    found = [DifferentiableReward(part.reward, rewards.weights[part.reward.name]) for part in rewards.parts]
    counted = tuple(each for each in found if each.weight)
    if flat := [each.reward.name for each in counted if not each.reward.differentiable]:
        raise ConfigError(f"algorithm.reward: {', '.join(flat)} cannot be differentiated: set it to 0")
    return counted


def in_unit(pixels: Tensor) -> Tensor:
    """Return pixels around [-1, 1] in [0, 1]; those outside are not cut off."""
    return (pixels + 1) / 2


@contextmanager
def frozen(model: PictureJudge) -> Iterator[None]:
    """While open, gradients pass through a model and leave its parameters alone."""
    parameters: list[nn.Parameter] = list(model.parameters_to_train().values())
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _totals(batch: MicroBatch) -> Tensor:
    """[B] float32 on the CPU; NaN where a row is not to be learnt from."""
    if batch.totals is None:
        raise ValueError("the best pictures are chosen by their rewards, and these rows were not scored")
    return batch.totals.float().cpu().where(batch.scored.cpu(), torch.nan)
