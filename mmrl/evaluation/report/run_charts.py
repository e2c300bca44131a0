"""Which curves a report shows of a run."""

from __future__ import annotations

import math
from html import escape
from statistics import median

import numpy as np

from mmrl.evaluation.report.svg import COLOURS, Series, line_chart, panels, smoothed
from mmrl.evaluation.results import Evaluation
from mmrl.evaluation.reward_hacking import moves, parted
from mmrl.evaluation.run_reader import EVAL_SPLITS, NO_REWARDS, Curve, RunRecord
from mmrl.evaluation.summary import order_names

HEALTH = (
    ("Replay gap", ("replay_gap",), "How far a replay is from its rollout: the smaller, the truer the gradient."),
    ("Groups without variance", ("zero_variance_share",), "All trajectories scored alike: nothing to learn from."),
    ("KL to the reference", ("kl",), "How far the policy has moved."),
    ("Entropy", ("entropy",), "Of the next token, in nats: near 0, nothing new is tried."),
    ("Clipped share", ("clip_fraction",), "Decisions whose ratio left the clip range."),
    ("Gradient norm", ("grad_norm",), "Before clipping."),
    ("Ratio", ("ratio_mean", "ratio_max"), "New over old probability of a decision."),
    ("Length of answers", ("length",), "In tokens, while training."),
    ("Length of answers, evaluated", ("evaluation_tokens",), "In tokens."),
    ("Preference accuracy", ("preference_accuracy",), "Pairs whose chosen text the policy prefers more than before."),
    ("Diversity", ("evaluation/diversity",), "Mean distance between the pictures (or the answers) of one prompt."),
    ("Diversity while training", ("diversity",), "In a group: distance of small pictures, or share of distinct texts."),
)
BY_SOURCE = (
    ("Length of answers by source", "train", "length_by_source/", "In tokens, while training."),
    ("Length of answers by source, evaluated", "evaluation", "evaluation_tokens_by_source/", "In tokens."),
    ("Valid share by source", "train", "valid_share_by_source/", "Answers whose total reward is known."),
    ("Groups without variance by source", "train", "zero_variance_share_by_source/", "Nothing to learn from."),
)


def reward_charts(record: RunRecord) -> str:
    """One chart a reward, as trained and as evaluated, after one of all rewards against the base."""
    trained, evaluated = (
        {name.removeprefix(prefix) for name in record.names(kind, prefix)}
        for kind, prefix in (("train", "reward/"), ("evaluation", "evaluation/"))
    )
    hidden = (NO_REWARDS | {"diversity"}) - ({"total"} if record.shows_total else set())
    names = order_names(sorted((trained | evaluated) - hidden), list(record.trained), record.watched)
    return _against_base(record, names) + "".join(_reward_chart(record, name) for name in names)


def by_source_charts(record: RunRecord) -> str:
    """The total reward of each source in a chart of its own, then lengths and shares with a line a source; nothing
    where there are fewer than two sources.
    """
    prefixes = {"train": "reward_by_source/", "evaluation": "evaluation_by_source/"}
    sources = sorted({n.removeprefix(prefix) for kind, prefix in prefixes.items() for n in record.names(kind, prefix)})
    if len(sources) < 2:
        return ""
    charts = [
        line_chart(source, _reward_series(record, prefixes["train"], prefixes["evaluation"], source), "Total reward.")
        for source in sources
    ]
    for title, kind, prefix, note in BY_SOURCE:
        curves = {name.removeprefix(prefix): record.curve(kind, name) for name in record.names(kind, prefix)}
        charts.append(line_chart(title, _lines(curves), note))
    return "".join(charts)


def health_charts(record: RunRecord) -> str:
    """Gauges of the optimisation."""
    offline = (("Loss", ("loss",), ""),) if not record.curve("train", "reward/total") else ()
    charts = []
    for title, names, note in (*offline, *HEALTH):
        kind = "evaluation" if names[0].startswith("evaluation") else "train"
        charts.append(line_chart(title, _lines({name: record.curve(kind, name) for name in names}), note))
    return "".join(charts)


def time_chart(record: RunRecord) -> str:
    """Seconds of each phase."""
    curves = {phase: record.curve("train", PREFIX + phase) for phase in phases(record)}
    return line_chart("Seconds per phase", _lines(curves), "Of one iteration.")


def kind_of(record: RunRecord, name: str) -> str:
    """What training made of a reward: `trained`, `held out`, `at least 0.8` of a constraint or, for what is measured
    besides, nothing."""
    if name in record.constrained:
        return f"at least {record.constrained[name]:g}"
    if name in record.watched or record.trained.get(name) == 0:
        return "held out"
    return "trained" if name in record.trained or name == "total" else ""


def _reward_chart(record: RunRecord, name: str) -> str:
    weight = f", weight {record.trained[name]:g}" if record.trained.get(name) else ""
    series = _reward_series(record, "reward/", "evaluation/", name)
    return line_chart(f"Reward: {name}", series, f"{kind_of(record, name) or 'measured besides'}{weight}")


