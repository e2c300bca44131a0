"""Parts of a configuration that are each right and cannot work together."""

from __future__ import annotations

from string import Formatter

from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig


def misfits(config: TrainConfig) -> list[str]:
    """One line for every pair that cannot work; empty if all of them can. Batch sizes are `Geometry`'s."""
    found = [*_of_sampling(config.sampling), *_of_algorithm(config), *_of_rewards(config), *_of_evaluation(config)]
    return [line for cannot_work, line in found if cannot_work]


def decisions_per_trajectory(sampling: SamplingConfig) -> int:
    """Stochastic steps of one trajectory: those in the window, and never the last, which adds no noise."""
    if sampling.transition.name == "ode" or sampling.transition.noise_level == 0:
        return 0
    window, last = sampling.window, sampling.steps - 1
    reach = min(window.high or last, last) - window.low
    return max(0, min(window.size or reach, reach))


def _of_sampling(sampling: SamplingConfig) -> list[tuple[bool, str]]:
    transition, window = sampling.transition, sampling.window
    stochastic = sampling.steps - 1
    if transition.name == "ode":
        idle = "sampling.window picks stochastic steps, and the ode of sampling.transition.name has none"
        return [(window.size is not None or window.high is not None or window.low > 0, idle)]
    end = window.high or stochastic
    return [
        (
            transition.name == "cps" and transition.noise_level > 1,
            f"sampling.transition.noise_level: {transition.noise_level} is above 1, the most that cps takes",
        ),
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


def _of_algorithm(config: TrainConfig) -> list[tuple[bool, str]]:
    algorithm, sampling, advantage = config.algorithm, config.sampling, config.algorithm.advantage
    grpo, stochastic = algorithm.name == "grpo", sampling.transition.name != "ode"
    nothing = "so algorithm grpo has no decisions to train"
    return [
        (
            grpo and not stochastic,
            f"sampling.transition.name: the ode draws without chance, {nothing}: "
            "choose flow_sde, dance_sde, cps or ddim",
        ),
        (
            grpo and stochastic and sampling.transition.noise_level == 0,
            f"sampling.transition.noise_level: 0 draws without chance, {nothing}",
        ),
        (
            grpo and stochastic and sampling.steps == 1,
            f"sampling.steps: a single step adds no noise, {nothing}: take 2 or more",
        ),
        (
            algorithm.name == "diffusion_nft" and algorithm.kl.coef > 0 and algorithm.kl.kind != "velocity_mse",
            f"algorithm.kl.kind: {algorithm.kl.kind} compares stochastic steps, which diffusion_nft does not replay: "
            "choose velocity_mse",
        ),
        (
            algorithm.name == "diffusion_nft" and advantage.clip is None,
            "algorithm.advantage.clip: diffusion_nft maps [-clip, clip] to how good a sample is: set it, to 5.0 say",
        ),
        (
            advantage.name == "gdpo" and len(config.rewards) < 2,
            "algorithm.advantage.name: gdpo normalises each of several rewards, and there is one: choose grpo",
        ),
        (
            advantage.name == "gdpo" and any(reward.gate is not None for reward in config.rewards),
            "rewards: a gate decides on the total, which gdpo does not look at: leave the gate out, or choose grpo",
        ),
        (
            advantage.name == "gdpo" and config.scoring.renormalise,
            "scoring.renormalise: gdpo takes the rewards one by one, so there is no sum to scale up: leave it out",
        ),
        (
            advantage.name != "grpo" and advantage.std != "group",
            f"algorithm.advantage.std: only grpo has a choice of spread; {advantage.name} would ignore it",
        ),
    ]


def _of_rewards(config: TrainConfig) -> list[tuple[bool, str]]:
    trained = [reward.name for reward in config.rewards]
    watched = config.evaluation.rewards
    return [
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
