"""The checkpoints of the app, by short names. One that cannot be read stays listed, with its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.model_references import BASE, ModelRef, resolve_model
from mmrl.config.environment import EnvironmentConfig
from mmrl.demo.error_handling import DemoError, error_text
from mmrl.errors import ConfigError, RunError
from mmrl.training.run.checkpoints import damage
from mmrl.training.run.run_folder import CONFIG, Run, load_run


@dataclass(frozen=True)
class CheckpointColumn:
    """A checkpoint, or a base model, that can be compared."""

    name: str  # its name on pages: seed-0@40
    run: Path
    step: int  # 0: the base
    subject: ModelRef | None  # None: it cannot be read
    base: str  # the name of its base
    problem: str = ""


class CheckpointColumns:
    """The kept checkpoints of some runs and their bases; `chosen` are those named at the start."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Read the runs. `texts` name models as `mmrl.build.model_references` reads them.

        Raises:
            ConfigError: one is no run, or the run has no such checkpoint.
        """
        folders = [_run_of(text) for text in texts]
        self.runs: Mapping[str, Path] = _short_names(folders)
        self.all: dict[str, CheckpointColumn] = {}
        self._bases: dict[str, str] = {}
        chosen: list[str] = []
        for text, folder in zip(texts, folders, strict=True):
            label = next(name for name, each in self.runs.items() if each == folder)
            run = load_run(folder)
            base = self._add_base(label, run)
            self._add_kept(label, run, base)
            chosen += [base, self._named(text, label, run, base)]
        self.chosen = tuple(dict.fromkeys(chosen))
        self.pool = CheckpointPool([each.subject for each in self.all.values() if each.subject], in_environments=True)

    @property
    def names(self) -> list[str]:
        """The names of all columns: bases first, then by run and step."""
        found = sorted(self.all.values(), key=lambda column: (column.step > 0, str(column.run), column.step))
        return [column.name for column in found]

    def usable(self, name: str) -> ModelRef:
        """Return the model of a column.

        Raises:
            DemoError: it cannot be read, or there is no column of this name.
        """
        column = self.all.get(name)
        if column is None or column.subject is None:
            raise DemoError(column.problem if column else f"There is no checkpoint called {name[:60]!r} here.")
        return column.subject

    def of_kind(self, *kinds: str) -> list[str]:
        """Return the names of the columns whose answers are made by models of these kinds.

        An unreadable column has the kind of its base.
        """
        return [name for name in self.names if self._kind(name) in kinds]

    def in_environment(self) -> list[str]:
        """Return the names of the columns that play in the environment of the first run that has one."""
        found = {name: self._environment(name) for name in self.names}
        first = next((each for name, each in found.items() if each is not None), None)
        return [name for name, each in found.items() if first is not None and each == first]

    def nearest(self, run: str, step: int) -> CheckpointColumn:
        """Return the column of a run whose iteration is nearest to `step`.

        Raises:
            DemoError: there is no such run.
        """
        own = [column for column in self.all.values() if column.run == self.runs.get(run)]
        if not own:
            raise DemoError("There is no such run here.")
        found = [*own, *(self.all[column.base] for column in own)]  # another run may share the base
        return min(found, key=lambda column: (abs(column.step - step), column.step))

    def _kind(self, name: str) -> str:
        subject = self.all[name].subject or self.all[self.all[name].base].subject
        return subject.answer_kind if subject else ""

    def _environment(self, name: str) -> EnvironmentConfig | None:
        subject = self.all[name].subject or self.all[self.all[name].base].subject
        return subject.environment if subject else None

    def _add_base(self, label: str, run: Run) -> str:
        """Add the base of a run. Runs with equal model, sampling, environment and painter share it."""
        subject = resolve_model(f"{run.folder}@{BASE}")
        key = subject.policy.model_dump_json() + subject.sampling.model_dump_json() + subject.drawing
        key += "" if subject.environment is None else subject.environment.model_dump_json()
        if key not in self._bases:
            name = f"{label}@{BASE}" if self._bases else BASE
            self._bases[key] = name
            self.all[name] = CheckpointColumn(name, run.folder, 0, replace(subject, name=name), name)
        return self._bases[key]

    def _add_kept(self, label: str, run: Run, base: str) -> None:
        for folder in sorted((run.folder / "checkpoints").glob("step-*")):
            number = folder.name.removeprefix("step-")
            name = f"{label}@{number}"
            if not number.isdecimal() or name in self.all:
                continue
            problem = damage(folder)
            subject = None if problem else replace(resolve_model(f"{run.folder}@{number}"), name=name)
            error = f"This checkpoint cannot be read: {error_text(ValueError(problem))}" if problem else ""
            self.all[name] = CheckpointColumn(name, run.folder, int(number), subject, base, error)

    def _named(self, text: str, label: str, run: Run, base: str) -> str:
        """Return the name of the column that a text names."""
        try:
            step = resolve_model(text).step
        except RunError as err:
            newest = max((c.step for c in self.all.values() if c.run == run.folder), default=0)
            name = f"{label}@{newest}" if newest else f"{label}@last"
            if name not in self.all:
                self.all[name] = CheckpointColumn(
                    name, run.folder, newest, None, base, f"There is nothing to show: {error_text(err)}"
                )
            return name
        return f"{label}@{step}" if step else base


def _run_of(text: str) -> Path:
    """Return the folder of the run that a text names.

    Raises:
        ConfigError: there is no such run.
    """
    for folder in (Path(text), Path(text.rpartition("@")[0] or text)):
        if (folder / CONFIG).is_file():
            return folder.resolve()
    raise ConfigError(f"{text} is no run: there is no folder of that name with a {CONFIG}. Train one: mmrl train ...")


def _short_names(folders: Sequence[Path]) -> dict[str, Path]:
    """Return {short name: folder}: the fewest last parts that are distinct, at least two, since runs end in a seed.

    >>> list(_short_names([Path("/a/x/seed-0"), Path("/b/x/seed-0")]))
    ['a/x/seed-0', 'b/x/seed-0']
    """
    distinct = list(dict.fromkeys(folders))
    for parts in range(2, 20):
        names = ["/".join(folder.parts[-parts:]).lstrip("/") for folder in distinct]
        if len(set(names)) == len(names):
            break
    return dict(zip(names, distinct, strict=True))
