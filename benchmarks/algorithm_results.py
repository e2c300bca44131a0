"""The numbers of the comparison of algorithms, kept as JSON, and the page that is made of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from algorithm_arms import ARMS, LOOKS, PAIRS, Arm, Pair

from mmrl.config.loading.yaml_text import parse_yaml
from mmrl.config.recipes import find_recipe
from mmrl.evaluation.report.svg import Series, panels
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import read_run
from mmrl.statistics.intervals import Interval, interval_text, paired_difference

PROMPTS = 768
MEASURE = "shapeworld_strict"
BESIDES = {"shapeworld": "partial credit", "shapeworld_heldout": "observer", "shapeworld_clip": "CLIP"}
PLOT = "algorithms.svg"


class Results:
    """docs/results/algorithms.json: pilots by arm, and runs by arm, budget and seed. Written after each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "algorithms.json"
        empty: dict[str, Any] = {"clock_s": None, "pilots": {}, "runs": {}}
        self.data = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else empty

    def pilot(self, arm: str, key: str) -> float | None:
        """CPU-seconds of an iteration; None where it was not measured, or the arm has changed since."""
        found = self.data["pilots"].get(arm)
        return found["cost_s"] if found and found["key"] == key else None

    def keep_pilot(self, arm: str, key: str, run: Path, clock: float) -> float:
        """The mean of all iterations but the first, as the machine was when the first of all pilots was run."""
        spent = read_run(run).curve("train", "seconds/cpu").values[1:]
        self.data["clock_s"] = self.data["clock_s"] or clock
        cost = sum(spent) / len(spent) * self.data["clock_s"] / clock
        self.data["pilots"][arm] = {"key": key, "cost_s": round(cost, 4), "clock_s": round(clock, 5)}
        self._write()
        return round(cost, 4)

    def run(self, arm: str, key: str, budget: float, seed: int) -> dict[str, Any] | None:
        """The numbers of a run; None where there are none, or the arm has changed since."""
        found = self.data["runs"].get(_name(arm, budget, seed))
        return found if found and found["key"] == key and "failed" not in found else None

    def keep(self, arm: str, key: str, budget: float, seed: int, numbers: dict[str, Any]) -> None:
        """Add a run."""
        self.data["runs"][_name(arm, budget, seed)] = numbers | {"key": key, "budget_s": budget, "seed": seed}
        self._write()

    def failed(self, arm: str, key: str, budget: float, seed: int) -> None:
        """A run that did not reach its end."""
        self.keep(arm, key, budget, seed, {"failed": True})

    def runs(self, arm: str) -> list[dict[str, Any]]:
        """All finished runs of an arm as it stands, with the largest budget there is, by seed."""
        mine = [r for n, r in self.data["runs"].items() if n.split("/")[0] == arm and "failed" not in r]
        most = max((run["budget_s"] for run in mine), default=0.0)
        return sorted((run for run in mine if run["budget_s"] == most), key=lambda run: run["seed"])

    def failures(self) -> list[str]:
        """Runs that did not reach their end."""
        return sorted(name for name, run in self.data["runs"].items() if "failed" in run)

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def digest(arm: Arm, changes: Sequence[str]) -> str:
    """Return a key that differs between any two arms that run differently; comments of recipes do not count."""
    recipe, _ = parse_yaml(find_recipe(arm.recipe).path.read_text(encoding="utf-8"), arm.recipe)
    text = "\n".join([json.dumps(recipe, sort_keys=True), *changes])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def measured(run: Path, cost: float, prompts: int) -> dict[str, Any]:
    """Return the numbers of a finished run. Its curve is over CPU-seconds as the pilot counts them."""
    steps = evaluation_steps(run)
    looks = [Evaluation.load(run, step, images=False) for step in steps]
    base, last = looks[0], looks[-1]
    record = read_run(run)
    training = sum(record.curve("train", "seconds/cpu").values)
    spent = json.loads((run / "cpu.json").read_text(encoding="utf-8"))
    diversity = [value for value in record.curve("train", "diversity").values if math.isfinite(value)]
    names = [name for name in (MEASURE, *BESIDES) if name in last.values]
    return {
        "iterations": steps[-1],
        "prompts": prompts,
        "curve": [
            [look.step, round(look.step * cost, 2), *(round(look.mean(name), 5) for name in names)] for look in looks
        ],
        "curve_columns": ["iteration", "cpu_s", *names],
        "difference": {name: _numbers(paired_difference(base.by_prompt(name), last.by_prompt(name))) for name in names},
        "training_cpu_s": round(training, 1),
        "evaluation_and_loading_cpu_s": round(spent - training, 1),
        "diversity": [round(float(np.mean(part)), 4) for part in (diversity[:3], diversity[-3:])]
        if diversity
        else None,
        "base": hashlib.sha256(base.values[MEASURE].tobytes()).hexdigest()[:8],
        "strict": "".join(str(int(right)) for right in last.values[MEASURE] > 0.5),  # prompt by prompt
        "strict_base": "".join(str(int(right)) for right in base.values[MEASURE] > 0.5),
    }


