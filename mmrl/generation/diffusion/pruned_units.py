"""Prune hidden units of a denoiser's feed-forward layers, by gates that are learnt through the whole sampler (EcoDiff).

    gates = HiddenUnitGates(pipeline.transformer)
    learn_gates(policy, gates, samples)
    kept = gates.kept(0.5)                          # half of the units
    remove_hidden_units(pipeline.transformer, kept)

Each unit has a gate that is drawn from a hard concrete distribution (arXiv:1712.01312). Gates are learnt so that few
are open and the pictures stay those of the whole model; the weights do not change (arXiv:2412.02852). diffusers' files
have no place for layers of unequal width: store the numbers of the kept units, and remove the others after loading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from diffusers.models.attention import FeedForward
from torch import Tensor, nn

from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.policy import BackpropSteps, DecodingPolicy
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import fold_in

TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1
"""The hard concrete distribution: a sigmoid of noise at this temperature, stretched to these bounds, cut to [0, 1]."""

Kept = Mapping[str, Sequence[int]]
"""The numbers of the hidden units that stay, by the path of their feed-forward layer."""


class SamplerSteps(Protocol):
    """A choice of the denoising steps through which gates are learnt, anew for each update."""

    def __call__(self, rng: np.random.Generator) -> BackpropSteps: ...


@dataclass(frozen=True)
class GateSettings:
    """Settings for learning gates."""

    updates: int = 60
    rows: int = 8
    """Pictures of an update."""
    lr: float = 0.1
    sparsity: float = 1.0
    """The weight of the share of open gates, beside the mean squared difference of pixels in [0, 1]."""
    seed: int = 0
    steps: SamplerSteps = lambda rng: BackpropSteps(recomputed=True)
    """All steps of the sampler, in the memory of one; another choice is for comparisons."""


class HiddenUnitGates(nn.Module):
    """Gates on the hidden units of all feed-forward layers of a denoiser; a unit's gate multiplies what it passes on.

    Raises:
        ConfigError: the denoiser has no `FeedForward` of diffusers.
    """

    def __init__(self, denoiser: nn.Module, start: float = 3.0) -> None:
        """`start` is the logit of every gate before learning."""
        super().__init__()
        self._layers = feed_forwards(denoiser)
        self._drawn: dict[str, Tensor] = {}
        self.logits = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(_unit_logits(layer, start)) for name, layer in self._layers.items()}
        )

    def open_share(self) -> Tensor:
        """Return the expected share of gates that are not 0, a scalar with a gradient."""
        shift = TEMPERATURE * math.log(-LOW / HIGH)
        return torch.cat([torch.sigmoid(each - shift) for each in self.logits.values()]).mean()

    def draw(self, generator: torch.Generator) -> None:
        """Draw a gate in [0, 1] for each unit, which holds until the next draw."""
        for name in self._layers:
            logits = self.logits[name.replace(".", "/")]
            uniform = torch.rand(logits.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(logits.device)
            soft = torch.sigmoid((torch.logit(uniform) + logits) / TEMPERATURE)
            self._drawn[name] = (soft * (HIGH - LOW) + LOW).clamp(0, 1)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """While open, the denoiser computes with the gates that were drawn last."""

        def gated(name: str) -> Any:
            return lambda _, inputs: (inputs[0] * self._drawn[name].to(inputs[0].dtype), *inputs[1:])

        hooks = [_output(layer).register_forward_pre_hook(gated(name)) for name, layer in self._layers.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def kept(self, share: float) -> dict[str, list[int]]:
        """Return the units with the largest logits over all layers, that share of them, and at least one a layer."""
        return most_important({name: self.logits[name.replace(".", "/")].detach() for name in self._layers}, share)


def learn_gates(
    policy: DecodingPolicy, gates: HiddenUnitGates, samples: Sequence[Sample], settings: GateSettings = GateSettings()
) -> list[float]:
    """Learn which hidden units the pictures need, and return the loss of each update.

    Args:
        policy: It draws the pictures; its weights do not change.
        gates: Those of its denoiser.
        samples: The prompts, a hundred or so.
        settings: Of the updates.
    """
    optimizer = torch.optim.Adam(gates.parameters(), lr=settings.lr)
    rng, generator = np.random.default_rng(settings.seed), torch.Generator().manual_seed(settings.seed)
    losses = []
    for update in range(settings.updates):
        chosen = rng.choice(len(samples), size=settings.rows, replace=settings.rows > len(samples))
        requests = [RolloutRequest(samples[number], 1, group) for group, number in enumerate(chosen)]
        with policy.keep_latents(), torch.no_grad():
            rollout = policy.rollout(requests, fold_in(settings.seed, update))
        steps = settings.steps(rng)
        with torch.no_grad():
            whole = policy.decode_with_grad(rollout, steps)
        gates.draw(generator)
        with gates.applied(), torch.enable_grad():  # the backward pass may compute the denoiser again
            difference = (policy.decode_with_grad(rollout, steps) - whole).square().mean()
            loss = difference + settings.sparsity * gates.open_share()
            optimizer.zero_grad()
            loss.backward(inputs=list(gates.parameters()))
        optimizer.step()
        losses.append(loss.item())
    return losses


def feed_forwards(denoiser: nn.Module) -> dict[str, FeedForward]:
    """Return the feed-forward layers of a denoiser by their path."""
    found = {name: layer for name, layer in denoiser.named_modules() if isinstance(layer, FeedForward)}
    if not found:
        raise ConfigError(f"{type(denoiser).__name__} has no FeedForward layer of diffusers, whose units are pruned")
    return found


def weight_norms(denoiser: nn.Module) -> dict[str, Tensor]:
    """Return the importance of each hidden unit by magnitude: the norm of its incoming times its outgoing weights."""
    found = {}
    for name, layer in feed_forwards(denoiser).items():
        output, entrance = _output(layer), _entrance(layer)
        incoming = entrance.weight.detach().float().unflatten(0, (-1, output.in_features)).square().sum((0, 2)).sqrt()
        found[name] = incoming * output.weight.detach().float().norm(dim=0)
    return found


def most_important(importance: Mapping[str, Tensor], share: float) -> dict[str, list[int]]:
    """Return the units of the largest importance over all layers, that share of them, and at least one a layer.

    Raises:
        ValueError: the share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number in (0, 1], got {share}")
    values = torch.cat(list(importance.values()))
    count = max(1, round(share * len(values)))
    least = values.sort(descending=True).values[count - 1]
    kept = {}
    for name, each in importance.items():
        chosen = (each >= least).nonzero().flatten().tolist()
        kept[name] = chosen or [int(each.argmax())]
    return kept


