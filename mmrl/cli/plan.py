"""`mmrl plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmrl.cli.recipe_overrides import Overrides

if TYPE_CHECKING:
    from mmrl.planning.placement import DeviceForecast, PlaceForecast
    from mmrl.planning.plan import Plan


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.")],
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", help="The largest number of devices.")] = 8,
    repeats: Annotated[int, typer.Option("--repeats", help="Calls that are measured, after one warm-up.")] = 3,
    bandwidth: Annotated[
        float | None,
        typer.Option("--bandwidth", help="GB/s between devices of a node.", show_default="300 on GPUs, 1 on CPUs"),
    ] = None,
    node_bandwidth: Annotated[
        float | None,
        typer.Option("--node-bandwidth", help="GB/s between nodes.", show_default="100 on GPUs, 1.25 on CPUs"),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option("--latency", help="Seconds of a round of a collective.", show_default="2e-5, 5e-4 on CPUs"),
    ] = None,
    node_size: Annotated[int, typer.Option("--node-size", help="Devices of a node.")] = 8,
    overlap: Annotated[
        float, typer.Option("--overlap", help="Share of the exchange under strict that computation hides.")
    ] = 0.0,
    scoring_overlap: Annotated[
        float, typer.Option("--scoring-overlap", help="Share of scoring that the next rollout call hides.")
    ] = 0.0,
    straggler: Annotated[
        float | None,
        typer.Option(
            "--straggler",
            help="Standard deviation of a call's seconds over processes, as a share.",
            show_default="0.05, or that of measured answers",
        ),
    ] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", help="GiB of a device.", show_default="those of this machine's")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the plan here too.")
    ] = None,
) -> None:
    """Predict seconds a step, memory and the best run.place on N devices, from one measured call of each phase."""
    from mmrl.config import ConfigError, load_config

    config = load_config(recipe, overrides or [])
    if memory is not None and memory <= 0:
        raise ConfigError(f"--memory: {memory} GiB is not the memory of a device")
    if json is not None and not json.absolute().parent.is_dir():
        raise ConfigError(f"--json: there is no folder {json.parent}")

    from mmrl.cli.console import console, quiet_diffusers
    from mmrl.planning.plan import plan_run

    assumed = {
        "bandwidth": bandwidth,
        "node_bandwidth": node_bandwidth,
        "latency": latency,
        "node_size": node_size,
        "overlap": overlap,
        "scoring_overlap": scoring_overlap,
        "straggler": straggler,
    }
    with quiet_diffusers(), console().status("Measuring one call of each phase ..."):
        found = plan_run(
            config,
            gpus,
            assumed={name: value for name, value in assumed.items() if value is not None},
            capacity=None if memory is None else round(memory * 2**30),
            repeats=repeats,
        )
    _print(found)
    if json is not None:
        from json import dumps

        from mmrl.atomic_io import replace_text

        replace_text(json, dumps(found.as_json(), indent=1) + "\n")


def _print(found: Plan) -> None:
    from rich.table import Table

    from mmrl.cli.console import console
    from mmrl.generation.memory.memory_report import size

    out, measured = console(), found.measurement
    phases, work = measured.phases, measured.work
    table = Table(
        title=f"One call of {work.rows:,} trajectories, on {measured.device_name}",
        title_justify="left",
        show_header=False,
        caption=". ".join(measured.notes),
        caption_justify="left",
    )
    table.add_row("rollout", _seconds(phases.rollout))
    table.add_row("scoring", _seconds(phases.scoring))
    table.add_row("update", f"{_seconds(phases.update)} forward and backward")
    table.add_row("optimizer", f"{_seconds(phases.optimizer)} an update, in every process")
    table.add_row("statistics", f"{_seconds(phases.statistics)} a call, of all calls in every process")
    table.add_row("check of the replay", f"{_seconds(phases.check)} an iteration, in every process")
    out.print(table)

    table = Table(title="Assumptions", title_justify="left", show_header=False)
    calls = f"{work.calls:,} of {work.rows:,} trajectories in an iteration, passes x updates: "
    calls += f"{work.epochs} x {work.updates}"
    for name, text in [("micro-batches", calls), *found.assumptions.rows()]:
        table.add_row(name, text)
    table.add_row("memory", f"{found.memory_source}; a device has {size(found.capacity)} (--memory)")
    out.print(table)

    table = Table(title=f"Seconds a step of {found.recipe}", title_justify="left")
    for name in ("devices", "seconds", "speed-up", "efficiency", "replicas", "window", "strict", "run.place"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold", min_width=24)
    for each in found.forecasts:
        table.add_row(*_row(each))
    out.print(table)
    for text in _obstacles(found.forecasts):
        out.print(text, soft_wrap=True, markup=False)
    for text in found.warnings:
        out.print(f"caution: {text}", soft_wrap=True, markup=False)


def _row(each: DeviceForecast) -> list[str]:
    cells = {place.place: _place(place) for place in each.places}
    places = [cells.get("replicas", ""), cells.get("window", ""), cells.get("strict", "")]
    if each.best is None or each.speedup is None or each.efficiency is None:
        return [f"{each.devices:,}", "", "", "", *places, "none", each.reason]
    figures = [_seconds(each.best.seconds.total), f"{each.speedup:.2f}", f"{each.efficiency:.0%}"]
    return [f"{each.devices:,}", *figures, *places, each.best.place, each.reason]


def _place(each: PlaceForecast) -> str:
    """Return seconds and memory of a place; a dash before the seconds where it cannot be used."""
    from mmrl.generation.memory.memory_report import size

    memory = "" if each.memory is None else f"\n{size(each.memory)}"
    return f"{'- ' if each.obstacle else ''}{_seconds(each.seconds.total)}{memory}"


def _obstacles(forecasts: tuple[DeviceForecast, ...]) -> list[str]:
    """Return a line for each place that cannot be used, with the numbers of devices."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in forecasts:
        for place in each.places:
            if place.obstacle:
                found.setdefault((place.place, place.obstacle), []).append(str(each.devices))
    return [f"- {place} on {', '.join(counts)}: {reason}" for (place, reason), counts in found.items()]


def _seconds(value: float) -> str:
    """Format seconds with three digits.

    >>> _seconds(123.4), _seconds(1.234), _seconds(0.01234)
    ('123 s', '1.23 s', '12.3 ms')
    """
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"
