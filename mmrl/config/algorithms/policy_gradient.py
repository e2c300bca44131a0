"""Policy gradients: one objective, of which `grpo`, `dapo`, `gspo` and so on are settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig, KLConfig
from mmrl.config.algorithms.policy_losses import (
    CISPOLoss,
    PolicyLossConfig,
    SAPOLoss,
    TOPRLoss,
    VESPOLoss,
)
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

Aggregate = Literal["sequence", "token", "micro_batch", "constant"]
Importance = Literal["token", "sequence", "trajectory"]
Ratio = Literal["plain", "guard"]


class ClipConfig(Section):
    """The bounds on the ratio of new to old probability within an update."""

    number = "low"

    low: PositiveFloat | None = None
    """The ratio's floor is 1 - low. Unset: 0.2 for tokens, 1e-4 for denoising steps, whose log-prob is a *mean* over
    latents, 2e-6 with `ratio: guard`; no floor at all for the surrogate cispo."""
    high: PositiveFloat | None = None
    """The ratio's ceiling is 1 + high; unset, as `low`. DAPO's clip-higher sets it apart."""
    dual: Annotated[float, Field(gt=1)] | None = None
    """The bound on the ratio of decisions with a negative advantage (dual clip; trl's `delta`)."""


class TemperatureConfig(Section):
    """The steepness with which SAPO's gate closes as a ratio leaves 1."""

    positive: PositiveFloat = 1.0
    """For advantages above 0."""
    negative: PositiveFloat = 1.05
    """For all others."""


class GammaConfig(Section):
    """VESPO's weight of a trajectory with ratio w: e^lambda w^k e^(-lambda w), which is 1 at w = 1."""

    k_positive: PositiveFloat = 2.0
    lambda_positive: PositiveFloat = 3.0
    k_negative: PositiveFloat = 3.0
    """For advantages below 0; the other two are for all others."""
    lambda_negative: PositiveFloat = 2.0


class MismatchConfig(Section):
    """Importance sampling, for rollouts whose engine computes other log-probabilities than the trainer."""

    cap: PositiveFloat = 2.0
    """The largest weight of a decision, which is its probability under the trainer over that under the engine."""
    level: Literal["token", "sequence"] = "token"
    """token: each decision has its own weight. sequence: all decisions of an answer have the product of theirs."""
    beyond: Literal["truncate", "mask"] = "truncate"
    """A weight above the cap becomes the cap (truncate), or the decision, or the answer, is left out (mask)."""
    max_gap: PositiveFloat | None = None
    """The run stops when the log-probabilities of a rollout differ by more between engine and trainer, in the mean of
    its decisions. Unset: with `run.servers` the bounds of `training.max_replay_gap`, otherwise none."""


class PolicyGradientConfig(AlgorithmConfig):
    """Policy gradient on group-relative advantages, for tokens and for denoising steps."""

    on_decisions: ClassVar[bool] = True
    objective: ClassVar[str] = "mmrl.training.objectives.policy_gradient:PolicyGradient"
    advantage: AdvantageConfig = AdvantageConfig()
    surrogate: PolicyLossConfig = PolicyLossConfig()
    """The policy loss: PPO's clipped ratio (clip); the log-prob, weighted by a limited ratio (cispo, topr, vespo); a
    ratio behind a soft gate (sapo); an installed loss, or `{name: path/to/file.py:Name, ...}` with its settings."""
    importance: Importance = "token"
    """The ratio of new to old probability: of each decision; the geometric mean over a trajectory's decisions (GSPO);
    or their product, the ratio of the whole trajectory."""
    ratio: Ratio = "plain"
    """guard: for denoising steps, normalised so that its logarithm has mean 0 and no step has more spread than others
    for its noise; and each step's term is divided by how far its mean moves with the velocity, so that late, short
    steps learn as fast as early ones (GRPO-Guard)."""
    clip: ClipConfig = ClipConfig()
    """The bounds on the ratio, for the surrogates clip and cispo."""
    temperature: TemperatureConfig = TemperatureConfig()
    """The gate of the surrogate sapo."""
    gamma: GammaConfig = GammaConfig()
    """The weights of the surrogate vespo."""
    kl: KLConfig = KLConfig()
    aggregate: Aggregate = "sequence"
    """Mean over trajectories of the mean over each one's decisions; mean over all decisions of the update; mean over
    each micro-batch's decisions, then over micro-batches (trl's bnpo); or each trajectory's sum over `length`."""
    length: PositiveInt | None = None
    """The divisor of `aggregate: constant`; unset: the most decisions that a trajectory may have."""
    mismatch: MismatchConfig | None = None
    """Set: the trainer recomputes the log-probabilities of every rollout before it learns from it, ratios begin there,
    and decisions are weighted by how much likelier they are to the trainer than to the engine. Unset: both must agree
    within `training.max_replay_gap`."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect beside the others, or cannot work with them."""
        loss = self.surrogate
        if self.ratio == "guard" and not loss.takes_guarded_ratio:
            yield (
                f"algorithm.ratio: guard is for clip and sapo, which learn through the ratio, and {loss.name} is chosen"
            )
        if self.ratio == "guard" and self.importance != "token":
            yield f"algorithm.ratio: guard normalises each step's own ratio; importance {self.importance} shares one"
        if "clip" not in loss.uses and self.clip != ClipConfig():
            yield f"algorithm.clip: the surrogate {loss.name} clips nothing: leave it out, or choose the surrogate clip"
        if "temperature" not in loss.uses and self.temperature != TemperatureConfig():
            yield f"algorithm.temperature: it shapes the surrogate sapo, and {loss.name} is chosen"
        if "gamma" not in loss.uses and self.gamma != GammaConfig():
            yield f"algorithm.gamma: it shapes the surrogate vespo, and {loss.name} is chosen"
        if self.aggregate != "constant" and self.length is not None:
            yield f"algorithm.length: aggregate constant divides by it, and {self.aggregate} is chosen: leave it out"
        if self.mismatch is not None and getattr(config.data.replay, "name", None) == "selective":
            yield (
                "algorithm.mismatch: answers that data.replay keeps were sampled with older weights, and have no "
                "engine to be compared with: leave one of the two out"
            )
        yield from loss.validation_errors(self)
        yield from self.advantage.validation_errors(config)

    def capability_errors(self, capabilities: Collection[str]) -> Iterator[str]:
        """Yield one message for each setting that is for denoising steps alone, or for tokens alone."""
        is_denoising = "moments" in capabilities
        if self.ratio == "guard" and not is_denoising:
            yield "algorithm.ratio: guard normalises by the noise of denoising steps, and tokens have none"
        if not self.kl.coef or self.kl.kind is None:
            return
        if is_denoising != (self.kl.kind in ("mean_distance", "velocity_mse")):
            decisions = "denoising steps" if is_denoising else "tokens"
            choices = "mean_distance or velocity_mse" if is_denoising else "k3, weighted_k3 or k2"
            yield f"algorithm.kl.kind: {self.kl.kind} is not for {decisions}: choose {choices}, or leave it out"


class GRPOConfig(PolicyGradientConfig):
    """GRPO (arXiv:2402.03300); for denoising steps Flow-GRPO, DanceGRPO, MixGRPO."""

    name: Literal["grpo"] = "grpo"


class GRPOGuardConfig(PolicyGradientConfig):
    """GRPO-Guard (arXiv:2510.22319): ratios of denoising steps that the clip treats alike, and gradients as large."""

    name: Literal["grpo_guard"] = "grpo_guard"
    ratio: Ratio = "guard"


class DDPOConfig(PolicyGradientConfig):
    """DDPO (arXiv:2305.13301): each reward against the last ones of its prompt."""

    name: Literal["ddpo"] = "ddpo"
    advantage: AdvantageConfig = AdvantageConfig(name="running", clip=5.0)


class DPOKConfig(PolicyGradientConfig):
    """DPOK (arXiv:2305.16381): rewards against their group's mean, and the KL to the pretrained model at each step."""

    name: Literal["dpok"] = "dpok"
    advantage: AdvantageConfig = AdvantageConfig(name="rloo")
    kl: KLConfig = KLConfig(kind="mean_distance", coef=0.001)


class UniGRPOConfig(PolicyGradientConfig):
    """UniGRPO (arXiv:2603.23500): a penalty on velocities that no noise level scales; for rollouts without guidance."""

    name: Literal["unigrpo"] = "unigrpo"
    kl: KLConfig = KLConfig(kind="velocity_mse", coef=0.01)


class BranchGRPOConfig(PolicyGradientConfig):
    """BranchGRPO (arXiv:2509.06040): each step by what came of it, where rows share steps before they part."""

    name: Literal["branch_grpo"] = "branch_grpo"
    advantage: AdvantageConfig = AdvantageConfig(name="branch", ddof=1)
    aggregate: Aggregate = "token"


class B2DiffuRLConfig(PolicyGradientConfig):
    """B2-DiffuRL (arXiv:2503.11240): the best and the worst row of each branch, against their prompt's last rewards."""

    name: Literal["b2_diffurl"] = "b2_diffurl"
    advantage: AdvantageConfig = AdvantageConfig(name="running", clip=5.0, extremes_threshold=0.5)


class DrGRPOConfig(PolicyGradientConfig):
    """Dr. GRPO (arXiv:2503.20783): neither the spread of a group nor the length of an answer scales its gradient."""

    name: Literal["dr_grpo"] = "dr_grpo"
    advantage: AdvantageConfig = AdvantageConfig(name="dr_grpo")
    aggregate: Aggregate = "constant"


class BNPOConfig(PolicyGradientConfig):
    """GRPO with the mean over each micro-batch's tokens, as trl's bnpo. Not the BNPO of arXiv:2506.02864."""

    name: Literal["bnpo"] = "bnpo"
    aggregate: Aggregate = "micro_batch"


class DAPOConfig(PolicyGradientConfig):
    """DAPO (arXiv:2503.14476): clip-higher and the mean over tokens.

    Its dynamic sampling is a sampler of `data`, its overlong punishment the reward `soft_overlong`.
    """

    name: Literal["dapo"] = "dapo"
    clip: ClipConfig = ClipConfig(low=0.2, high=0.28)
    aggregate: Aggregate = "token"


class GSPOConfig(PolicyGradientConfig):
    """GSPO (arXiv:2507.18071): one ratio a sequence, clipped as one."""

    name: Literal["gspo"] = "gspo"
    importance: Importance = "sequence"
    clip: ClipConfig = ClipConfig(low=3e-4, high=4e-4)


class LUSPOConfig(PolicyGradientConfig):
    """LUSPO (arXiv:2602.05261): GSPO with each sequence's loss times its length, so that length has no price."""

    name: Literal["luspo"] = "luspo"
    importance: Importance = "sequence"
    clip: ClipConfig = ClipConfig(low=3e-4, high=4e-4)
    aggregate: Aggregate = "constant"
    length: PositiveInt | None = 1


class CISPOConfig(PolicyGradientConfig):
    """CISPO (MiniMax-M1, arXiv:2506.13585): limits the ratio as a weight, so that no token's gradient is cut off."""

    name: Literal["cispo"] = "cispo"
    surrogate: PolicyLossConfig = CISPOLoss()
    clip: ClipConfig = ClipConfig(high=4.0)
    """A ceiling of 5, as in ScaleRL (arXiv:2510.13786), and no floor."""
    aggregate: Aggregate = "token"


class AIPOConfig(PolicyGradientConfig):
    """AIPO (LlamaRL, arXiv:2505.24034): answers of older parameters, each token weighted by min(ratio, 4)."""

    name: Literal["aipo"] = "aipo"
    surrogate: PolicyLossConfig = CISPOLoss()
    clip: ClipConfig = ClipConfig(high=3.0)
    """The ratio is that to the parameters that sampled, so `mismatch` stays unset; its ceiling, 1 + high, is between 2
    and 10 in the paper."""
    aggregate: Aggregate = "token"


class SAPOConfig(PolicyGradientConfig):
    """SAPO (arXiv:2511.20347): a soft gate in place of the clip."""

    name: Literal["sapo"] = "sapo"
    surrogate: PolicyLossConfig = SAPOLoss()


class VESPOConfig(PolicyGradientConfig):
    """VESPO (arXiv:2602.10693): each trajectory weighted by a gamma function of its ratio; bears stale rollouts."""

    name: Literal["vespo"] = "vespo"
    surrogate: PolicyLossConfig = VESPOLoss()
    importance: Importance = "trajectory"
    aggregate: Aggregate = "token"


class TOPRConfig(PolicyGradientConfig):
    """TOPR (arXiv:2503.14286): imitates good answers whoever wrote them, weighs bad ones by their ratio, at most 1."""

    name: Literal["topr"] = "topr"
    advantage: AdvantageConfig = AdvantageConfig(name="dr_grpo")
    surrogate: PolicyLossConfig = TOPRLoss()
    importance: Importance = "trajectory"
    aggregate: Aggregate = "constant"


class RLOOConfig(PolicyGradientConfig):
    """RLOO (arXiv:2402.14740): each reward against the mean of the others, and the sum over tokens."""

    name: Literal["rloo"] = "rloo"
    advantage: AdvantageConfig = AdvantageConfig(name="rloo")
    aggregate: Aggregate = "constant"


class MaxRLConfig(PolicyGradientConfig):
    """MaxRL (arXiv:2602.02710): rewards over their group's mean, so that a prompt weighs as in maximum likelihood."""

    name: Literal["max_rl"] = "max_rl"
    advantage: AdvantageConfig = AdvantageConfig(name="max_rl")


class ReinforcePPConfig(PolicyGradientConfig):
    """REINFORCE++ (arXiv:2501.03262): rewards whitened over the batch, and the mean over tokens."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    advantage: AdvantageConfig = AdvantageConfig(name="reinforce_pp")
    aggregate: Aggregate = "token"


class GDPOConfig(PolicyGradientConfig):
    """GDPO (arXiv:2601.05242): several rewards, each normalised within its group before they are added."""

    name: Literal["gdpo"] = "gdpo"
    advantage: AdvantageConfig = AdvantageConfig(name="gdpo", ddof=1)
