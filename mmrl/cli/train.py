"""`mmrl train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmrl.cli.recipe_overrides import Overrides

if TYPE_CHECKING:
    from mmrl.config import TrainConfig
    from mmrl.config.servers import ServersConfig


REWARD = "reward"
"""The first argument that trains a reward model in place of a policy."""
USUAL_PROCESSES = 8
"""The number of processes that `--dry-run` estimates memory for where it is not started with several."""


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A YAML file, or the name of a shipped recipe or of a task.", show_default=False
        ),
    ] = None,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved configuration, batch sizes and memory; train nothing.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue the run in this folder; needs no RECIPE.")
    ] = None,
) -> None:
    """Train a policy as a recipe says; `mmrl train reward RECIPE` trains a reward model."""
    if recipe == REWARD:
        _train_reward(overrides or [], dry_run, resume)
        return
    from mmrl.config import BatchPlan, dump_config

    config = _configuration(recipe, overrides or [], resume)
    geometry = BatchPlan.of(config)

    from mmrl.build.config_checks import check  # loads torch: after everything that can be refused without it
    from mmrl.distributed.processes import launched_as_main
    from mmrl.workflows.train import train as train_run

    check(config)
    if dry_run and launched_as_main():
        typer.echo(dump_config(config))
        _print_table("What this asks for", geometry.rows())
        if config.run.servers is not None:
            _print_servers(config.run.servers)
        _print_memory(config)
        _print_missing(config)
    if dry_run:
        return
    folder = train_run(config, resume=resume)
    if not launched_as_main():
        return

    from mmrl.cli.console import console
    from mmrl.evaluation.final_summary import final_summary

    out = console()
    out.print(final_summary(folder, colours=out.color_system is not None, width=out.width))


def _train_reward(arguments: list[str], dry_run: bool, resume: Path | None) -> None:
    from mmrl.config import ConfigError

    if resume is not None:
        raise ConfigError("--resume: a reward model is trained in one go, in seconds to minutes: start it again")
    if not arguments or "=" in arguments[0]:
        raise ConfigError("say which: mmrl train reward RECIPE, a YAML file or shapes-preferences, which ships")
    from mmrl.config.loading.yaml_text import dump_yaml
    from mmrl.workflows.train_reward import load_reward_recipe, train_reward

    config = load_reward_recipe(arguments[0], arguments[1:])
    if dry_run:
        typer.echo(dump_yaml(config.model_dump()))
        return
    done = train_reward(config, Path(config.out or f"runs/rewards/{config.name}"), typer.echo)
    typer.echo((done.folder / "README.md").read_text(encoding="utf-8"))
    typer.echo(f"{done.folder}")


def _configuration(recipe: str | None, overrides: list[str], resume: Path | None) -> TrainConfig:
    from mmrl.config import ConfigError, load_config
    from mmrl.config.loading.overrides import check_resume_overrides
    from mmrl.config.recipes import kebab_case

    if resume is None:
        if recipe is None:
            raise ConfigError("say what to train: mmrl train RECIPE, where `mmrl recipes list` shows what ships")
        return load_config(recipe, overrides)
    if recipe is not None and "=" in recipe and not Path(recipe).is_file():
        overrides, recipe = [recipe, *overrides], None
    check_resume_overrides(overrides)
    written = resume / "config.yaml"
    if not written.is_file():
        raise ConfigError(f"{resume} is not a run: it holds no config.yaml")
    config = load_config(str(written), overrides)
    if config.optimizer.schedule != "constant" and (
        config.training.iterations != load_config(str(written)).training.iterations
    ):
        raise ConfigError(
            f"training.iterations cannot change on resume: optimizer.schedule is {config.optimizer.schedule}, "
            "which falls to zero at the last iteration it was planned for"
        )
    if recipe is not None and kebab_case(other := load_config(recipe).name) != kebab_case(config.name):
        raise ConfigError(f"{resume} is a run of {config.name}, not of {other}; leave RECIPE out to resume it")
    return config


def _print_servers(settings: ServersConfig) -> None:
    from mmrl.understanding.serving.server_list import ServerList
    from mmrl.understanding.serving.server_status import server_status

    file = ServerList(settings).file
    if file is not None and not file.exists():
        rows = [(str(file), "is not there: a run reads the addresses of its servers from it (run.servers.file)")]
    else:
        rows = [(url, words) for url, _, words in server_status(settings)]
    _print_table("Servers of run.servers", rows)


def _print_missing(config: TrainConfig) -> None:
    from mmrl.build.readiness import missing
    from mmrl.cli.console import console

    for problem in missing(config):
        console().print(f"Training would stop: {problem}", style="yellow", markup=False, soft_wrap=True)


def _print_memory(config: TrainConfig) -> None:
    """Print the memory of a run: of a generator as estimated, of a small model that writes as counted."""
    from mmrl.cli.console import quiet_diffusers
    from mmrl.cli.errors import exit_code
    from mmrl.errors import CallRefused

    writes = config.policy.kind != "pipeline"
    try:
        with quiet_diffusers():
            if writes:
                _print_counted_memory(config)
                return
            from mmrl.build.policies import estimate_memory

            memory = estimate_memory(config)
    except Exception as err:  # a pipeline may raise anything on the meta device; training does not depend on it
        known = exit_code(err) is not None and not isinstance(err, CallRefused)  # samples may give what is missing
        if known and not writes:
            raise
        typer.echo(f"The memory estimate was left out: {str(err).partition(chr(10))[0] or type(err).__name__}")
        return
    _print_table("Memory on one device, estimated", memory.rows(), " ".join(memory.assumptions))
    _print_places(memory.of_processes(_processes()))


def _print_counted_memory(config: TrainConfig) -> None:
    """Load a model that writes and count, unless it is large or not there."""
    from mmrl.generation.memory.memory_report import size
    from mmrl.planning.phase_measurement import count_memory

    memory = count_memory(config)
    if memory is None:
        typer.echo("Large models that write are not loaded for a dry run: `mmrl plan RECIPE` counts their memory.")
        return
    update = ("update", f"{size(memory.plain.peak)} at most")
    _print_table(
        "Memory on one device, counted in calls",
        [update if name == "update" else (name, text) for name, text in memory.rows()],
    )
    # Their answers need unequal numbers of calls, so they have no place `strict`.
    _print_places([(place, text) for place, text in memory.of_processes(_processes()) if place != "strict"])


def _processes() -> int:
    from mmrl.distributed.processes import launched_size

    return launched_size() if launched_size() > 1 else USUAL_PROCESSES


def _print_places(rows: list[tuple[str, str]]) -> None:
    _print_table(f"Memory of one of {_processes()} processes by run.place", rows)


def _print_table(title: str, rows: list[tuple[str, str]], caption: str = "") -> None:
    from rich.table import Table

    from mmrl.cli.console import console

    table = Table(title=title, title_justify="left", show_header=False, caption=caption, caption_justify="left")
    for name, figures in rows:
        table.add_row(name, figures)
    console().print(table)
