"""The page of a study's result in Markdown, with its curve as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mmrl.atomic_io import replace_text
from mmrl.config.loading.yaml_text import dump_yaml
from mmrl.evaluation.report.svg import COLOURS, Series, panels
from mmrl.studies.study_result import (
    ClaimResult,
    ContrastResult,
    StudyResult,
    best_of_curves,
    decimal,
    interval_cell,
)

VERDICTS = {
    "holds": "**holds**: every interval lies on the claimed side",
    "opposite": "**opposite**: an interval lies on the other side",
    "not told apart": "**not told apart**: an interval reaches to both sides",
}


def write_study_page(result: StudyResult, folder: Path, costs: Mapping[str, float | None]) -> Path:
    """Write NAME.md and, if arms were trained, NAME.svg into a folder; return the page's path."""
    curves = [
        Series(arm, record.curve["steps"], record.curve["values"], colour=number)
        for number, (arm, record) in enumerate(result.arms.items())
        if record.curve["steps"]
    ]
    folder.mkdir(parents=True, exist_ok=True)
    if curves:
        parts = [curves[begin : begin + COLOURS] for begin in range(0, len(curves), COLOURS)]
        charts = [(f"mean over seeds{', further arms' if number else ''}", part) for number, part in enumerate(parts)]
        draws = _charts_of_draws(result)
        replace_text(folder / f"{result.study}.svg", panels([*charts, *draws], columns=1, one_scale=not draws))
    return replace_text(folder / f"{result.study}.md", study_page(result, costs, bool(curves)))


def study_page(result: StudyResult, costs: Mapping[str, float | None], curve: bool = False) -> str:
    """Return the page."""
    arxiv = f", arXiv:{result.paper['arxiv']}" if result.paper.get("arxiv") else ""
    whose = f" of {result.paper['title']}{arxiv}" if result.paper.get("key") else ""
    lines = [
        f"# {result.paper['title']}: {result.verdict}",
        "",
        f"Study `{result.study}`{whose}. Run it with `mmrl study run {result.study}`.",
        *(("", result.origin) if result.origin else ()),
        "",
        "## Claims",
        "",
        "| claim | comparison | on | difference | 95 % interval | verdict |",
        "|-|-|-|-|-|-|",
    ]
    for claim in result.claims:
        lines += [_claim_row(claim, contrast, first=i == 0) for i, contrast in enumerate(claim.contrasts)]
    if all(record.iterations is None for record in result.arms.values()):
        over = "repetitions, paired"  # nothing was trained
    elif result.seeds > 1:
        over = "prompts and seeds, paired"
    else:
        over = "prompts, paired: one seed tells nothing of others"
    lines += ["", f"The verdict: {VERDICTS[result.verdict]}. Stopping rule: {result.stopping}. Intervals are over "
              f"{over}.", "", "## Arms", ""]  # fmt: skip
    for name, measured in result.measures.items():
        means = {arm: measured.matrix(arm).mean(axis=0) for arm in measured.values}
        seeds = "".join(f" seed {seed} |" for seed in measured.seeds)
        left_out = f", {measured.left_out} left out that an arm could not score" if measured.left_out else ""
        lines += [f"{name}, {len(measured.ids)} samples{left_out}:", "", f"| arm | mean |{seeds}",
                  f"|-|-|{'-|' * result.seeds}"]  # fmt: skip
        for arm, numbers in means.items():
            cells = "".join(f" {decimal(number)} |" for number in numbers)
            lines.append(f"| {arm} | **{decimal(float(np.mean(numbers)))}** |{cells}")
        lines.append("")
    lines += _also(result)
    lines += _settings(result, costs)
    if curve:
        lines += ["## Curve", "", f"![the arms during training]({result.study}.svg)", ""]
    if result.tried:
        lines += [f"## What was tried: {len(result.tried)} settings", "",
                  "Before the settings above were fixed; on development samples where nothing else is stated.", "",
                  *(f"- {each}" for each in result.tried), ""]  # fmt: skip
    libraries = ", ".join(f"{name} {version}" for name, version in result.libraries.items())
    return "\n".join([*lines, f"Libraries: {libraries}.", ""])


def _charts_of_draws(result: StudyResult) -> list[tuple[str, list[Series]]]:
    """Return a chart for each metric of which the best of several numbers of draws was measured."""
    charts = []
    for metric, curve in best_of_curves(result.also).items():
        arms = list(next(iter(curve.values())))[:COLOURS]
        across = [math.log2(count) for count in curve]
        lines = [Series(arm, across, [curve[k][arm] for k in curve], colour=n) for n, arm in enumerate(arms)]
        charts.append((f"{metric}, best of 2^x draws", lines))
    return charts


def _claim_row(claim: ClaimResult, contrast: ContrastResult, first: bool) -> str:
    text, verdict, on = (claim.text, claim.verdict, claim.on) if first else ("", "", "")
    difference = f"{decimal(contrast.mean, '+')} | {interval_cell(contrast)}"
    return f"| {text} | `{contrast.label}` | {on} | {difference} | {verdict} |"


def _also(result: StudyResult) -> list[str]:
    if not result.also:
        return []
    arms = list(dict.fromkeys([*result.arms, *(arm for means in result.also.values() for arm in means)]))
    lines = ["Measured too, means over seeds:", "", f"| |{''.join(f' {arm} |' for arm in arms)}",
             f"|-|{'-|' * len(arms)}"]  # fmt: skip
    for name, means in result.also.items():
        cells = [decimal(float(np.mean(means[arm]))) if arm in means else "" for arm in arms]
        lines.append(f"| {name} |{''.join(f' {cell} |' for cell in cells)}")
    return [*lines, ""]


def _settings(result: StudyResult, costs: Mapping[str, float | None]) -> list[str]:
    lines = ["## Settings", "", "| arm | patch | iterations | rows | CPU-seconds of a run |", "|-|-|-|-|-|"]
    for arm, record in result.arms.items():
        patch = dump_yaml(dict(record.settings)).strip().replace("\n", "<br>") if record.settings else "none"
        spent = [cost for name, cost in costs.items() if name.startswith(f"{arm}/") and cost is not None]
        cost = f"{float(np.mean(spent)):.0f}" if spent else ""
        lines.append(f"| {arm} | `{patch}` | {record.iterations or ''} | {record.rows or ''} | {cost} |")
    return [*lines, ""]
