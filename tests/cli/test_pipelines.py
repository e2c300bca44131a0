"""The list of pipelines is what the tests have seen, and the page is the list."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import diffusers
import pytest

from mmrl.cli.doctor import MEANING, installed_support
from mmrl.generation.diffusion.support import PROVEN, REFUSED, support_of

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def page(found, version: str) -> str:
    """The text of docs/pipelines.md."""
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


@pytest.fixture(scope="module")
def found():
    return installed_support()


def test_pipelines_page_equals_the_list(found):
    everywhere = [each for each in found if each.name != "ConsisIDPipeline"]  # there beside opencv alone
    written = page(everywhere, diffusers.__version__)
    if os.environ.get("MMRL_WRITE_DOCS"):
        PAGE.write_text(written, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == written


def test_every_class_has_a_state_and_unsupported_ones_a_reason(found):
    names = [each.name for each in found]
    assert len(set(names)) == len(names) > 250
    assert set(names) >= PROVEN and len(PROVEN) >= 40
    assert all(bool(each.reason) == (each.state == "refused") for each in found)
    assert not PROVEN & REFUSED.keys() and set(names) >= REFUSED.keys()


def test_tested_classes_are_those_of_the_pipeline_matrix():
    tiny = importlib.import_module("tests.generation.tiny_pipelines")
    assert {each.pipeline for each in tiny.PIPELINES.values()} == PROVEN


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("StableCascadePriorPipeline", "no transformer, transformer_2"),
        ("StableAudioPipeline", "makes only sound"),
        ("DDPMPipeline", "neither a prompt nor images"),
        ("CosmosTextToWorldPipeline", "EDMEulerScheduler, is of no supported family"),
        ("TextToVideoSDPipeline", "every frame as a separate row"),
    ],
)
def test_unsupported_pipelines_state_the_reason(name, reason):
    support = support_of(getattr(diffusers, name))
    assert support.state == "refused" and reason in support.reason
