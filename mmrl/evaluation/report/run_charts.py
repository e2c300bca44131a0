"""Charts of a run: rewards, sources, training health and time, and all reward curves as one SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from statistics import median

import numpy as np

from mmrl.evaluation.report.page import section, wide_table
from mmrl.evaluation.report.svg import COLOURS, Series, line_chart, panels, smoothed
from mmrl.evaluation.run_reader import EVAL_SPLITS, NO_REWARDS, Curve, RunRecord
from mmrl.evaluation.run_warnings import divergence_step
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
PREFIX = "seconds/"
NO_PHASES = ("cpu", "communication")
"""Measures of all phases of an iteration: the CPU time of the processes, and the time that one waits for the others."""
BESIDE = "thread_"
"""The prefix of what a thread does beside the phases of an iteration."""


def reward_charts(record: RunRecord) -> str:
    """Return one chart per reward, as trained and as evaluated, after one of all rewards against the base."""
    trained, evaluated = (
        {name.removeprefix(prefix) for name in record.names(kind, prefix)}
        for kind, prefix in (("train", "reward/"), ("evaluation", "evaluation/"))
    )
    names = _displayed(record, sorted(trained | evaluated))
    return _against_base(record, names) + "".join(_reward_chart(record, name) for name in names)


def by_source_charts(record: RunRecord) -> str:
    """Return a chart with the total reward for each source, then lengths and shares with one line per source.

    Empty with fewer than two sources.
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
    """Return charts of the optimisation's health."""
    offline = (("Loss", ("loss",), ""),) if not record.curve("train", "reward/total") else ()
    charts = []
    for title, names, note in (*offline, *HEALTH):
        kind = "evaluation" if names[0].startswith("evaluation") else "train"
        charts.append(line_chart(title, _lines({name: record.curve(kind, name) for name in names}), note))
    return "".join(charts)


def time_chart(record: RunRecord) -> str:
    """Return a chart with the seconds of each phase."""
    curves = {phase: record.curve("train", PREFIX + phase) for phase in phases(record)}
    return line_chart("Seconds per phase", _lines(curves), "Of one iteration.")


def curves_svg(record: RunRecord) -> str:
    """Return an SVG file, for a model card: rewards while training (smoothed) and as evaluated, held-out ones dashed.

    Empty if there is no reward.
    """
    charts = []
    for title, kind, prefix in (("while training", "train", "reward/"), ("evaluated", "evaluation", "evaluation/")):
        series = []
        names = [name.removeprefix(prefix) for name in record.names(kind, prefix)]
        for colour, name in enumerate(_displayed(record, names)):
            curve = record.curve(kind, prefix + name)
            values = smoothed(curve.values) if kind == "train" else curve.values
            series.append(_by_role(record, name, curve.steps, values, colour))
        if any(series):
            charts.append((f"Rewards {title}, by iteration", series))
    return panels(charts) if charts else ""


def phases(record: RunRecord) -> dict[str, list[float]]:
    """Return the seconds of each phase, in every iteration that logged it."""
    found = {}
    for name in record.names("train", PREFIX):
        seconds = [value for value in record.curve("train", name).values if math.isfinite(value)]
        phase = name.removeprefix(PREFIX)
        if seconds and phase not in NO_PHASES and not phase.startswith(BESIDE):
            found[phase] = seconds
    return found


def time_table(record: RunRecord) -> str:
    """Return a section with the median, sum and share of each phase; empty if none was logged."""
    found = phases(record)
    total = sum(map(sum, found.values()))
    if not total:
        return ""
    rows = []
    for phase, seconds in sorted(found.items(), key=lambda each: -sum(each[1])):
        share = sum(seconds) / total
        bar = f'<span class="bar" style="width:{share:.0%}"></span>'
        texts = (f"{median(seconds):.2f} s", _duration(sum(seconds)), f"{share:.0%}")
        numbers = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f'<tr><td>{escape(phase)}</td>{numbers}<td class="bars">{bar}</td></tr>')
    rows.append(f"<tr><td>all phases</td><td></td><td>{_duration(total)}</td><td></td><td></td></tr>")
    table = wide_table(("phase", "an iteration (median)", "all", "share", ""), rows)
    return section("Time", table, "Without evaluations, checkpoints and loading.")


