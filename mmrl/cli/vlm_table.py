"""`mmrl doctor --vlms`: the vision-language models of the installed transformers that can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrl.understanding.vlm_support import ProvenVLM, VLMState

VLM_MEANING: dict[VLMState, str] = {
    "proven": "a tiny model of the type is rolled out, replayed and trained by a test, beside transformers alone",
    "expected": "not tested, but nothing is known against it",
    "refused": "cannot be trained; training stops with the reason before weights are read",
}


def list_vlm_types() -> None:
    """Print every model type with its class and state; for a refused one, the reason."""
    from rich.table import Table
    from rich.text import Text

    from mmrl.cli.console import console
    from mmrl.understanding.vlm_support import list_vlms

    out = console()
    with out.status("Reading every vision-language configuration of transformers ..."):
        found = list_vlms()
    colours: dict[VLMState, str] = {"proven": "green", "expected": "yellow", "refused": "red"}
    table = Table("model type", "class", "state", box=None)
    table.add_column("what it takes, or why it cannot", overflow="fold")
    for each in sorted(found, key=lambda row: (list(VLM_MEANING).index(row.state), row.model_type)):
        note = each.reason if each.facts is None else summary_of(each.facts)
        table.add_row(each.model_type, each.class_name, Text(each.state, colours[each.state]), note)
    out.print(table)
    for state, meaning in VLM_MEANING.items():
        rows = [each for each in found if each.state == state]
        classes = len({each.class_name for each in rows})
        out.print(f"{len(rows)} {state} ({classes} classes): {meaning}", soft_wrap=True)


def summary_of(facts: ProvenVLM) -> str:
    """Return what a proven type takes, in a few words."""
    images = "several images" if facts.images == "several" else "one image"
    videos = ", videos" if facts.videos else ""
    served = "; served alike" if not facts.served else ""
    return f"{images}{videos}; {'shared prompts' if not facts.unshared else 'prompts are not shared'}{served}"
