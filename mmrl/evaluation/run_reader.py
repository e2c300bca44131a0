"""What a run folder says about itself: its configuration, its metrics, its evaluations. Works on unfinished runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from mmrl.config.loading.renamed import rename_keys
from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.rewards.core.reward_io import TOTAL

GREEDY = "greedy"
HELDOUT = "heldout"
CARDS = 16
"""Prompts that are shown where a run does not say how many."""
NO_REWARDS = {TOTAL, "total_std"}
"""What is logged beside the rewards."""


@dataclass(frozen=True)
class EvalSplit:
    """A further set of evaluations, in a folder inside a run that reads like a run."""

    folder: str
    title: str  # of its tables
    place: str  # in a sentence
    heading: str  # above its tables in a terminal
    note: str  # under its title in a report


EVAL_SPLITS = (
    EvalSplit(
        HELDOUT,
        title="held-out prompts",
        place="on held-out prompts",
        heading="on compositions held out from training",
        note="Prompts of a kind that training never saw.",
    ),
    EvalSplit(
        GREEDY,
        title="greedy",
        place="greedily",
        heading="the same prompts, answered greedily (the likeliest token each time)",
        note="The likeliest token each time, so no chance but that of the prompts.",
    ),
)


@dataclass(frozen=True)
class Curve:
    """One number over a run; NaN where it was not known."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return any(math.isfinite(value) for value in self.values)


@dataclass(frozen=True)
class RunRecord:
    """A run folder, read."""

    folder: Path
    config: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]  # lines of metrics.jsonl: kind, step and numbers by name
    steps: tuple[int, ...]  # that were evaluated

    @property
    def comparable(self) -> bool:
        """Whether there is an evaluation of the base and a later one."""
        return len(self.steps) > 1 and self.steps[0] == 0

    @property
    def name(self) -> str:
        """As the configuration names it, else the folder."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @cached_property
    def first(self) -> Evaluation | None:
        """The first evaluation, without pictures."""
        return Evaluation.load(self.folder, self.steps[0], images=False) if self.steps else None

    @cached_property
    def trained(self) -> dict[str, float | None]:
        """Weights of the rewards that were trained on; None for those that samples asked for, each with its own."""
        stated = {
            self._column(r["name"]): float(r.get("weight", 1.0)) for r in self._rewards if r.get("at_least") is None
        }
        if self.first is not None:  # a run's own rewards are of no use where every sample names some
            stated = {name: weight for name, weight in stated.items() if name in self.first.values}
        others = [name for name in self._asked_by_samples(any_stated=bool(stated)) if name not in stated]
        return stated | dict.fromkeys(others)

    @cached_property
    def constrained(self) -> dict[str, float]:
        """Rewards that were held above a threshold while others were maximised."""
        held = {r["name"]: r.get("at_least") for r in self._rewards}
        return {self._column(name): float(due) for name, due in held.items() if due is not None}

    @property
    def spent(self) -> bool:
        """Whether the run ended because it went too far from its reference."""
        budget, kl = self.setting("training.max_kl"), self.curve("train", "kl")
        return isinstance(budget, int | float) and bool(kl) and kl.values[-1] > budget

    @property
    def shows_total(self) -> bool:
        """Whether the total says more than the one reward that was trained on."""
        return sum(weight != 0 for weight in self.trained.values()) != 1

    @property
    def watched(self) -> tuple[str, ...]:
        """Rewards that were measured and never trained on."""
        return tuple(self._column(str(name)) for name in self.setting("evaluation.rewards") or ())

    @property
    def cards(self) -> int:
        """How many prompts are shown with what was made of them."""
        stated = self.setting("run.pictures")
        return stated if isinstance(stated, int) else CARDS

    @property
    def iterations(self) -> tuple[int, int | None]:
        """How many are done, and how many there will be (None: not stated)."""
        planned = self.setting("training.iterations")
        done = max((int(row["step"]) for row in self.metrics), default=0)
        return done, planned if isinstance(planned, int) else None

    def setting(self, path: str) -> Any:
        """A configuration value by dotted path; None where there is none."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def names(self, kind: str, prefix: str = "") -> list[str]:
        """Metrics that lines of this kind hold, sorted."""
        found = {name for row in self.metrics if row["kind"] == kind for name in row if name.startswith(prefix)}
        return sorted(found - {"kind", "step"})

    def curve(self, kind: str, name: str) -> Curve:
        """One metric over the lines of this kind that hold it."""
        rows = {int(row["step"]): row[name] for row in self.metrics if row["kind"] == kind and name in row}
        values = (float(v) if isinstance(v, int | float) else math.nan for _, v in sorted(rows.items()))
        return Curve(tuple(sorted(rows)), tuple(values))

    def _asked_by_samples(self, any_stated: bool) -> list[str]:
        """Rewards that the configuration does not name. Further scores of a reward are none; where an evaluation does
        not tell those, but the configuration names rewards, only what part of the samples did not ask for is one."""
        if self.first is not None:
            partly = {name for name in self.first.values if not self.first.asked(name).all()}
            own = [name for name in self.first.values if name not in self.first.further]
            found = [name for name in own if not any_stated or name in partly]
        else:
            logged = [name.removeprefix("reward/") for name in self.names("train", "reward/")]
            found = [] if any_stated else logged
        apart = NO_REWARDS | {*self.watched, *self.constrained}
        return [name for name in found if name not in apart]

    @property
    def _rewards(self) -> list[Mapping[str, Any]]:
        return [r for r in self.config.get("rewards") or () if isinstance(r, Mapping) and "name" in r]

    def _column(self, name: str) -> str:
        """A configured reward's name in evaluations: of `path/to/file.py:thing`, the thing."""
        return name.rpartition(":")[2] if self.first is not None and name not in self.first.values else name


def read_run(folder: Path, until: int | None = None) -> RunRecord:
    """Read a run folder; with `until`, as if the run had ended at that step.

    Raises:
        EvaluationError: the folder is no run, or one of its files is damaged.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise EvaluationError(f"{folder} is no run: it has no config.yaml")
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as err:
        raise EvaluationError(f"{path} is not YAML: {err}") from None
    if not isinstance(config, Mapping):
        raise EvaluationError(f"{path} holds no configuration")
    rows, steps = _read_metrics(folder / "metrics.jsonl"), evaluation_steps(folder)
    if until is not None:
        rows, steps = tuple(row for row in rows if row["step"] <= until), [step for step in steps if step <= until]
    return RunRecord(folder, rename_keys(config)[0], rows, tuple(steps))


def evaluated_splits(run: Path) -> list[tuple[EvalSplit, Path]]:
    """The further sets that a run was evaluated on."""
    return [(inner, run / inner.folder) for inner in EVAL_SPLITS if evaluation_steps(run / inner.folder)]


def _read_metrics(path: Path) -> tuple[Mapping[str, Any], ...]:
    """A last line that was cut off is left out: the run is being written, or was killed."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
            if row is not None:
                rows.append(row | {"kind": row["kind"], "step": int(row["step"])})
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise EvaluationError(f"{path}:{number}: is no line of metrics") from None
    return tuple(rows)
