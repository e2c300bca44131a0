"""Which curves a report shows of a run."""

from __future__ import annotations

import math

import numpy as np

from mmrl.evaluation.records import HELDOUT, Curve, RunRecord
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.summary import order_names
from mmrl.evaluation.svg import Series, line_chart, smoothed

NOT_REWARDS = {"total_std"}  # logged beside the rewards
HEALTH = (
    ("KL to the reference", ("kl",), "How far the policy has moved."),
    ("Clipped share", ("clip_fraction",), "Decisions whose ratio left the clip range."),
    ("Replay gap", ("replay_gap",), "How far a replay is from its rollout: the smaller, the truer the gradient."),
    ("Gradient norm", ("grad_norm",), "Before clipping."),
    ("Groups without variance", ("zero_variance_share",), "All trajectories scored alike: nothing to learn from."),
    ("Ratio", ("ratio_mean", "ratio_max"), "New over old probability of a decision."),
    ("Diversity", ("evaluation/diversity",), "Mean distance between the pictures of one prompt."),
)


def reward_charts(record: RunRecord) -> str:
    """One chart a reward, as trained and as evaluated, after one of all rewards against the base."""
    trained, evaluated = (
        {name.removeprefix(prefix) for name in record.names(kind, prefix)}
        for kind, prefix in (("train", "reward/"), ("evaluation", "evaluation/"))
    )
    hidden = NOT_REWARDS | {"diversity"} | (set() if record.shows_total else {"total"})
    names = order_names(sorted((trained | evaluated) - hidden), list(record.trained), record.watched)
    return _against_base(record, names) + "".join(_reward_chart(record, name) for name in names)


def health_charts(record: RunRecord) -> str:
    """Gauges of the optimisation."""
    charts = []
    for title, names, note in HEALTH:
        kind = "evaluation" if names[0].startswith("evaluation/") else "train"
        charts.append(line_chart(title, _lines({name: record.curve(kind, name) for name in names}), note))
    return "".join(charts)


def time_chart(record: RunRecord) -> str:
    """Seconds of each phase."""
    names = record.names("train", "seconds/")
    curves = {name.removeprefix("seconds/"): record.curve("train", name) for name in names}
    return line_chart("Seconds per phase", _lines(curves), "Of one iteration.")


def kind_of(record: RunRecord, name: str) -> str:
    """Whether training saw a reward: `trained`, `held out` or, for what is measured besides, nothing."""
    if name in record.watched or (name in record.trained and not record.trained[name]):
        return "held out"
    return "trained" if name in record.trained or name == "total" else ""


def _reward_chart(record: RunRecord, name: str) -> str:
    raw, evaluated = record.curve("train", f"reward/{name}"), record.curve("evaluation", f"evaluation/{name}")
    unseen = record.curve("evaluation", f"{HELDOUT}_evaluation/{name}")
    series = []
    if raw:
        series.append(Series("training", raw.steps, raw.values, faint=True))
        series.append(Series("training, smoothed", raw.steps, smoothed(raw.values)))
    if evaluated:
        series.append(Series("evaluation", evaluated.steps, evaluated.values, colour=1))
    if unseen:
        series.append(Series("evaluation on held-out prompts", unseen.steps, unseen.values, colour=2, dashed=True))
    weight = f", weight {record.trained[name]:g}" if record.trained.get(name) else ""
    return line_chart(f"Reward: {name}", series, f"{kind_of(record, name) or 'measured besides'}{weight}")


def _against_base(record: RunRecord, names: list[str]) -> str:
    """All evaluated rewards on one scale: where trained and held-out ones part, the reward is being hacked."""
    if not record.steps or record.steps[0] != 0:
        return ""
    base = Evaluation.load(record.folder, 0, images=False)
    series = []
    for colour, name in enumerate(names):
        curve = record.curve("evaluation", f"evaluation/{name}")
        if name not in base.values or not curve:
            continue
        spread = float(np.nanstd(base.values[name])) if math.isfinite(base.mean(name)) else math.nan
        moved = [(value - base.mean(name)) / spread if spread > 0 else math.nan for value in curve.values]
        held_out = kind_of(record, name) == "held out"
        label = f"{name} (held out)" if held_out else name
        series.append(Series(label, curve.steps, moved, colour=colour, dashed=held_out))
    return line_chart(
        "Trained against held-out rewards",
        series,
        "Change from the base, in standard deviations of the base's samples.",
    )


def _lines(curves: dict[str, Curve]) -> list[Series]:
    """Raw behind smoothed where there is much to smooth."""
    series = []
    for colour, (name, curve) in enumerate((name, curve) for name, curve in curves.items() if curve):
        many = len(curve.steps) > 20
        if many:
            series.append(Series(name, curve.steps, curve.values, colour, faint=True))
        series.append(Series(name, curve.steps, smoothed(curve.values) if many else curve.values, colour))
    return series
