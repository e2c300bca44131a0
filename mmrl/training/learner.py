"""`Learner`: a model that a run trains, with its optimizer, its loss scale and the moving average of its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmrl.algorithms.optimal_baseline import kept_noise, signal_share
from mmrl.config.policy import Precision
from mmrl.config.sampling import SamplingKind
from mmrl.config.training import OptimizerConfig
from mmrl.distributed.layout import Replicas, layout_of
from mmrl.distributed.tensor_parts import on_main_whole
from mmrl.errors import ConfigError, RunError
from mmrl.trained_models import TrainedModel
from mmrl.training.ema import ParameterCopy
from mmrl.training.loss_scale import LossScale
from mmrl.training.run.checkpoints import load_optimizer_tensors, load_parameters, optimizer_tensors


@dataclass(frozen=True)
class Update:
    """An optimizer update that was made."""

    grad_norm: float  # before clipping
    learning_rate: float


class Learner:
    """A model that a run trains, with everything that its updates keep."""

    def __init__(
        self,
        model: TrainedModel,
        settings: OptimizerConfig,
        precision: Precision,
        sampling: SamplingKind | None = None,
    ) -> None:
        """`precision` is that of the model's computations, `sampling` the kind of its rollouts; None: the policy's.

        Raises:
            ConfigError: the learning rate follows the gradient's signal, and the parameters are divided.
        """
        self.model, self.settings, self.sampling = model, settings, sampling
        self.parameters, self.layout = model.parameters_to_train(), layout_of(model)
        if settings.signal is not None and not isinstance(self.layout, Replicas):
            raise ConfigError(
                "optimizer.signal: the moments of a gradient lie divided over the processes: set run.place replicas, "
                "or leave it out"
            )
        hyperparameters = settings.model_dump(include={"lr", "betas", "eps", "weight_decay"})
        self.optimizer = torch.optim.AdamW(self._parameter_groups(), **hyperparameters)
        self.average = ParameterCopy(self.parameters, self.layout) if settings.ema is not None else None
        self.loss_scale = LossScale(precision)
        self.updates = 0
        """The optimizer updates so far."""

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, total: int, iteration: int, lr_scale: float = 1.0) -> Update | None:
        """Make an optimizer update with the gradients that are there.

        `total` is the number of updates that the learning rate's schedule ends with, `iteration` that of the run, for
        the error, and `lr_scale` a factor on the rate. Return None if a gradient overflowed, so that the loss scale was
        lowered and nothing updated.

        Raises:
            RunError: the norm of the gradient is not finite; no parameter is changed.
        """
        self.layout.sum_gradients(self.parameters.values())
        self.loss_scale.unscale(self.parameters.values())
        norm = self.layout.clip_gradients(self.parameters.values(), self.settings.max_grad_norm).item()
        if not self.loss_scale.accepts(norm):
            return None
        if not math.isfinite(norm):
            raise RunError(
                f"the gradient's norm is {norm} at iteration {iteration}: lower optimizer.lr, or use float32; "
                "the last checkpoint is kept"
            )
        rate = learning_rate(self.settings.lr, self.updates, total, self.settings.warmup, self.settings.schedule)
        rate *= lr_scale * self._signal_factor()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        self.optimizer.step()
        self.layout.parameters_changed()
        self._count(self.updates + 1)
        if self.average is not None and self.settings.ema is not None:
            self.average.follow(min(self.settings.ema, self.updates / (self.updates + 10)))
        return Update(norm, rate)

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the moving average of its parameters, if there is one."""
        return nullcontext() if self.average is None else self.average.in_place()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the parts `parameters`, `optimizer` and, with a moving average, `average`."""
        found = {
            "parameters": on_main_whole({name: p.detach() for name, p in self.parameters.items()}),
            "optimizer": optimizer_tensors(self.optimizer),
        }
        return found if self.average is None else found | {"average": self.average.state_dict()}

    def values(self) -> dict[str, Any]:
        """Return the rest of the state, fit for JSON."""
        return {"updates": self.updates, "loss_scale": self.loss_scale.state_dict()}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], values: Mapping[str, Any]) -> None:
        """Continue exactly where `tensors` and `values` were taken."""
        load_parameters(self.parameters, tensors["parameters"])
        load_optimizer_tensors(self.optimizer, tensors["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(tensors["average"])
        self.loss_scale.load_state_dict(values.get("loss_scale", {}))
        self._count(values["updates"])

    def _signal_factor(self) -> float:
        """Return the factor on the learning rate by the moments of the gradients before this update."""
        signal = self.settings.signal
        if signal is None or self.updates < signal.after:
            return 1.0
        share = gradient_signal(self.optimizer)
        return 1.0 if share is None else min(1.0, max(signal.least, share))

    def _count(self, updates: int) -> None:
        self.updates = self.model.version = updates

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Return a group for each learning-rate scale, in the order in which the model names its parameters."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            groups.setdefault(self.model.lr_scale(name), []).append(parameter)
        return [{"params": parameters, "lr_scale": scale} for scale, parameters in groups.items()]


def gradient_signal(optimizer: torch.optim.AdamW) -> float | None:
    """Return the share of signal in the squared norm of a gradient, from the moments that AdamW keeps.

    The first moment, corrected for its bias, is an average of gradients, which has little noise left; the second is the
    average of their squares. None before two updates, and where all gradients were 0.
    """
    squared_mean, mean_square, kept = 0.0, 0.0, 1.0
    for group in optimizer.param_groups:
        first, second = group["betas"]
        for parameter in group["params"]:
            if not (state := optimizer.state.get(parameter)):
                continue
            steps = int(state["step"])
            squared_mean += float(state["exp_avg"].double().square().sum()) / (1 - first**steps) ** 2
            mean_square += float(state["exp_avg_sq"].double().sum()) / (1 - second**steps)
            kept = kept_noise(first, steps)
    if kept >= 1 or mean_square <= 0:
        return None
    return signal_share(squared_mean, mean_square, kept)


def learning_rate(
    base: float,
    update: int,  # from 0
    total: int,  # updates of the whole run
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"],
) -> float:
    """Return the learning rate of an update: a linear warm-up, then constant or decaying to 0 at the last update.

    >>> [learning_rate(1.0, update, 10, 2, "linear") for update in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if update < warmup:
        return base * (update + 1) / warmup
    if schedule == "constant":
        return base
    done = min(1.0, (update - warmup) / max(1, total - warmup))
    return base * (1 - done if schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * done))