@torch.no_grad()
def remove_hidden_units(denoiser: nn.Module, kept: Kept) -> int:
    """Remove all other hidden units from the feed-forward layers, in place, and return the number of parameters lost.

    Raises:
        ConfigError: the denoiser has no layer of a name, or a layer has no unit of a number.
    """
    layers, lost = feed_forwards(denoiser), 0
    for name, units in kept.items():
        if name not in layers:
            raise ConfigError(f"{type(denoiser).__name__} has no feed-forward layer {name}: it has {list(layers)}")
        output, entrance = _output(layers[name]), _entrance(layers[name])
        width = output.in_features
        if not units or not 0 <= min(units) <= max(units) < width:
            raise ConfigError(f"{name}: expected numbers of its {width} hidden units, got {list(units)}")
        before = sum(each.numel() for each in layers[name].parameters())
        rows = torch.tensor([part * width + unit for part in range(entrance.out_features // width) for unit in units])
        _shrink(entrance, rows, 0)
        _shrink(output, torch.tensor(list(units)), 1)
        lost += before - sum(each.numel() for each in layers[name].parameters())
    return lost


def _shrink(linear: nn.Linear, chosen: Tensor, dim: int) -> None:
    """Keep these rows (dim 0: outputs) or columns (dim 1: inputs) of a linear layer."""
    chosen = chosen.to(linear.weight.device)
    linear.weight = nn.Parameter(linear.weight.index_select(dim, chosen), linear.weight.requires_grad)
    if dim == 1:
        linear.in_features = len(chosen)
        return
    linear.out_features = len(chosen)
    if linear.bias is not None:
        linear.bias = nn.Parameter(linear.bias.index_select(0, chosen), linear.bias.requires_grad)


def _unit_logits(layer: FeedForward, logit: float) -> Tensor:
    """Return one logit for each hidden unit, on the device of the layer, [units] float32."""
    weight = _output(layer).weight
    return torch.full((weight.shape[1],), logit, device=weight.device)


def _output(layer: FeedForward) -> nn.Linear:
    """Return the layer that reads the hidden units."""
    return next(each for each in reversed(layer.net) if isinstance(each, nn.Linear))


def _entrance(layer: FeedForward) -> nn.Linear:
    """Return the layer that computes the hidden units, twice as many outputs where one half gates the other."""
    projection = layer.net[0].proj
    assert isinstance(projection, nn.Linear)
    return projection