def process_table(record: RunRecord) -> str:
    """Return a section with the time and memory of each process, and the slowest one; empty for a single process."""
    names = record.names("processes")
    ranks = sorted({int(name.partition("/")[0]) for name in names})
    if not ranks:
        return ""
    columns = list(dict.fromkeys(name.partition("/")[2] for name in names if "/seconds/" in name))
    waiting, rows = {}, []
    for rank in ranks:
        medians = {each: median(record.curve("processes", f"{rank}/{each}").values or (0.0,)) for each in columns}
        waiting[rank] = medians["seconds/communication"]
        memory = max(max(record.curve("processes", name).values) for name in names if name.startswith(f"{rank}/memory"))
        texts = [f"{medians[each]:.2f} s" for each in columns] + [f"{memory:.0f} MiB"]
        rows.append(f"<tr><td>{rank}</td>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>")
    table = wide_table(("process", *(each.removeprefix(PREFIX) for each in columns), "peak memory"), rows)
    slowest = min(waiting, key=lambda rank: waiting[rank])
    note = f"Medians of an iteration. Process {slowest} is the slowest: it waits least for the others."
    return section("Processes", table, note)


def _reward_chart(record: RunRecord, name: str) -> str:
    weight = f", weight {record.trained[name]:g}" if record.trained.get(name) else ""
    series = _reward_series(record, "reward/", "evaluation/", name)
    return line_chart(f"Reward: {name}", series, f"{record.role(name) or 'measured only'}{weight}")


def _reward_series(record: RunRecord, train: str, evaluation: str, name: str) -> list[Series]:
    """Return a reward's curves while training, as evaluated, and in each further set, by prefixes of names."""
    raw, evaluated = record.curve("train", train + name), record.curve("evaluation", evaluation + name)
    series = []
    if raw:
        series.append(Series("training", raw.steps, raw.values, faint=True))
        series.append(Series("training, smoothed", raw.steps, smoothed(raw.values)))
    if evaluated:
        series.append(Series("evaluation", evaluated.steps, evaluated.values, colour=1))
    for colour, split in enumerate(EVAL_SPLITS, start=2):
        if curve := record.curve("evaluation", f"{split.folder}_{evaluation}{name}"):
            series.append(Series(f"evaluation {split.place}", curve.steps, curve.values, colour=colour, dashed=True))
    return series


def _against_base(record: RunRecord, names: list[str]) -> str:
    """Return all evaluated rewards on one scale: trained and held-out ones diverge if the reward is being hacked."""
    base = record.first
    if base is None or base.step != 0:
        return ""
    series = []
    for colour, name in enumerate(names):
        curve = record.curve("evaluation", f"evaluation/{name}")
        if name not in base.values or not curve:
            continue
        spread = float(np.nanstd(base.values[name])) if math.isfinite(base.mean(name)) else math.nan
        change = [(value - base.mean(name)) / spread if spread > 0 else math.nan for value in curve.values]
        series.append(_by_role(record, name, curve.steps, change, colour))
    note, flag = "Change from the base, in standard deviations of the base's samples.", None
    if record.heldout:
        flag = divergence_step(record)
        verdict = "They did not diverge" if flag is None else f"They diverged at step {flag}"
        note = f"{note} Dashed: held out. {verdict}, as far as the evaluated prompts show."
    return line_chart("Trained against held-out rewards", series, note, flag)


def _lines(curves: dict[str, Curve]) -> list[Series]:
    """Return the curves as lines: long ones smoothed, with the raw values behind; dashed once all colours are used."""
    series = []
    for colour, (name, curve) in enumerate((name, curve) for name, curve in curves.items() if curve):
        many, taken = len(curve.steps) > 20, colour >= COLOURS
        if many:
            series.append(Series(name, curve.steps, curve.values, colour, faint=True))
        values = smoothed(curve.values) if many else curve.values
        series.append(Series(name, curve.steps, values, colour, dashed=taken))
    return series


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _displayed(record: RunRecord, names: Sequence[str]) -> list[str]:
    """Return the names of rewards in order, without a total that repeats the only trained reward."""
    hidden = (NO_REWARDS | {"diversity"}) - ({"total"} if record.shows_total else set())
    return order_names([name for name in names if name not in hidden], list(record.trained), record.heldout)


def _by_role(record: RunRecord, name: str, steps: Sequence[int], values: Sequence[float], colour: int) -> Series:
    heldout = record.role(name) == "held out"
    return Series(f"{name} (held out)" if heldout else name, steps, values, colour=colour, dashed=heldout)
