"""Validation of `sampling` for denoising: windows, branches and trained noise levels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.sampling import TRANSITIONS, SamplingConfig, WindowConfig, decisions_per_trajectory
from mmrl.config.section import Section
from mmrl.config.train import TrainConfig

_NOISE_NEEDED = "cps scores without its noise level, and native draws the scheduler's own noise"


def denoising_errors(config: TrainConfig, sampling: SamplingConfig) -> Iterator[str]:
    """Yield one message for each problem of `sampling` alone and with the algorithm and the batch."""
    yield from transition_errors(sampling)
    if config.algorithm.on_decisions:
        yield from _decision_errors(config.algorithm.name, sampling)
    yield from _branch_errors(config, sampling)
    yield from _zigzag_errors(config, sampling)
    yield from _noise_errors(config, sampling)


def transition_errors(sampling: SamplingConfig) -> Iterator[str]:
    """Yield one message for each problem of the transition and its window, for models that learn or do not."""
    transition, window = sampling.transition, sampling.window
    if transition.name == "ode":
        if window != WindowConfig():
            yield "sampling.window picks stochastic steps, and the ode of sampling.transition.name has none"
        if transition.args:
            yield "sampling.transition.args: ode takes none: leave it out"
        return
    yield from _window_errors(window)
    yield from TRANSITIONS.load(transition.name).config_errors(transition)
    if window.include_last and not TRANSITIONS.load(transition.name).has_final_noise:
        choices = ", ".join(name for name in TRANSITIONS.names() if TRANSITIONS.load(name).has_final_noise)
        yield (
            f"sampling.window.include_last: {transition.name} does not explore in the last step: choose {choices}, or "
            "leave it out"
        )
    stochastic = window.stochastic_steps(sampling.steps)
    end = window.high or stochastic
    if end > stochastic:
        yield (
            f"sampling.window.high: {end} lies past the {stochastic} stochastic steps of sampling.steps = "
            f"{sampling.steps} (the last step adds no noise, except with noisy_ode and include_last)"
        )
    if 0 < end <= window.low:
        yield f"sampling.window.low: {window.low} leaves no step below {end}"
    if window.low < end < window.low + (window.size or 0):
        yield f"sampling.window.size: {window.size} steps do not fit from {window.low} to {end}"


def _window_errors(window: WindowConfig) -> Iterator[str]:
    moved, decays = _changed(window, "every", "stride"), _changed(window, "decay", "decay_from")
    if window.move == "random" and moved:
        yield (
            f"sampling.window.{', '.join(moved)}: a random window is drawn anew in each iteration: set move to slide "
            "or grow, or leave it out"
        )
    if window.move != "slide" and decays:
        yield (
            f"sampling.window.{', '.join(decays)}: only a window that slides stays for less time on late steps: set "
            "move to slide, or leave it out"
        )
    if window.move != "random" and window.size is None:
        yield f"sampling.window.size: a window of all steps cannot {window.move}: set how many it begins with"


def _decision_errors(algorithm: str, sampling: SamplingConfig) -> Iterator[str]:
    nothing = f"so algorithm {algorithm} has no decisions to train"
    if sampling.transition.name == "ode":
        yield (
            f"sampling.transition.name: the ode draws without chance, {nothing}: choose flow_sde, dance_sde, cps or "
            "ddim"
        )
        return
    if sampling.transition.noise_level == 0:
        yield f"sampling.transition.noise_level: 0 draws without chance, {nothing}"
    if sampling.steps == 1 and not sampling.window.include_last:
        yield (
            f"sampling.steps: a single step adds no noise, {nothing}: take 2 or more, or set "
            "sampling.window.include_last"
        )


def _branch_errors(config: TrainConfig, sampling: SamplingConfig) -> Iterator[str]:
    algorithm, data, branch = config.algorithm, config.data, sampling.branch
    gradient = algorithm if isinstance(algorithm, PolicyGradientConfig) else None
    by_branch = gradient is not None and gradient.advantage.baseline == "branch"
    if not branch.at:
        if gradient is not None and gradient.advantage.baseline in ("branch", "tree"):
            yield f"algorithm.advantage.name: {gradient.advantage.name} needs rows that branch: set sampling.branch.at"
        if _changed(branch, "branching_factor"):
            yield "sampling.branch.branching_factor: nothing parts: set sampling.branch.at, or leave it out"
        return
    leaves, window, sampler = branch.num_leaves, sampling.window, data.group_sampling.name
    fewest = window.size if window.size is not None else decisions_per_trajectory(sampling)
    if not algorithm.on_decisions:
        yield f"sampling.branch: {algorithm.name} does not learn from single steps: leave it out"
    if any(first >= second for first, second in pairwise(branch.at)):
        yield f"sampling.branch.at: {list(branch.at)} must grow from one to the next"
    if branch.at[-1] >= fewest:
        yield (
            f"sampling.branch.at: there are {fewest} decisions, counted from 0 at the window's first, so no branch can "
            f"part at {branch.at[-1]}"
        )
    if data.group_size % leaves > 0:
        yield (
            f"data.group_size: {data.group_size} is no whole number of trees of branching_factor ** len(at) = {leaves} "
            "rows (sampling.branch)"
        )
    if data.micro_batch is not None and data.micro_batch % leaves > 0:
        yield (
            f"data.micro_batch: {data.micro_batch} would cut trees of {leaves} rows (sampling.branch: "
            "branching_factor ** len(at))"
        )
    if sampler not in ("fixed", "dynamic"):
        yield (
            f"data.group_sampling.name: {sampler} draws groups in parts that are no whole trees (sampling.branch): "
            "choose fixed"
        )
    if gradient is None or branch.at[-1] == 0:  # rows share no decision
        return
    if not by_branch:
        yield (
            f"algorithm.advantage.name: rows share decisions (sampling.branch.at), and {gradient.advantage.name} would "
            "give them the advantage of one row alone: choose branch, or branch at 0 alone"
        )
    if gradient.aggregate not in ("token", "constant"):
        yield (
            f"algorithm.aggregate: {gradient.aggregate} would weigh a shared decision by the row that stands for it: "
            "choose token"
        )
    if gradient.importance != "token":
        yield (
            f"algorithm.importance: {gradient.importance} needs all decisions of a row, and rows share some "
            "(sampling.branch): choose token"
        )


def _zigzag_errors(config: TrainConfig, sampling: SamplingConfig) -> Iterator[str]:
    zigzag, branch = sampling.zigzag, sampling.branch
    if zigzag is None:
        return
    if not config.algorithm.on_decisions:
        yield f"sampling.zigzag: {config.algorithm.name} does not learn from single steps: leave it out"
    if zigzag.steps >= sampling.steps:
        yield (
            f"sampling.zigzag.steps: {zigzag.steps} of the sampler's {sampling.steps} steps (sampling.steps) cannot be "
            "taken twice, since the last one ends without noise"
        )
    if sampling.guidance_scale is not None and sampling.guidance_scale <= zigzag.guidance_scale:
        yield (
            f"sampling.zigzag.guidance_scale: {zigzag.guidance_scale} is no weaker than the {sampling.guidance_scale} "
            "of sampling.guidance_scale, so the second pass would repeat the first"
        )
    if sampling.window.before == "noise":
        yield (
            "sampling.window.before: steps that are taken twice follow the ODE (sampling.zigzag): leave one of the two "
            "out"
        )
    if zigzag.rows == "alternate" and (branch.at[:1] != (0,) or branch.branching_factor % 2):
        yield (
            "sampling.zigzag.rows: neighbours are to begin with the same noise: set sampling.branch to "
            "{at: [0], branching_factor: 2}, or rows to all"
        )


def _noise_errors(config: TrainConfig, sampling: SamplingConfig) -> Iterator[str]:
    algorithm, transition = config.algorithm, sampling.transition
    learned = transition.learned
    is_guarded = isinstance(algorithm, PolicyGradientConfig) and algorithm.ratio == "guard"
    if learned is None and not is_guarded:
        return
    has_noise = TRANSITIONS.load(transition.name).noise_field is not None
    choices = ", ".join(name for name in TRANSITIONS.names() if TRANSITIONS.load(name).noise_field is not None)
    if is_guarded and transition.name != "ode" and not has_noise:
        yield (
            f"algorithm.ratio: guard needs steps that are Gaussian, with known moments; {transition.name} is not: "
            f"choose {choices}"
        )
    if is_guarded and learned is not None:
        yield (
            "algorithm.ratio: guard takes the noise of a step to stay as it was, and sampling.transition.learned "
            "trains it: leave one out"
        )
    if learned is None:
        return
    if not has_noise:
        yield (
            f"sampling.transition.learned: {transition.name} has no noise level to train ({_NOISE_NEEDED}): choose "
            f"{choices}"
        )
    kl = algorithm.kl if isinstance(algorithm, PolicyGradientConfig) else None
    if learned.inputs == "latents" and kl is not None and kl.coef and kl.kind in (None, "mean_distance"):
        yield (
            "algorithm.kl.kind: mean_distance divides by one noise level a step, and inputs: latents of "
            "sampling.transition.learned has one for each dimension: choose velocity_mse"
        )
    if not algorithm.on_decisions:
        yield f"sampling.transition.learned: {algorithm.name} does not look at the noise, so nothing would train it"
    if not learned.low < transition.noise_level < learned.high:
        yield (
            f"sampling.transition.noise_level: training begins at {transition.noise_level}, which does not lie between "
            f"learned.low, {learned.low}, and learned.high, {learned.high}"
        )


def _changed(section: Section, *keys: str) -> list[str]:
    """Return the keys that differ from their defaults; a run's file contains all keys."""
    default = type(section)()
    return [key for key in keys if getattr(section, key) != getattr(default, key)]
