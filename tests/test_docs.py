"""Every `mmrl` and `make` command that README.md and docs/ show is one that exists, with options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.build.config_checks import check
from mmrl.cli import app
from mmrl.config import ConfigError, load_config
from mmrl.rewards.core.registry import BUILT_IN
from mmrl.studies.systems import load_systems, published_results, verdict_counts
from mmrl.workflows.train_reward import load_reward_recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documented_commands(text: str) -> list[list[str]]:
    """The commands of the fenced bash blocks that start with mmrl or make, split into words."""
    lines = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words for words in commands if words and words[0] in ("mmrl", "make")]


def command_error(words: list[str]) -> str:
    """Return the error of a command, or an empty text; commands are parsed and recipes read, but not run."""
    if words[0] == "make":
        done = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stderr if done.returncode else ""
    result = CliRunner().invoke(app, [*words[1:], "--help"])  # unknown names are refused before the help is shown
    if result.exit_code:
        return result.output or repr(result.exception)
    if words[1:2] != ["train"] or "--resume" in words:
        return ""
    recipe, *overrides = [word for word in words[2:] if not word.startswith("--")]
    try:
        if recipe == "reward":
            load_reward_recipe(*overrides[:1], overrides[1:])
        else:
            check(load_config(recipe, overrides))
    except ConfigError as err:
        return str(err)
    return ""


def test_readme_has_the_two_commands():
    commands = documented_commands(PAGES[0].read_text(encoding="utf-8"))
    assert ["make", "quickstart"] in commands
    assert ["make", "test"] in commands


@pytest.mark.integration
def test_the_readme_counts_rewards_and_recipes_as_they_are():
    text = PAGES[0].read_text(encoding="utf-8")
    assert f"{len(BUILT_IN)} rewards, from IoU" in text
    with_recipe = [each for each in load_systems() if each.recipe]
    assert f"recipes for [{len(with_recipe)} papers' systems]" in text
    holds, opposite, unsure = verdict_counts(published_results().values()).values()
    assert f"lists {len(load_systems())} published systems" in text
    assert f"the claims of {holds} hold, {opposite} come out opposite, and {unsure} are not told apart" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_parses(page):
    found = {shlex.join(words): command_error(words) for words in documented_commands(page.read_text(encoding="utf-8"))}
    assert {command: reason for command, reason in found.items() if reason} == {}


@pytest.mark.parametrize(
    "line",
    [
        "make quickstrat",
        "mmrl trian quickstart",
        "mmrl recipes list --colour",
        "mmrl train no-such-recipe",
        "mmrl train quickstart optimizer.lrr=1",
        "mmrl train reward shapes-preferences ensembel=2",
    ],
)
def test_wrong_commands_are_rejected(line):
    ((*words,),) = documented_commands(f"```bash\n{line}  # as a reader would type it\n```\n")
    assert command_error(words)
