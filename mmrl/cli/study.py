"""`mmrl study run|list|show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mmrl.studies.runner import StudyOptions
    from mmrl.studies.study import Study
    from mmrl.studies.study_result import StudyResult

SEED_COLUMNS = 8
"""The most seeds with a column each in a terminal."""
app = typer.Typer(help="Published claims with their ablations: run one, or see its verdict.", no_args_is_help=True)


@app.command()
def run(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A shipped study, a published system, or a YAML file of yours.")
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each arm.", show_default="the study's own rule")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Arms at once, one thread each.", show_default="as many as cores")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Where models run.", show_default="the recipe's")] = None,
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Folder of trained arms, which studies share, and results.")
    ] = Path("runs/studies"),
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on with what is there; --fresh needs a new --root.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it costs, and train nothing.")] = False,
) -> None:
    """Train the arms of a study side by side, and judge its claims. The same command goes on after an interruption."""
    from mmrl.errors import ConfigError

    study = _find(name)
    if not resume and (root / study.name).exists():
        raise ConfigError(f"--fresh: {root} has a result of {study.name} already: choose another --root")

    from mmrl.cli.console import console
    from mmrl.studies.runner import StudyOptions, bill, run_study
    from mmrl.studies.study_display import study_display

    options = StudyOptions(root=root, jobs=jobs, seeds=seeds, device=device)
    if dry_run:
        from rich.table import Table

        table = Table("arm", "what it takes", title=study.name, title_justify="left")
        for row in bill(study, options):
            table.add_row(*row)
        console().print(table)
        _print_missing(study, options)
        return
    display = study_display(console())
    try:
        result = run_study(study, options, display)
    finally:
        display.close()
    _print(result)
    typer.echo(root / study.name / f"{study.name}.md")


@app.command("list")
def list_() -> None:
    """Name every study, its paper, and the verdict that was published."""
    from rich.table import Table

    from mmrl.cli.console import console
    from mmrl.studies.study import list_studies
    from mmrl.studies.study_result import published_result

    table = Table("study", "paper", "claim", "verdict", box=None)
    for study in list_studies():
        found = published_result(study.name)
        claim = study.config.claims[0]
        table.add_row(study.name, study.config.paper.title, claim.text, found.verdict if found else "not run")
    console().print(table)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FOLDER", help="A study, a published system, or the folder of a result.")
    ],
) -> None:
    """Print a study's claims, and its result if there is one."""
    from mmrl.studies.study_result import RESULT, StudyResult, published_result

    if (Path(name) / RESULT).is_file():
        _print(StudyResult.load(Path(name) / RESULT))
        return
    study = _find(name)
    result = published_result(study.name)
    if result is None:
        _print_claims(study)
        typer.echo(
            f"It has no published result; run it with: mmrl study run {name if Path(name).is_file() else study.name}"
        )
    else:
        _print(result)


def _find(name: str) -> Study:
    """Return a study by its own name, by its file, by the name or key of its system, or by its paper's title."""
    from mmrl.errors import ConfigError
    from mmrl.studies.study import load_study
    from mmrl.studies.systems import study_of_system, study_of_title

    try:
        return load_study(name)
    except ConfigError:
        if Path(name).suffix in (".yaml", ".yml"):
            raise
        if (study := study_of_system(name) or study_of_title(name)) is None:
            raise
        return study


def _print_missing(study: Study, options: StudyOptions) -> None:
    """Print what would stop the training of an arm, such as a data file that is not there; each thing once."""
    from mmrl.build.readiness import missing
    from mmrl.cli.console import console
    from mmrl.studies.runner import arm_config

    printed: set[str] = set()
    for arm in study.arms if study.config.recipe is not None else ():
        config, _ = arm_config(study, arm, study.config.seeds.start, options)
        for problem in missing(config):
            if problem not in printed:
                console().print(f"{arm}: training would stop: {problem}", style="yellow", markup=False, soft_wrap=True)
            printed.add(problem)


def _print(result: StudyResult) -> None:
    from rich.table import Table

    from mmrl.cli.console import console
    from mmrl.studies.study_result import decimal, interval_cell

    out = console()
    title = f"{result.paper['title']}: {result.verdict}"
    table = Table("claim", "comparison", "difference", "95 % interval", "verdict", title=title, title_justify="left")
    for claim in result.claims:
        for number, contrast in enumerate(claim.contrasts):
            text, verdict = (claim.text, claim.verdict) if number == 0 else ("", "")
            table.add_row(text, contrast.label, decimal(contrast.mean, "+"), interval_cell(contrast), verdict)
    out.print(table)
    for name, measured in result.measures.items():
        each = result.seeds <= SEED_COLUMNS
        seeds = [f"seed {seed}" for seed in measured.seeds] if each else ["lowest seed", "highest seed"]
        arms = Table("arm", "mean", *seeds, title=name, title_justify="left")
        for arm in measured.values:
            means = measured.matrix(arm).mean(axis=0)
            cells = means if each else [means.min(), means.max()]
            arms.add_row(arm, decimal(means.mean()), *map(decimal, cells))
        out.print(arms)
    typer.echo(f"Stopping rule: {result.stopping}.")
    if result.origin:
        typer.echo(result.origin)


def _print_claims(study: Study) -> None:
    for claim in study.config.claims:
        typer.echo(f"{claim.text}: {claim.test}")
