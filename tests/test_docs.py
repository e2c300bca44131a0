"""Every `mmrl` and `make` command that README.md shows is one that exists, with options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
FENCED = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shown_commands(text: str) -> list[list[str]]:
    """The commands of the fenced bash blocks that start with mmrl or make, split into words."""
    lines = [line for block in FENCED.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words for words in commands if words and words[0] in ("mmrl", "make")]


def run_mmrl(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from mmrl.cli import main; sys.argv[0] = 'mmrl'; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=README.parent, capture_output=True, text=True, check=False
    )


def check_command(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Parse one command without doing its work."""
    if words[0] == "make":
        return subprocess.run(
            ["make", "--dry-run", *words[1:]], cwd=README.parent, capture_output=True, text=True, check=False
        )
    if words[1:2] == ["train"] and "--resume" not in words:
        return run_mmrl(*words[1:], *([] if "--dry-run" in words else ["--dry-run"]))
    return run_mmrl(*words[1:], "--help")  # unknown commands and options are refused before the help is shown


def test_readme_shows_the_two_commands():
    commands = shown_commands(README.read_text(encoding="utf-8"))
    assert ["make", "quickstart"] in commands
    assert ["make", "test"] in commands


def test_every_shown_command_parses():
    refused = []
    for words in shown_commands(README.read_text(encoding="utf-8")):
        done = check_command(words)
        if done.returncode:
            refused.append(f"{shlex.join(words)}\n{done.stdout}{done.stderr}")
    assert not refused, "\n\n".join(refused)


@pytest.mark.parametrize(
    "line", ["make quickstrat", "mmrl trian quickstart", "mmrl recipes list --colour", "mmrl train no-such-recipe"]
)
def test_a_wrong_command_is_refused(line):
    ((*words,),) = shown_commands(f"```bash\n{line}  # as a reader would type it\n```\n")
    assert check_command(words).returncode != 0
