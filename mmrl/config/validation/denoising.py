"""Windows, branches and trained noise levels of a denoising sampler that cannot work, or not with the rest."""

from __future__ import annotations

from itertools import pairwise

from mmrl.config.algorithm import AlgorithmConfig, PolicyGradientConfig
from mmrl.config.data import DataConfig
from mmrl.config.sampling import TRANSITIONS, SamplingConfig, WindowConfig
from mmrl.config.section import Section

_NOISE_NEEDED = "cps scores without its noise level, and native draws the scheduler's own noise"


def of_window(window: WindowConfig) -> list[tuple[bool, str]]:
    """Keys of a way to move that is not chosen, and windows that have nowhere to go."""
    stays = window.move == "random"
    moved, decays = _changed(window, "every", "stride"), _changed(window, "decay", "decay_from")
    return [
        (
            stays and bool(moved),
            f"sampling.window.{', '.join(moved)}: a random window is drawn anew in each iteration: set move to "
            "slide or grow, or leave it out",
        ),
        (
            window.move != "slide" and bool(decays),
            f"sampling.window.{', '.join(decays)}: only a window that slides stays for less time on late steps: set "
            "move to slide, or leave it out",
        ),
        (
            not stays and window.size is None,
            f"sampling.window.size: a window of all steps cannot {window.move}: set how many it begins with",
        ),
    ]


def of_branches(
    sampling: SamplingConfig, algorithm: AlgorithmConfig, data: DataConfig, decisions: int
) -> list[tuple[bool, str]]:
    """Trees that do not fit into groups and calls, and credit that would count a shared decision wrongly."""
    branch = sampling.branch
    learns = isinstance(algorithm, PolicyGradientConfig)
    name = algorithm.advantage.name if isinstance(algorithm, PolicyGradientConfig) else ""
    if not branch.at:
        return [
            (name == "branch", "algorithm.advantage.name: branch needs rows that branch: set sampling.branch.at"),
            (
                bool(_changed(branch, "branching_factor")),
                "sampling.branch.branching_factor: nothing parts: set sampling.branch.at, or leave it out",
            ),
        ]
    leaves, shares = branch.num_leaves, branch.at[-1] > 0
    window = sampling.window
    fewest = window.size if window.size is not None else decisions
    drawn = data.group_sampling.name
    found = [
        (not learns, f"sampling.branch: {algorithm.name} does not learn from single steps: leave it out"),
        (
            any(first >= second for first, second in pairwise(branch.at)),
            f"sampling.branch.at: {list(branch.at)} must grow from one to the next",
        ),
        (
            branch.at[-1] >= fewest,
            f"sampling.branch.at: there are {fewest} decisions, counted from 0 at the window's first, so no branch can "
            f"part at {branch.at[-1]}",
        ),
        (
            data.group_size % leaves > 0,
            f"data.group_size: {data.group_size} is no whole number of trees of branching_factor ** len(at) = {leaves} "
            "rows (sampling.branch)",
        ),
        (
            data.micro_batch is not None and data.micro_batch % leaves > 0,
            f"data.micro_batch: {data.micro_batch} would cut trees of {leaves} rows (sampling.branch: "
            "branching_factor ** len(at))",
        ),
        (
            drawn not in ("fixed", "dynamic"),
            f"data.group_sampling.name: {drawn} draws groups in parts that are no whole trees (sampling.branch): "
            "choose fixed",
        ),
    ]
    if isinstance(algorithm, PolicyGradientConfig):
        found += [
            (
                shares and name != "branch",
                f"algorithm.advantage.name: rows share decisions (sampling.branch.at), and {name} would give them the "
                "credit of one row alone: choose branch, or part at 0 alone",
            ),
            (
                shares and algorithm.aggregate not in ("token", "constant"),
                f"algorithm.aggregate: {algorithm.aggregate} would weigh a shared decision by the row that stands for "
                "it: choose token",
            ),
            (
                shares and algorithm.importance != "token",
                f"algorithm.importance: {algorithm.importance} needs all decisions of a row, and rows share some "
                "(sampling.branch): choose token",
            ),
        ]
    return found


def of_noise(sampling: SamplingConfig, algorithm: AlgorithmConfig) -> list[tuple[bool, str]]:
    """Noise levels that nothing would train, and ratios that no such noise normalises."""
    transition = sampling.transition
    learned = transition.learned
    guarded = isinstance(algorithm, PolicyGradientConfig) and algorithm.ratio == "guard"
    if learned is None and not guarded:
        return []
    has_noise = TRANSITIONS.load(transition.name).noise_field is not None
    choices = ", ".join(name for name in TRANSITIONS.names() if TRANSITIONS.load(name).noise_field is not None)
    found = [
        (
            guarded and transition.name != "ode" and not has_noise,
            f"algorithm.ratio: guard needs steps that are Gaussian, by how much being known; {transition.name} is not: "
            f"choose {choices}",
        ),
        (
            guarded and learned is not None,
            "algorithm.ratio: guard takes the noise of a step to stay as it was, and sampling.transition.learned "
            "trains it: leave one out",
        ),
    ]
    if learned is None:
        return found
    return [
        *found,
        (
            not has_noise,
            f"sampling.transition.learned: {transition.name} has no noise level to train ({_NOISE_NEEDED}): choose "
            f"{choices}",
        ),
        (
            not isinstance(algorithm, PolicyGradientConfig),
            f"sampling.transition.learned: {algorithm.name} does not look at the noise, so nothing would train it",
        ),
        (
            not learned.low < transition.noise_level < learned.high,
            f"sampling.transition.noise_level: training begins at {transition.noise_level}, which does not lie between "
            f"learned.low, {learned.low}, and learned.high, {learned.high}",
        ),
    ]


def _changed(section: Section, *keys: str) -> list[str]:
    """Those that are not as they are by default. Whether they are written says nothing: a run's file holds them all."""
    default = type(section)()
    return [key for key in keys if getattr(section, key) != getattr(default, key)]
