"""The parts that `algorithm` sections share: their bases, the registry of objectives, the penalty, noise levels."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from mmrl.components import Registry, load_reference
from mmrl.config.sampling import SamplingConfig
from mmrl.config.section import ComponentSection, Section, named_sections

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

ExperienceKind = Literal["rollouts", "demonstrations", "pairs", "answers"]
"""The data that an algorithm learns from: the policy's own scored answers, or what samples contain: demonstrations,
pairs, or answers of any quality, which the run's rewards score."""

SCORED: frozenset[ExperienceKind] = frozenset({"rollouts", "answers"})
"""The kinds of experience that rewards score."""

AnswerSource = Literal["policy", "reference", "data"]
"""The source of answers: the weights that are trained, those that training started from, or the data set: `data` takes
`data.group_size` pictures of each sample's `demonstration`, which rewards score as they would the policy's own."""

_HOME = "mmrl.config.algorithms"
_MODULES = (
    *("policy_gradient", "forward_process", "reward_gradient", "supervised", "preference"),
    *("distill", "mixture", "actor_critic", "whole_groups", "decoder_turns", "stored_answers", "aligned_groups"),
    *("outcome_learning", "random_policy_valuation", "drawn_texts"),
)
OBJECTIVES: Registry[Any] = Registry(
    "mmrl.objectives",
    "algorithm",
    named_sections(lambda: AlgorithmConfig, *(f"{_HOME}.{each}" for each in _MODULES)),
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
    reads_advantages: ClassVar[bool] = True
    """False: the loss has other weights than the advantages of answers, so that what scales those has no effect."""
    weight: NonNegativeFloat = 1.0
    """The factor on the gradient, as a term of `mix`; 0: the term is left out."""
    weight_end: NonNegativeFloat | None = None
    """The weight at the end of training, to which it moves in a straight line; unset: it stays."""
    objective: ClassVar[str | type[Any]]
    """The objective, an `mmrl.training.objectives.base.Objective`: the class, or its reference `module:Class`."""
    velocity_objective: ClassVar[str | type[Any] | None] = None
    """The objective on policies that learn from media by velocities; None: the same one."""

    def weight_at(self, done: float) -> float:
        """Return the weight when the share `done` of training, in [0, 1], is done."""
        return self.weight if self.weight_end is None else self.weight + done * (self.weight_end - self.weight)

    def objective_class(self, by_velocity: bool = False) -> Any:
        """Return the objective's class, which is loaded now."""
        chosen = self.velocity_objective if by_velocity and self.velocity_objective else self.objective
        return load_reference(chosen) if isinstance(chosen, str) else chosen

    def for_one_call(self) -> AlgorithmConfig:
        """Return the algorithm with the same cost that learns from one call of few samples without demonstrations."""
        return self

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting that has no effect or cannot work with the rest of `config`."""
        yield from ()

    def capability_errors(self, capabilities: Collection[str]) -> Iterator[str]:
        """Yield one message for each setting that cannot work on a policy with these `mmrl.policy.Capability`."""
        yield from ()


def source_errors(source: AnswerSource, config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting that answers of the reference, or of the data, cannot work with."""
    if source == "policy":
        return
    if not isinstance(config.sampling, SamplingConfig):
        yield f"algorithm.samples_from: {source} is for media, whose velocities are learnt: leave it out"
    elif source == "data":
        data = config.data
        if data.micro_batch is not None and data.micro_batch % data.group_size:
            yield (
                f"data.micro_batch: {data.micro_batch} rows would split the {data.group_size} pictures of a sample "
                "(data.group_size): take a multiple of it"
            )
        for key, is_set in (
            ("group_sampling", data.group_sampling.name != "fixed"),
            ("controller", data.controller is not None),
        ):
            if is_set:
                yield f"data.{key}: with algorithm.samples_from data, nothing is sampled: leave it out"


class KLConfig(Section):
    """A penalty on the distance from the reference."""

    number = "coef"

    kind: Literal["mean_distance", "velocity_mse", "k2", "k3", "weighted_k3"] | None = None
    """Denoising steps: `mean_distance` (unset), Flow-GRPO's KL of the two Gaussians, or `velocity_mse`, UniGRPO's,
    without the noise level. Tokens: `k3` (unset), GRPO's estimator; `weighted_k3`, the same times the ratio, or `k2`,
    which both have the gradient of KL(policy || reference). There is no k1: its gradient is zero on average."""
    coef: NonNegativeFloat = 0.0
    """0 switches the penalty, and the reference's forward pass, off."""
    turns: tuple[NonNegativeInt, ...] | None = None
    """Only decisions of these turns of an episode, counted from 0, are kept near the reference; unset: all."""


class NoiseLevelsConfig(AlgorithmConfig):
    """An algorithm that noises samples to random levels and compares velocities there."""

    velocity_loss: ClassVar[str | type[Any]]
    """The loss at one noise level, a `mmrl.training.objectives.velocity_losses.VelocityLoss`: the class, or its
    reference. Its one argument is the section."""
    num_noise_levels: PositiveInt = 3
    """Random noise levels per trajectory and update, for policies that generate media."""


class MatchingConfig(NoiseLevelsConfig):
    """An algorithm on the flow-matching error of a sample, the mean over its latent dimensions and noise levels."""

    weighting: Literal["uniform", "sigma", "sigma_squared", "epsilon", "huber", "ghuber"] = "uniform"
    """The weight of the error at a level, for policies that generate media. `epsilon`: as for a model that predicts
    noise; `sigma_squared`: as for one that predicts the picture; `huber` and `ghuber`: sigma times the error's root, or
    its fourth root times 4."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key about noise levels that is set where the policy writes text."""
        yield from super().validation_errors(config)
        for key in ("num_noise_levels", "weighting"):
            changed = getattr(self, key) != type(self).model_fields[key].default
            if changed and not isinstance(config.sampling, SamplingConfig):
                yield (
                    f"algorithm.{key}: noise levels are for policies that generate media, and texts have none: leave "
                    "it out"
                )