def write_page(results: Results) -> None:
    """algorithms.md and the plot."""
    arms = {name: found for name in ARMS if (found := results.runs(name))}
    results.folder.mkdir(parents=True, exist_ok=True)
    (results.folder / PLOT).write_text(plot(arms), encoding="utf-8")
    (results.folder / "algorithms.md").write_text("\n".join(page(results, arms)) + "\n", encoding="utf-8")


def page(results: Results, arms: dict[str, list[dict[str, Any]]]) -> list[str]:
    """docs/results/algorithms.md."""
    budgets = sorted({run["budget_s"] for found in arms.values() for run in found})
    prompts = sorted({run["prompts"] for found in arms.values() for run in found})
    lines = [
        "# Algorithms for generators, with the same CPU time",
        "",
        "<!-- Written by benchmarks/algorithms.py. -->",
        "",
        f"Each run trains for {_listed(budgets)} CPU-seconds, one thread, as many iterations as a pilot's cost allows;",
        f"evaluation time is not included. Strict correctness on {_listed(prompts)} validation prompts, not used",
        "to choose settings, 10 steps along the ODE, the same noise before and after. In brackets: the 95 % interval",
        "of the paired difference to the base; over seeds, the means of each prompt are paired. Learning rates and",
        "all other settings are the recipes', except for the changes in the table at the end.",
        "",
        "```bash",
        "python benchmarks/algorithms.py",
        "```",
        "",
        f"![strict correctness against CPU-seconds]({PLOT})",
    ]
    for family in dict.fromkeys(arm.family for arm in ARMS.values()):
        mine = {name: found for name, found in arms.items() if ARMS[name].family == family}
        if mine:
            lines += ["", f"## {family}", "", *table(mine)]
    lines += mechanisms(arms)
    if missing := [name for name in ARMS if name not in arms]:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    if failures := results.failures():
        lines += ["", f"Did not reach their end: {', '.join(failures)}."]
    return [*lines, "", *settings(results, arms), "", *LOOKS.splitlines()]


