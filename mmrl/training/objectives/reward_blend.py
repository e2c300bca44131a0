"""Weights of channels that are learnt by an outer gradient (BARFI): each channel's gradient is computed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.several_rewards import learned_weight
from mmrl.config.algorithms.reward_channels import ChannelConfig
from mmrl.distributed import processes
from mmrl.policy import Capability, Policy
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective

Gradients = list[Tensor]
"""A gradient for each parameter that is trained, in order."""


class BlendedRewards(Objective):
    """An objective whose gradient is the weighted sum of those of several channels, some with weights that are learnt.

    Metric: `blend/REWARDS`, the weight of a channel in this iteration. The gradients of the iteration before are kept,
    one of the size of the trained parameters for each learnt weight.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(self, objective: Objective, policy: Policy, channels: Sequence[ChannelConfig]) -> None:
        """
        Args:
            objective: the loss on advantages, of which the gradient is linear in them.
            policy: what is trained.
            channels: as `algorithm.advantage.channels` says.
        """
        self._objective, self._channels = objective, tuple(channels)
        self._parameters = list(policy.parameters_to_train().values())
        self.weights = [channel.weight for channel in channels]
        """The weights of all channels, learnt and fixed."""
        self._before: dict[int, Gradients] = {}
        self._now = self._nothing()

    def sampling_weights(self) -> AbstractContextManager[None]:
        return self._objective.sampling_weights()

    def uses_copies(self) -> bool:
        return self._objective.uses_copies()

    def loss_normalizer(self, batch: MicroBatch) -> float:
        return self._objective.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate channel by channel, and add up the gradients with the present weights."""
        if batch.parts is None:
            raise ValueError("this micro-batch does not tell its channels apart")
        total = [None if each.grad is None else each.grad.clone() for each in self._parameters]
        for number, (channel, own) in enumerate(zip(self._channels, batch.parts, strict=True)):
            for parameter in self._parameters:
                parameter.grad = None
            steps = own.to(batch.rollout.mask.device)[:, None].where(batch.rollout.mask, 0.0)
            alone = replace(batch, advantages=own, step_advantages=steps, parts=None)
            self._objective.backward(alone, share, seed, metrics if number == 0 else MetricAccumulator())
            for place, parameter in enumerate(self._parameters):
                if parameter.grad is not None:
                    self._now[number][place] += parameter.grad
                    scaled = self.weights[number] * parameter.grad
                    known = total[place]
                    total[place] = scaled if known is None else known + scaled
            if channel.learn is not None:
                metrics.mean(f"blend/{'+'.join(channel.rewards)}", self.weights[number])
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient

    def finish_iteration(self, updates: int) -> None:
        """Take a step of the outer problem: compare what counts now with the channels of the iteration before.

        An iteration in which a gradient overflowed in float16, so that its update was skipped, takes none.
        """
        self._objective.finish_iteration(updates)
        processes.sum_in_place([each for gradients in self._now for each in gradients])
        if not all(bool(each.isfinite().all()) for gradients in self._now for each in gradients):
            self._now = self._nothing()
            return
        fixed = [number for number, channel in enumerate(self._channels) if channel.learn is None]
        primary = [
            torch.stack([self.weights[number] * each for number, each in zip(fixed, parts, strict=True)]).sum(0)
            for parts in zip(*(self._now[number] for number in fixed), strict=True)
        ]
        for number, channel in enumerate(self._channels):
            if channel.learn is not None:
                if number in self._before:
                    learn = channel.learn
                    self.weights[number] = learned_weight(
                        self.weights[number], primary, self._before[number], learn.rate, learn.most
                    )
                self._before[number] = self._now[number]
        self._now = self._nothing()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights, and the gradients of the last iteration by channel and parameter."""
        kept = {
            f"gradient.{number}.{place}": each
            for number, gradients in self._before.items()
            for place, each in enumerate(gradients)
        }
        return {"weights": torch.tensor(self.weights, dtype=torch.float64)} | kept | self._objective.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.weights = state["weights"].tolist()
        learnt = [number for number, channel in enumerate(self._channels) if channel.learn is not None]
        self._before = {
            number: [state[f"gradient.{number}.{place}"].to(p) for place, p in enumerate(self._parameters)]
            for number in learnt
            if f"gradient.{number}.0" in state
        }
        own = {name for name in state if name == "weights" or name.startswith("gradient.")}
        self._objective.load_state_dict({name: each for name, each in state.items() if name not in own})

    def _nothing(self) -> list[Gradients]:
        return [[torch.zeros_like(each) for each in self._parameters] for _ in self._channels]
