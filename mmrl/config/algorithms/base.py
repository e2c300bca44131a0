"""`AlgorithmConfig`, the base of every `algorithm` section, and the registry of objectives."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mmrl.components import Registry, load_reference
from mmrl.config.section import ComponentSection

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

ExperienceKind = Literal["rollouts", "demonstrations", "pairs"]
"""The data that an algorithm learns from: the policy's own scored answers, or what samples contain."""

_HOME = "mmrl.config.algorithms"
OBJECTIVES: Registry[Any] = Registry(
    "mmrl.objectives",
    "algorithm",
    {
        "grpo": f"{_HOME}.policy_gradient:GRPOConfig",
        "grpo_guard": f"{_HOME}.policy_gradient:GRPOGuardConfig",
        "ddpo": f"{_HOME}.policy_gradient:DDPOConfig",
        "dpok": f"{_HOME}.policy_gradient:DPOKConfig",
        "unigrpo": f"{_HOME}.policy_gradient:UniGRPOConfig",
        "branch_grpo": f"{_HOME}.policy_gradient:BranchGRPOConfig",
        "b2_diffurl": f"{_HOME}.policy_gradient:B2DiffuRLConfig",
        "dr_grpo": f"{_HOME}.policy_gradient:DrGRPOConfig",
        "bnpo": f"{_HOME}.policy_gradient:BNPOConfig",
        "dapo": f"{_HOME}.policy_gradient:DAPOConfig",
        "gspo": f"{_HOME}.policy_gradient:GSPOConfig",
        "luspo": f"{_HOME}.policy_gradient:LUSPOConfig",
        "cispo": f"{_HOME}.policy_gradient:CISPOConfig",
        "sapo": f"{_HOME}.policy_gradient:SAPOConfig",
        "vespo": f"{_HOME}.policy_gradient:VESPOConfig",
        "topr": f"{_HOME}.policy_gradient:TOPRConfig",
        "rloo": f"{_HOME}.policy_gradient:RLOOConfig",
        "max_rl": f"{_HOME}.policy_gradient:MaxRLConfig",
        "reinforce_pp": f"{_HOME}.policy_gradient:ReinforcePPConfig",
        "gdpo": f"{_HOME}.policy_gradient:GDPOConfig",
        "diffusion_nft": f"{_HOME}.forward_process:DiffusionNFTConfig",
        "draft": f"{_HOME}.reward_gradient:DRaFTConfig",
        "draft_lv": f"{_HOME}.reward_gradient:DRaFTLVConfig",
        "drtune": f"{_HOME}.reward_gradient:DRTuneConfig",
        "refl": f"{_HOME}.reward_gradient:ReFLConfig",
        "alignprop": f"{_HOME}.reward_gradient:AlignPropConfig",
        "awm": f"{_HOME}.forward_process:AWMConfig",
        "flow_rwr": f"{_HOME}.forward_process:FlowRWRConfig",
        "sft": f"{_HOME}.supervised:SFTConfig",
        "rejection_sft": f"{_HOME}.supervised:RejectionSFTConfig",
        "dpo": f"{_HOME}.preference:DPOConfig",
        "online_dpo": f"{_HOME}.preference:OnlineDPOConfig",
        "mpo": f"{_HOME}.preference:MPOConfig",
    },
    base=f"{_HOME}.base:AlgorithmConfig",
)
"""The `algorithm` sections by name; packages add theirs in the entry-point group `mmrl.objectives`."""

VELOCITY_REGRESSION = "mmrl.training.objectives.velocity_regression:VelocityRegression"


class AlgorithmConfig(ComponentSection):
    """The `algorithm` section: the loss of one update, and its settings.

    An algorithm of your own derives from this class or from a built-in one, and names the class of its objective
    (docs/algorithms.md, "Add your own"). Built-in sections name it by reference, so that reading a configuration does
    not load torch.
    """

    registry: ClassVar[Registry[Any]] = OBJECTIVES
    default_name: ClassVar[str] = "grpo"
    experience: ClassVar[ExperienceKind] = "rollouts"
    on_decisions: ClassVar[bool] = False
    """True: the loss is on log-probabilities of sampled decisions, so the sampler must be stochastic."""
    objective: ClassVar[str | type[Any]]
    """The objective, an `mmrl.training.objectives.base.Objective`: the class, or its reference `module:Class`."""
    velocity_objective: ClassVar[str | type[Any] | None] = None
    """The objective on policies that learn from media by velocities; None: the same one."""

    def objective_class(self, by_velocity: bool = False) -> Any:
        """Return the objective's class, which is loaded now."""
        chosen = self.velocity_objective if by_velocity and self.velocity_objective else self.objective
        return load_reference(chosen) if isinstance(chosen, str) else chosen

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting that has no effect or cannot work with the rest of `config`."""
        yield from ()

    def capability_errors(self, capabilities: Collection[str]) -> Iterator[str]:
        """Yield one message for each setting that cannot work on a policy with these `mmrl.policy.Capability`."""
        yield from ()
