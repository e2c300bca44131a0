"""Parts of a configuration that are each right and cannot work together."""

from __future__ import annotations

from string import Formatter

from mmrl.config.algorithm import (
    AdvantageConfig,
    AWMConfig,
    DiffusionNFTConfig,
    OnlineDPOConfig,
    PolicyGradientConfig,
)
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.sampling import (
    SAMPLING_OF,
    TRANSITIONS,
    AnySamplingConfig,
    ImageTokenSamplingConfig,
    SamplingConfig,
    TokenSamplingConfig,
)
from mmrl.config.train import TrainConfig
from mmrl.config.validation.algorithm import validate_algorithm
from mmrl.config.validation.denoising import of_branches, of_noise, of_window
from mmrl.config.validation.rewards import validate_multi_reward
from mmrl.config.validation.velocity import of_velocities


def validation_errors(config: TrainConfig) -> list[str]:
    """One line for every pair that cannot work; empty if all of them can. Batch sizes are `BatchPlan`'s."""
    found = [*_of_policy(config), *_of_algorithm(config), *_of_rewards(config), *_of_evaluation(config)]
    if isinstance(config.sampling, SamplingConfig):
        found += [*_of_sampling(config.sampling), *_of_denoising(config, config.sampling)]
        decisions = decisions_per_trajectory(config.sampling)
        found += of_branches(config.sampling, config.algorithm, config.data, decisions)
        found += of_noise(config.sampling, config.algorithm)
    if isinstance(looked := config.evaluation.sampling, SamplingConfig):
        found.append(
            (bool(looked.branch.at), "evaluation.sampling.branch: pictures to look at would resemble each other")
        )
    return [line for cannot_work, line in found if cannot_work]


def decisions_per_trajectory(sampling: AnySamplingConfig) -> int:
    """Stochastic steps of one trajectory: those in the window, and never the last, which adds no noise. Of an answer
    the most tokens that it may have. Of a picture drawn token by token 1: how many it has, its model alone knows."""
    if isinstance(sampling, TokenSamplingConfig):
        return sampling.max_new_tokens
    if isinstance(sampling, ImageTokenSamplingConfig):
        return 1
    if sampling.transition.name == "ode" or sampling.transition.noise_level == 0:
        return 0
    window, last = sampling.window, sampling.steps - 1
    reach = min(window.high or last, last) - window.low
    most = reach if window.move == "grow" else window.size or reach
    return max(0, min(most, reach))


def _of_sampling(sampling: SamplingConfig) -> list[tuple[bool, str]]:
    transition, window = sampling.transition, sampling.window
    stochastic = sampling.steps - 1
    if transition.name == "ode":
        idle = "sampling.window picks stochastic steps, and the ode of sampling.transition.name has none"
        return [
            (window.size is not None or window.high is not None or window.low > 0, idle),
            (bool(transition.args), "sampling.transition.args: ode takes none: leave it out"),
        ]
    end = window.high or stochastic
    return [
        *of_window(window),
        *((True, error) for error in TRANSITIONS.load(transition.name).config_errors(transition)),
        (
            end > stochastic,
            f"sampling.window.high: {end} lies past the {stochastic} stochastic steps of sampling.steps = "
            f"{sampling.steps} (the last step adds no noise)",
        ),
        (0 < end <= window.low, f"sampling.window.low: {window.low} leaves no step below {end}"),
        (
            window.low < end < window.low + (window.size or 0),
            f"sampling.window.size: {window.size} steps do not fit from {window.low} to {end}",
        ),
    ]