def table(arms: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table, one line per algorithm."""
    besides = "".join(f" {title} |" for title in BESIDES.values())
    lines = [
        f"| | seeds | base | trained | difference | seeds above the base |{besides} diversity |",
        f"|-|-|-|-|-|-|{'-|' * len(BESIDES)}-|",
    ]
    for name, runs in arms.items():
        gain = over_seeds(runs)
        above = sum(run["difference"][MEASURE]["low"] > 0 for run in runs)
        column = runs[0]["curve_columns"].index(MEASURE)
        before, after = (float(np.mean([run["curve"][at][column] for run in runs])) for at in (0, -1))
        cells = "".join(
            f" {np.mean([run['difference'][n]['mean'] for run in runs]):+.3f} |"
            if n in runs[0]["difference"]
            else " - |"
            for n in BESIDES
        )
        ratios = [run["diversity"][1] / run["diversity"][0] for run in runs if run["diversity"] and run["diversity"][0]]
        lines.append(
            f"| {ARMS[name].title} (`{name}`) | {len(runs)} | {before:.3f} | {after:.3f} | **{gain.mean:+.3f}** "
            f"({interval_text(gain)}) | {above} of {len(runs)} |{cells} "
            f"{f'x {np.mean(ratios):.2f}' if ratios else '-'} |"
        )
    return lines


def mechanisms(arms: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Pairs of an arm and its ablation on the same seeds, as found."""
    lines = []
    for pair in PAIRS:
        if pair.arm in arms and pair.other in arms and (found := against(pair, arms)):
            lines.append(
                f"| {pair.claim} | `{pair.arm}` | `{pair.other}` | {found[1]} | **{found[0].mean:+.3f}** "
                f"({interval_text(found[0])}) | {_VERDICTS[found[0].verdict]} |"
            )
    if not lines:
        return []
    return [
        "",
        "## Mechanisms against their ablations",
        "",
        "The difference of the two after training, paired by prompt and noise, over the seeds that both have.",
        "",
        "| claim | with | without | seeds | difference | confirmed |",
        "|-|-|-|-|-|-|",
        *lines,
    ]


_VERDICTS = {"up": "yes", "down": "the opposite", "unsure": "no significant difference"}


def against(pair: Pair, arms: dict[str, list[dict[str, Any]]]) -> tuple[Interval, int] | None:
    """Return the difference between two arms; None without a common seed, base and number of prompts."""
    mine, other = ({run["seed"]: run for run in arms[name]} for name in (pair.arm, pair.other))
    seeds = [s for s in mine if s in other and all(mine[s][k] == other[s][k] for k in ("base", "prompts", "budget_s"))]
    if not seeds:
        return None
    with_it, without = (_right([each[seed] for seed in seeds], "strict") for each in (mine, other))
    return paired_difference(without, with_it), len(seeds)


def over_seeds(runs: Sequence[dict[str, Any]]) -> Interval:
    """The difference to the base, each prompt's mean over the seeds being one value."""
    return paired_difference(_right(runs, "strict_base"), _right(runs, "strict"))


def settings(results: Results, arms: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the settings and the cost of each arm."""
    lines = [
        "## Settings and cost",
        "",
        "| | recipe | changed | paper | CPU-seconds an iteration | iterations | training, evaluations (CPU-seconds) |",
        "|-|-|-|-|-|-|-|",
    ]
    for name, runs in arms.items():
        arm = ARMS[name]
        changed = "<br>".join(f"`{text.replace('|', chr(92) + '|')}`" for text in arm.overrides) or "-"
        cost = results.data["pilots"].get(name, {}).get("cost_s", math.nan)
        spent = ", ".join(f"{r['training_cpu_s']:.0f} + {r['evaluation_and_loading_cpu_s']:.0f}" for r in runs)
        lines.append(
            f"| `{name}` | `{arm.recipe}` | {changed} | {arm.paper or '-'} | {cost:.2f} | {runs[0]['iterations']} "
            f"| {spent} |"
        )
    return lines


def plot(arms: dict[str, list[dict[str, Any]]]) -> str:
    """A panel a family; eight lines in each at most, those of most seeds first."""
    charts = []
    for family in dict.fromkeys(arm.family for arm in ARMS.values()):
        mine = sorted(
            ((n, found) for n, found in arms.items() if ARMS[n].family == family), key=lambda each: -len(each[1])
        )
        for part in range(0, len(mine), 8):
            series = [
                Series(name, *_curve(found), colour=place) for place, (name, found) in enumerate(mine[part : part + 8])
            ]
            charts.append((family if part == 0 else f"{family}, further", series))
    return panels(charts)


def _curve(runs: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """CPU-seconds, and the mean over seeds."""
    column = runs[0]["curve_columns"].index(MEASURE)
    points = list(zip(*(run["curve"] for run in runs), strict=False))
    return [float(each[0][1]) for each in points], [float(np.mean([run[column] for run in each])) for each in points]


def _right(runs: Sequence[dict[str, Any]], key: str) -> np.ndarray:
    """[prompts, seeds]."""
    return np.array([[float(mark) for mark in run[key]] for run in runs]).T


def _numbers(interval: Interval) -> dict[str, float]:
    return {"mean": round(interval.mean, 5), "low": round(interval.low, 5), "high": round(interval.high, 5)}


def _name(arm: str, budget: float, seed: int) -> str:
    return f"{arm}/{budget:g}s/seed-{seed}"


def _listed(numbers: Sequence[float]) -> str:
    return " or ".join(f"{number:g}" for number in numbers)
