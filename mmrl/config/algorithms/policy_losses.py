"""Policy losses: the key `algorithm.surrogate`, and the registry of its values.

The built-in losses take their settings from keys of `algorithm` (`clip`, `temperature`, `gamma`); a loss of your own
has its settings beside its name, `surrogate: {name: my_losses.py:Smooth, width: 0.5}`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from mmrl.components import Registry, load_reference
from mmrl.config.section import ComponentSection, named_sections

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.algorithms.policy_losses import PolicyLoss
    from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig

_HOME = "mmrl.config.algorithms.policy_losses"
POLICY_LOSSES: Registry[Any] = Registry(
    "mmrl.policy_losses",
    "policy loss",
    named_sections(lambda: PolicyLossConfig, _HOME),
    base=f"{_HOME}:PolicyLossConfig",
)
"""The policy losses by name; packages add theirs in the entry-point group `mmrl.policy_losses`."""


class PolicyLossConfig(ComponentSection):
    """The loss of a policy gradient, a function of log-probabilities and advantages.

    A loss of your own derives from this class, adds its settings as fields and defines `loss`.
    """

    registry: ClassVar[Registry[Any]] = POLICY_LOSSES
    default_name: ClassVar[str] = "clip"
    shorthand: ClassVar[bool] = True
    uses: ClassVar[frozenset[str]] = frozenset()
    """The keys among `clip`, `temperature` and `gamma` of `algorithm` that the loss depends on."""
    couples_decisions: ClassVar[bool] = False
    """True: the loss of a decision depends on other decisions of its trajectory."""
    takes_guarded_ratio: ClassVar[bool] = False
    """True: the gradient is through the ratio, so that `ratio: guard` can normalise it."""
    function: ClassVar[str | None] = None
    """The reference of the loss function; None: the method `loss`."""

    name: str = "clip"

    def loss(self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> PolicyLoss:
        """Return the terms of the loss [B, T]; all arguments are [B, T], and `mask` False is not a decision."""
        raise NotImplementedError(f"{type(self).__name__} defines no loss")

    def arguments(self, algorithm: PolicyGradientConfig, clip: float) -> Mapping[str, Any]:
        """Return further arguments of `function`; `clip` is the clip range where none is configured."""
        return {"importance": algorithm.importance}

    def build(self, algorithm: PolicyGradientConfig, clip: float) -> Callable[..., PolicyLoss]:
        """Return the loss as a function of log-probs, old log-probs, advantages and mask."""
        if self.function is None:
            return self.loss
        built: Callable[..., PolicyLoss] = partial(load_reference(self.function), **self.arguments(algorithm, clip))
        return built

    def validation_errors(self, algorithm: PolicyGradientConfig) -> Iterator[str]:
        """Yield one message for each setting of `algorithm` that cannot work with this loss."""
        yield from ()

    @model_serializer(mode="wrap")
    def _as_name(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        return self.name if set(written) <= {"name"} else {"name": self.name} | written


class ClipLoss(PolicyLossConfig):
    """The clipped ratio of PPO (arXiv:1707.06347)."""

    name: Literal["clip"] = "clip"
    uses: ClassVar[frozenset[str]] = frozenset({"clip"})
    takes_guarded_ratio: ClassVar[bool] = True
    function: ClassVar[str | None] = "mmrl.algorithms:clipped_policy_loss"

    def arguments(self, algorithm: PolicyGradientConfig, clip: float) -> Mapping[str, Any]:
        low, high = algorithm.clip.low or clip, algorithm.clip.high or algorithm.clip.low or clip
        bounds = {"clip_low": low, "clip_high": high, "dual": algorithm.clip.dual}
        return bounds | {"importance": algorithm.importance}

    def validation_errors(self, algorithm: PolicyGradientConfig) -> Iterator[str]:
        dual, high = algorithm.clip.dual, algorithm.clip.high or algorithm.clip.low
        if dual is not None and high is not None and dual <= 1 + high:
            yield f"algorithm.clip.dual: {dual} does not lie above the ratio's ceiling, 1 + {high}"


class CISPOLoss(PolicyLossConfig):
    """The log-probability weighted by the ratio, which is bounded and detached (arXiv:2506.13585)."""

    name: Literal["cispo"] = "cispo"
    uses: ClassVar[frozenset[str]] = frozenset({"clip"})
    function: ClassVar[str | None] = "mmrl.algorithms:cispo_policy_loss"

    def arguments(self, algorithm: PolicyGradientConfig, clip: float) -> Mapping[str, Any]:
        low, high = algorithm.clip.low, algorithm.clip.high or algorithm.clip.low or clip
        return {"clip_low": low, "clip_high": high, "importance": algorithm.importance}

    def validation_errors(self, algorithm: PolicyGradientConfig) -> Iterator[str]:
        if algorithm.clip.dual is not None:
            yield "algorithm.clip.dual: cispo limits every ratio already, by clip.high: leave it out"


class SAPOLoss(PolicyLossConfig):
    """The ratio behind a soft gate (arXiv:2511.20347)."""

    name: Literal["sapo"] = "sapo"
    uses: ClassVar[frozenset[str]] = frozenset({"temperature"})
    takes_guarded_ratio: ClassVar[bool] = True
    function: ClassVar[str | None] = "mmrl.algorithms:sapo_policy_loss"

    def arguments(self, algorithm: PolicyGradientConfig, clip: float) -> Mapping[str, Any]:
        gate = algorithm.temperature
        temperatures = {"positive": gate.positive, "negative": gate.negative}
        return temperatures | {"importance": algorithm.importance}


class ReinforceLoss(PolicyLossConfig):
    """The log-probability, without a ratio (REINFORCE, Williams, 1992): for answers of the present policy alone."""

    name: Literal["reinforce"] = "reinforce"
    function: ClassVar[str | None] = "mmrl.algorithms:reinforce_policy_loss"


class TOPRLoss(PolicyLossConfig):
    """The log-probability of good answers, and that of bad ones weighted by their ratio (arXiv:2503.14286)."""

    name: Literal["topr"] = "topr"
    function: ClassVar[str | None] = "mmrl.algorithms:topr_policy_loss"


class VESPOLoss(PolicyLossConfig):
    """The log-probability weighted by a gamma function of the trajectory's ratio (arXiv:2602.10693)."""

    name: Literal["vespo"] = "vespo"
    uses: ClassVar[frozenset[str]] = frozenset({"gamma"})
    function: ClassVar[str | None] = "mmrl.algorithms:vespo_policy_loss"

    def arguments(self, algorithm: PolicyGradientConfig, clip: float) -> Mapping[str, Any]:
        gamma = algorithm.gamma
        positive, negative = (gamma.k_positive, gamma.lambda_positive), (gamma.k_negative, gamma.lambda_negative)
        return {"positive": positive, "negative": negative, "importance": algorithm.importance}