def _of_policy(config: TrainConfig) -> list[tuple[bool, str]]:
    due = SAMPLING_OF[config.policy.kind]
    evaluated = config.evaluation.sampling
    vlm = isinstance(config.policy, VLMConfig)
    frozen = [part for part in ("vision", "connector") if vlm and not getattr(config.policy, part).train]
    return [
        (config.sampling.kind != due, f"sampling.kind: a policy of kind {config.policy.kind} has {due}"),
        (
            evaluated is not None and evaluated.kind != due,
            f"evaluation.sampling.kind: a policy of kind {config.policy.kind} has {due}",
        ),
        (
            isinstance(config.sampling, TokenSamplingConfig | ImageTokenSamplingConfig)
            and config.sampling.temperature == 0,
            "sampling.temperature: at 0 every answer to a prompt is the same, so there is nothing to learn from: "
            "take 1.0, and set evaluation.greedy",
        ),
        (
            config.pretraining is not None and config.pretraining.iterations >= config.training.iterations,
            "pretraining.iterations: they are the first of training.iterations, which must be more",
        ),
        (
            config.evaluation.greedy and isinstance(config.policy, PolicyConfig),
            "evaluation.greedy: only policies that write tokens can be greedy",
        ),
        *(
            (
                vlm and getattr(config.policy, part).lr_scale != 1,
                f"policy.{part}.lr_scale: policy.{part}.train is false",
            )
            for part in frozen
        ),
    ]


def _of_denoising(config: TrainConfig, sampling: SamplingConfig) -> list[tuple[bool, str]]:
    algorithm, stochastic = config.algorithm, sampling.transition.name != "ode"
    on_decisions = isinstance(algorithm, PolicyGradientConfig)
    nothing = f"so algorithm {algorithm.name} has no decisions to train"
    return [
        (
            on_decisions and not stochastic,
            f"sampling.transition.name: the ode draws without chance, {nothing}: "
            "choose flow_sde, dance_sde, cps or ddim",
        ),
        (
            on_decisions and stochastic and sampling.transition.noise_level == 0,
            f"sampling.transition.noise_level: 0 draws without chance, {nothing}",
        ),
        (
            on_decisions and stochastic and sampling.steps == 1,
            f"sampling.steps: a single step adds no noise, {nothing}: take 2 or more",
        ),
    ]


def _of_algorithm(config: TrainConfig) -> list[tuple[bool, str]]:
    algorithm = config.algorithm
    found = validate_algorithm(algorithm)
    found += of_velocities(config)
    if isinstance(algorithm, PolicyGradientConfig | DiffusionNFTConfig | AWMConfig | OnlineDPOConfig):
        found += _of_advantage(config, algorithm.advantage)
    return found


def _of_advantage(config: TrainConfig, advantage: AdvantageConfig) -> list[tuple[bool, str]]:
    return [
        (
            advantage.name in ("running", "branch") and any(each.at_least is not None for each in config.rewards),
            f"rewards: at_least adds advantages of its own within groups, which {advantage.name} does not: choose grpo",
        ),
        (
            advantage.name not in ("grpo", "branch") and advantage.std != "group",
            f"algorithm.advantage.std: only grpo has a choice of spread; {advantage.name} would ignore it",
        ),
    ]


def _of_rewards(config: TrainConfig) -> list[tuple[bool, str]]:
    trained = [reward.name for reward in config.rewards]
    learns_so = "advantage" in type(config.algorithm).model_fields  # a class variable has no say in what is learnt
    advantage = getattr(config.algorithm, "advantage", None) if learns_so else None
    watched = config.evaluation.rewards
    return [
        *validate_multi_reward(config.rewards, config.scoring, config.data, advantage),
        (
            not trained and config.policy.kind != "vlm" and config.algorithm.experience == "rollouts",
            "rewards: name at least one, as `mmrl rewards list` shows them",
        ),
        *(
            (name in trained[:i], f"rewards.{i}.name: {name} is there twice, and their scores could not be told apart")
            for i, name in enumerate(trained)
        ),
        *(
            (name in trained, f"evaluation.rewards.{i}: {name} is trained on, so it is evaluated in any case")
            for i, name in enumerate(watched)
        ),
    ]


def _of_evaluation(config: TrainConfig) -> list[tuple[bool, str]]:
    evaluation = config.evaluation
    wanted = evaluation.every or evaluation.rewards or evaluation.diversity_prompts or config.data.heldout
    return [
        (
            bool(wanted) and config.data.validation is None,
            "data.validation is missing: evaluation is configured, and there are no samples for it",
        ),
        (
            not _placeholders(config.run.dir) <= {"name", "seed"},
            f"run.dir: {config.run.dir!r} may hold {{name}} and {{seed}} alone in braces",
        ),
    ]


def _placeholders(template: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:  # a brace without its partner
        return {template}
