"""`mmrl doctor --pipelines`: which pipelines of the installed diffusers can be trained."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmrl.generation.diffusion.support import PipelineSupport, State

MEANING: dict[State, str] = {
    "proven": "a tiny pipeline of the class is recorded and replayed exactly, with gradients, by a test",
    "expected": "not tested, but without known obstacles: a known denoiser, a scheduler of a supported family",
    "refused": "cannot be trained; training stops with the reason",
}


def list_pipelines() -> None:
    """Print every class with its state; for a refused one, the reason."""
    from rich.table import Table
    from rich.text import Text

    from mmrl.cli.console import console

    out = console()
    with out.status("Importing every pipeline of diffusers ..."):
        found = installed_support()
    colours: dict[State, str] = {"proven": "green", "expected": "yellow", "refused": "red"}
    table = Table("pipeline", "state", box=None)
    table.add_column("why", overflow="fold")
    for each in sorted(found, key=lambda row: (list(MEANING).index(row.state), row.name)):
        table.add_row(each.name, Text(each.state, colours[each.state]), each.reason)
    out.print(table)
    for state, meaning in MEANING.items():
        out.print(f"{sum(each.state == state for each in found)} {state}: {meaning}", soft_wrap=True)


def installed_support() -> list[PipelineSupport]:
    """Return all pipeline classes of the installed diffusers. Import warnings of deprecated ones are suppressed."""
    from mmrl.cli.console import quiet_diffusers
    from mmrl.generation.diffusion.support import list_support

    with quiet_diffusers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list_support()


def page(found: Sequence[PipelineSupport], version: str) -> str:
    """Return the text of docs/pipelines.md."""
    lines = [
        "# Which pipelines can be trained",
        "",
        "<!-- Written by tests/cli/test_pipelines.py: run it with MMRL_WRITE_DOCS=1 after a change. -->",
        "",
        f"Every pipeline class of diffusers {version}, as `mmrl doctor --pipelines` prints it for the installed "
        "version. No class needs training code: mmrl records and replays the unmodified pipeline "
        "([text to image](text-to-image.md)).",
        "",
        "| state | classes | what it means |",
        "|---|---|---|",
    ]
    by_state = {state: [each for each in found if each.state == state] for state in MEANING}
    lines += [f"| {state} | {len(by_state[state])} | {meaning} |" for state, meaning in MEANING.items()]
    for state in ("proven", "expected"):
        names = ", ".join(f"`{each.name}`" for each in by_state[state])
        lines += ["", f"## {state.capitalize()}", "", names]
    lines += ["", "## Refused", "", "| class | why |", "|---|---|"]
    lines += [f"| `{each.name}` | {each.reason} |" for each in by_state["refused"]]
    return "\n".join(lines) + "\n"
