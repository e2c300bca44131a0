"""The job that fills a grid: every chosen checkpoint in turn, with a report after each column."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmrl.data.sample import Sample
from mmrl.demo.answer_boxes import parse_answer
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.error_handling import DemoError, Stopped
from mmrl.demo.generate import GeneratedAnswers, GenerationSettings, generate
from mmrl.demo.grid import Grid, GridCell, grid_html, versions
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import ValidatedRequest
from mmrl.demo.scores import DemoScorer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """A grid so far, and the step in progress."""

    grid: Grid
    doing: str = ""
    is_stopped: bool = False

    @property
    def html(self) -> str:
        """The grid for a page, with a notice if the job was stopped."""
        notice = '<p class="mm-warn" role="status">Stopped.</p>' if self.is_stopped else ""
        return notice + grid_html(self.grid, self.doing)


def grid_job(
    columns: CheckpointColumns,
    scorer: DemoScorer,
    sample: Sample,
    request: ValidatedRequest,
    temperature: float | None = None,
    task: str | None = None,
    seen: Callable[[str, GeneratedAnswers], None] | None = None,
) -> StoppableJob[Progress]:
    """Return a job that fills a grid. `seen` is called with the answers of each column as soon as they exist."""
    grid = Grid(
        columns=request.columns,
        rows=_rows(request),
        prompt=request.prompt,
        bases={name: columns.all[name].base for name in request.columns},
        heldout=scorer.heldout,
    )

    def work(job: StoppableJob[Progress]) -> Iterator[Progress]:
        for number, name in enumerate(request.columns, start=1):
            yield Progress(grid, f"{name} ({number} of {len(request.columns)})")
            for place, guidance in enumerate(request.guidances):
                settings = GenerationSettings(
                    request.seed, request.rows, request.steps, guidance, request.rlg, temperature
                )
                rows = [place] if request.by_guidance else range(request.rows)
                try:
                    generated = generate(columns.pool, columns.usable(name), sample, settings, job, task)
                except Stopped:
                    raise
                except Exception as err:  # a server's border: the other columns go on
                    problem = str(err)
                    if not isinstance(err, DemoError):
                        log.exception("%s could not generate", name)
                        problem = f"This failed on the server ({type(err).__name__}); its log says more."
                    grid.cells.update({(row, name): GridCell(problem=problem) for row in rows})
                    continue
                if seen is not None:
                    seen(name, generated)
                scored, note = scorer.score(generated.sample, generated.media, generated.tokens)
                if note and note not in grid.notes:
                    grid.notes.append(note)
                for draw, (row, media) in enumerate(zip(rows, generated.media, strict=True)):
                    found = provenance(columns, name, settings, request.prompt, draw, generated.drift)
                    read = parse_answer(generated.sample, media)[0] if isinstance(media, str) else ""
                    written = generated.written[draw] if generated.written else ""
                    grid.cells[row, name] = GridCell(media, scored[draw], found, read, written)
        yield Progress(grid)

    return StoppableJob(work)


def grid_updates(job: StoppableJob[Progress]) -> Iterator[Progress]:
    """Do a job and yield its progress; a job that is stopped ends with what it had."""
    progress = None
    try:
        for progress in job.reports():
            yield progress
    except Stopped:
        if progress is not None:
            yield Progress(progress.grid, is_stopped=True)


def provenance(
    columns: CheckpointColumns, name: str, settings: GenerationSettings, prompt: str, draw: int, drift: float | None
) -> dict[str, str]:
    """Return the settings that reproduce an answer, as texts."""
    column, subject = columns.all[name], columns.usable(name)
    model = subject.policy.model  # an id on the hub, or a folder, of which the last part is shown
    sampling = settings.of(subject.answer_sampling)
    found = {
        "checkpoint": name,
        "run": next((label for label, folder in columns.runs.items() if folder == column.run), column.run.name),
        "iteration": "0 (the base)" if column.step == 0 else str(column.step),
        "model": model.rstrip("/").rpartition("/")[2] if model.startswith(("/", ".", "~")) else model,
        "trained as": getattr(subject.policy, "train", "full"),
        "prompt": prompt,
        "seed": f"{settings.seed}, row {draw} of {settings.rows}",
    }
    for key, label in (("steps", "steps"), ("guidance_scale", "guidance"), ("temperature", "temperature")):
        value = getattr(sampling, key, None)
        if value is not None:
            found[label] = f"{value:g}"
    if hasattr(sampling, "transition"):
        found["sampler"] = "ode (no exploration)" if sampling.transition.name == "ode" else sampling.transition.name
    found["RLG strength"] = "off" if settings.rlg is None or not column.step else f"{settings.rlg:g}"
    if drift is not None:
        found["nats a token from the base"] = f"{drift:+.4f}"
    found["versions"] = versions()
    return found


def _rows(request: ValidatedRequest) -> tuple[str, ...]:
    if request.by_guidance:
        return tuple(f"guidance {guidance:g}" for guidance in request.guidances if guidance is not None)
    return tuple(f"seed {request.seed} / {row}" for row in range(request.rows))