def _reward_series(record: RunRecord, train: str, evaluation: str, name: str) -> list[Series]:
    """A reward while training, as evaluated, and in each further set, by the prefixes that it is logged with."""
    raw, evaluated = record.curve("train", train + name), record.curve("evaluation", evaluation + name)
    series = []
    if raw:
        series.append(Series("training", raw.steps, raw.values, faint=True))
        series.append(Series("training, smoothed", raw.steps, smoothed(raw.values)))
    if evaluated:
        series.append(Series("evaluation", evaluated.steps, evaluated.values, colour=1))
    for colour, inner in enumerate(EVAL_SPLITS, start=2):
        if curve := record.curve("evaluation", f"{inner.folder}_{evaluation}{name}"):
            series.append(Series(f"evaluation {inner.place}", curve.steps, curve.values, colour=colour, dashed=True))
    return series


def _against_base(record: RunRecord, names: list[str]) -> str:
    """All evaluated rewards on one scale: where trained and held-out ones part, the reward is being hacked."""
    base = record.first
    if base is None or base.step != 0:
        return ""
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
    note, flag = "Change from the base, in standard deviations of the base's samples.", None
    if record.watched:
        flag = divergence_step(record)
        told = "They did not part" if flag is None else f"They parted at step {flag}"
        note = f"{note} Dashed: held out. {told}, as far as the evaluated prompts tell."
    return line_chart("Trained against held-out rewards", series, note, flag)


def divergence_step(record: RunRecord) -> int | None:
    """The first evaluation at which a held-out reward had parted from the trained ones, by `parting`.

    As the run logged it; of one that did not, its last evaluation is asked.
    """
    logged = record.curve("evaluation", "evaluation_parted")
    if logged:
        return next((step for step, parts in zip(logged.steps, logged.values, strict=True) if parts == 1), None)
    if not record.comparable or record.first is None:
        return None
    last = Evaluation.load(record.folder, record.steps[-1], images=False)
    kinds = {name: kind_of(record, name) for name in record.first.values}
    trained, watched = (
        moves(record.first, last, [name for name, kind in kinds.items() if kind == wanted])
        for wanted in ("trained", "held out")
    )
    return last.step if parted(trained, watched) else None


def _lines(curves: dict[str, Curve]) -> list[Series]:
    """Raw behind smoothed where there is much to smooth; dashed where all colours are taken."""
    series = []
    for colour, (name, curve) in enumerate((name, curve) for name, curve in curves.items() if curve):
        many, taken = len(curve.steps) > 20, colour >= COLOURS
        if many:
            series.append(Series(name, curve.steps, curve.values, colour, faint=True))
        values = smoothed(curve.values) if many else curve.values
        series.append(Series(name, curve.steps, values, colour, dashed=taken))
    return series


# A run's rewards as one SVG file of its own, for a model card.


def curves_svg(record: RunRecord) -> str:
    """Each reward while training (smoothed) beside the same ones as evaluated, held-out ones dashed; empty without."""
    charts = []
    for title, kind, prefix in (("while training", "train", "reward/"), ("evaluated", "evaluation", "evaluation/")):
        hidden = (NO_REWARDS | {"diversity"}) - ({"total"} if record.shows_total else set())
        found = [name.removeprefix(prefix) for name in record.names(kind, prefix)]
        series = []
        for colour, name in enumerate(_ordered(record, [name for name in found if name not in hidden])):
            curve = record.curve(kind, prefix + name)
            values = smoothed(curve.values) if kind == "train" else list(curve.values)
            held_out = kind_of(record, name) == "held out"
            label = f"{name} (held out)" if held_out else name
            series.append(Series(label, curve.steps, values, colour, dashed=held_out))
        if any(series):
            charts.append((f"Rewards {title}, by iteration", series))
    return panels(charts) if charts else ""


def _ordered(record: RunRecord, names: list[str]) -> list[str]:
    return order_names(names, list(record.trained), record.watched)


# Where the time of a run went, phase by phase.


PREFIX = "seconds/"
ALL_PHASES = "cpu"
"""The process's own time in an iteration: no phase, but a measure of all."""


def phases(record: RunRecord) -> dict[str, list[float]]:
    """Seconds of each phase, of every iteration that logged it."""
    found = {}
    for name in record.names("train", PREFIX):
        seconds = [value for value in record.curve("train", name).values if math.isfinite(value)]
        if seconds and (phase := name.removeprefix(PREFIX)) != ALL_PHASES:
            found[phase] = seconds
    return found


def time_table(record: RunRecord) -> str:
    """A table: of each phase its usual iteration, its sum and its share of all phases; empty where none was logged."""
    found = phases(record)
    total = sum(map(sum, found.values()))
    if not total:
        return ""
    rows = []
    for phase, seconds in sorted(found.items(), key=lambda each: -sum(each[1])):
        share = sum(seconds) / total
        bar = f'<span class="bar" style="width:{share:.0%}"></span>'
        numbers = "".join(
            f"<td>{text}</td>" for text in (f"{median(seconds):.2f} s", _long(sum(seconds)), f"{share:.0%}")
        )
        rows.append(f'<tr><td>{escape(phase)}</td>{numbers}<td class="bars">{bar}</td></tr>')
    heads = "".join(f"<th>{text}</th>" for text in ("phase", "an iteration (median)", "all", "share", ""))
    last = f"<tr><td>all phases</td><td></td><td>{_long(total)}</td><td></td><td></td></tr>"
    table = f'<div class="wide"><table><tr>{heads}</tr>{"".join(rows)}{last}</table></div>'
    note = "Evaluations, checkpoints and loading are not in it."
    return f'<section><h2>Time</h2><p class="soft">{note}</p>{table}</section>'


def _long(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
