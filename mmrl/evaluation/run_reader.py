"""Reader of run folders, for reports: configuration, metrics, evaluations. Unfinished and old runs can be read.

`mmrl.training.run.run_folder` opens a run to continue or to load it, with its validated configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from mmrl.config.loading.renamed import rename_keys
from mmrl.errors import EvaluationError, RunError
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.training.run.trackers import read_metrics

GREEDY = "greedy"
HELDOUT = "heldout"
CARDS = 16
"""Example prompts in a report, for a run whose configuration does not state a number."""
NO_REWARDS = {TOTAL, "total_std"}
"""Numbers that are logged under the rewards' prefix and are no rewards."""


@dataclass(frozen=True)
class EvalSplit:
    """A further set of evaluations of a run, in a folder inside it with the files of a run."""

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
    """A number over a run; NaN where it was not logged."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return any(math.isfinite(value) for value in self.values)


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run folder."""

    folder: Path
    config: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]  # lines of metrics.jsonl: kind, step and numbers by name
    steps: tuple[int, ...]  # that were evaluated

    @property
    def comparable(self) -> bool:
        """True if the base and a later step were evaluated."""
        return len(self.steps) > 1 and self.steps[0] == 0

    @property
    def name(self) -> str:
        """The name in the configuration, else that of the folder."""
        return str(self.config.get("name") or self.folder.resolve().name)

    @cached_property
    def first(self) -> Evaluation | None:
        """The first evaluation, without pictures."""
        return Evaluation.load(self.folder, self.steps[0], images=False) if self.steps else None

    @cached_property
    def trained(self) -> dict[str, float | None]:
        """The weights of the trained rewards; None for those that samples name, each with its own weight."""
        stated = {
            self._column(r["name"]): float(r.get("weight", 1.0)) for r in self._rewards if r.get("at_least") is None
        }
        if self.first is not None:  # the run's own rewards are unused if every sample names some
            stated = {name: weight for name, weight in stated.items() if name in self.first.values}
        others = [name for name in self._named_by_samples(any_stated=bool(stated)) if name not in stated]
        return stated | dict.fromkeys(others)

    @cached_property
    def constrained(self) -> dict[str, float]:
        """The thresholds of rewards that were constrained while others were maximised."""
        thresholds = {r["name"]: r.get("at_least") for r in self._rewards}
        return {self._column(name): float(least) for name, least in thresholds.items() if least is not None}

    @property
    def kl_exceeded(self) -> bool:
        """True if the run ended because its KL divergence from the reference exceeded `training.max_kl`."""
        budget, kl = self.setting("training.max_kl"), self.curve("train", "kl")
        return isinstance(budget, int | float) and bool(kl) and kl.values[-1] > budget

    @property
    def hacking_stopped(self) -> bool:
        """True if the run ended because a measured reward fell while a trained one rose (`training.hacking`)."""
        flags = self.curve("train", "hacking/flagged")
        return self.setting("training.hacking.then") == "stop" and bool(flags) and flags.values[-1] == 1

    @property
    def tokens_spent(self) -> bool:
        """True if the run ended because its answers had `training.max_tokens` tokens in all."""
        budget = self.setting("training.max_tokens")
        return isinstance(budget, int) and sum(self.curve("train", "tokens").values) >= budget

    @property
    def shows_total(self) -> bool:
        """False if the total repeats the only trained reward."""
        return sum(weight != 0 for weight in self.trained.values()) != 1

    @property
    def heldout(self) -> tuple[str, ...]:
        """The rewards that were measured and never trained on."""
        return tuple(self._column(str(name)) for name in self.setting("evaluation.rewards") or ())

    @property
    def num_examples(self) -> int:
        """The number of example prompts in a report."""
        stated = self.setting("run.pictures")
        return stated if isinstance(stated, int) else CARDS

    @property
    def iterations(self) -> tuple[int, int | None]:
        """The numbers of finished and of planned iterations (None: not stated)."""
        planned = self.setting("training.iterations")
        done = max((int(row["step"]) for row in self.metrics), default=0)
        return done, planned if isinstance(planned, int) else None

    def setting(self, path: str) -> Any:
        """Return a configuration value by dotted path; None if it is unset."""
        value: Any = self.config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def names(self, kind: str, prefix: str = "") -> list[str]:
        """Return the names of the metrics of this kind, `train` or `evaluation`, sorted."""
        found = {name for row in self.metrics if row["kind"] == kind for name in row if name.startswith(prefix)}
        return sorted(found - {"kind", "step"})

    def curve(self, kind: str, name: str) -> Curve:
        """Return a metric over all steps that logged it."""
        rows = {int(row["step"]): row[name] for row in self.metrics if row["kind"] == kind and name in row}
        values = (float(v) if isinstance(v, int | float) else math.nan for _, v in sorted(rows.items()))
        return Curve(tuple(sorted(rows)), tuple(values))

    def role(self, name: str) -> str:
        """Return `trained`, `held out`, `at least 0.8` for a constraint, or an empty text for other rewards."""
        if name in self.constrained:
            return f"at least {self.constrained[name]:g}"
        if name in self.heldout or self.trained.get(name) == 0:
            return "held out"
        return "trained" if name in self.trained or name == "total" else ""

    def _named_by_samples(self, any_stated: bool) -> list[str]:
        """Return the rewards that samples name and the configuration does not.

        Further scores of a reward are none of them. An old evaluation does not mark those: if the configuration names
        rewards, only the names that some samples were not scored by are counted.
        """
        if self.first is not None:
            partly = {name for name in self.first.values if not self.first.requested(name).all()}
            own = [name for name in self.first.values if name not in self.first.further]
            found = [name for name in own if not any_stated or name in partly]
        else:
            logged = [name.removeprefix("reward/") for name in self.names("train", "reward/")]
            found = [] if any_stated else logged
        apart = NO_REWARDS | {*self.heldout, *self.constrained}
        return [name for name in found if name not in apart]

    @property
    def _rewards(self) -> list[Mapping[str, Any]]:
        return [r for r in self.config.get("rewards") or () if isinstance(r, Mapping) and "name" in r]

    def _column(self, name: str) -> str:
        """Return the name of a configured reward in evaluations: `thing` for `path/to/file.py:thing`."""
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
        raise EvaluationError(f"{path} contains no configuration: expected a mapping of keys")
    rows, steps = _read_metrics(folder), evaluation_steps(folder)
    if until is not None:
        rows, steps = tuple(row for row in rows if row["step"] <= until), [step for step in steps if step <= until]
    return RunRecord(folder, rename_keys(config)[0], rows, tuple(steps))


def evaluated_splits(run: Path) -> list[tuple[EvalSplit, Path]]:
    """Return the further sets that a run was evaluated on, with their folders."""
    return [(split, run / split.folder) for split in EVAL_SPLITS if evaluation_steps(run / split.folder)]


def _read_metrics(folder: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        return tuple(read_metrics(folder))
    except RunError as err:
        raise EvaluationError(str(err)) from None
