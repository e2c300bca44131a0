"""The work behind a grid: every chosen checkpoint in turn, each column shown as soon as it is there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mmrl.data.sample import Sample
from mmrl.demo.answer_boxes import parsed
from mmrl.demo.checkpoint_columns import Columns
from mmrl.demo.error_handling import DemoError, Stopped
from mmrl.demo.generate import Made, Settings, ask
from mmrl.demo.grid import Cell, Grid, versions
from mmrl.demo.jobs import Job
from mmrl.demo.request_validation import Asked
from mmrl.demo.scores import Judges

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """A grid so far, and what is being done."""

    grid: Grid
    doing: str


def grid_job(
    columns: Columns,
    judges: Judges,
    sample: Sample,
    asked: Asked,
    temperature: float | None = None,
    task: str | None = None,
    seen: Callable[[str, Made], None] | None = None,
) -> Job[Progress]:
    """A job that fills a grid. `seen` is told what each column made, as it was made."""
    grid = Grid(
        columns=asked.columns,
        rows=_rows(asked),
        prompt=asked.prompt,
        bases={name: columns.all[name].base for name in asked.columns},
        watched=judges.watched,
    )

    def work(job: Job[Progress]) -> None:
        for number, name in enumerate(asked.columns, start=1):
            job.report(Progress(grid, f"{name} ({number} of {len(asked.columns)})"))
            for place, guidance in enumerate(asked.guidances):
                settings = Settings(asked.seed, asked.rows, asked.steps, guidance, asked.rlg, temperature)
                rows = [place] if asked.by_guidance else range(asked.rows)
                try:
                    made = ask(columns.lineup, columns.usable(name), sample, settings, job, task)
                except DemoError as err:
                    grid.cells.update({(row, name): Cell(problem=str(err)) for row in rows})
                    continue
                except Stopped:
                    raise
                except Exception as err:  # a server's border: the other columns go on
                    log.exception("%s could not be asked", name)
                    said = f"This failed on the server ({type(err).__name__}); its log says more."
                    grid.cells.update({(row, name): Cell(problem=said) for row in rows})
                    continue
                if seen is not None:
                    seen(name, made)
                scored, note = judges.score(made.sample, made.media, made.tokens)
                if note and note not in grid.notes:
                    grid.notes.append(note)
                for draw, (row, media) in enumerate(zip(rows, made.media, strict=True)):
                    told = provenance(columns, name, settings, asked.prompt, draw, made)
                    read = parsed(made.sample, media)[0] if isinstance(media, str) else ""
                    grid.cells[row, name] = Cell(media, scored[draw], told, read)
        job.report(Progress(grid, ""))

    return Job(work)


def provenance(
    columns: Columns, name: str, settings: Settings, prompt: str, draw: int, made: Made | None = None
) -> dict[str, str]:
    """All that it takes to make it again."""
    column, subject = columns.all[name], columns.usable(name)
    sampling = settings.of(subject.sampling)
    told = {
        "checkpoint": name,
        "run": next((label for label, folder in columns.runs.items() if folder == column.run), column.run.name),
        "iteration": "0 (the base)" if column.step == 0 else str(column.step),
        "model": _model_name(subject.policy.model),
        "trained as": getattr(subject.policy, "train", "full"),
        "prompt": prompt,
        "seed": f"{settings.seed}, row {draw} of {settings.rows}",
    }
    for key, label in (("steps", "steps"), ("guidance_scale", "guidance"), ("temperature", "temperature")):
        value = getattr(sampling, key, None)
        if value is not None:
            told[label] = f"{value:g}"
    if hasattr(sampling, "transition"):
        told["sampler"] = (
            f"{sampling.transition.name}{' (no exploration)' if sampling.transition.name == 'ode' else ''}"
        )
    told["RLG strength"] = "off" if settings.rlg is None or not column.step else f"{settings.rlg:g}"
    if made is not None and made.drift is not None:
        told["nats a token from the base"] = f"{made.drift:+.4f}"
    told["versions"] = versions()
    return told


def _rows(asked: Asked) -> tuple[str, ...]:
    if asked.by_guidance:
        return tuple(f"guidance {guidance:g}" for guidance in asked.guidances if guidance is not None)
    return tuple(f"seed {asked.seed} / {row}" for row in range(asked.rows))


def _model_name(model: str) -> str:
    """A hub's name as it is; of a folder, its last part."""
    return model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model
