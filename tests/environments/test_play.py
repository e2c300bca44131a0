"""A person plays an episode through the command line, in a real process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.data.jsonl import write_samples
from mmrl.data.media.decode import image_size
from mmrl.data.sample import Sample
from mmrl_shapeworld.worlds.button_splits import expert, tasks, trace
from tests.environments.worlds import page

SCREENS = "mmrl_shapeworld.worlds.button_environment:ButtonScreens"


def run(*arguments: object, typed: str = "", code: int = 0):
    result = CliRunner().invoke(app, ["environments", *map(str, arguments)], input=typed)
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def test_lists_and_descriptions():
    listed = run("list").stdout
    assert all(name in listed for name in ("tools", "crop", "draw", "read_text", "search", "calculator"))
    assert "side: int = 448" in run("show", "crop").stdout
    assert "no environment 'crp'" in run("show", "crp", code=2).stderr


@pytest.mark.integration
def test_an_episode_of_screens_is_won_and_its_pictures_saved(tmp_path):
    number, task = next((n, task) for n, task in enumerate(tasks("screens-validation")) if len(task.targets) == 3)
    typed = "\n".join(trace(task, expert)) + "\n"
    played = run("play", SCREENS, "--data", "shapeworld:screens-validation", "--sample", number, "--out", tmp_path,
                 typed=typed)  # fmt: skip
    assert played.stdout.splitlines()[0] == task.prompt and "progress 1" in played.stdout
    outcome = json.loads(played.stdout.rpartition("The episode is over: ")[2])
    assert outcome["success"] and outcome["clicks"] == 3
    saved = sorted(path.name for path in tmp_path.iterdir())
    assert saved == ["turn-0-picture-0.png", "turn-1-picture-0.png", "turn-2-picture-0.png"]
    assert image_size(tmp_path / "turn-2-picture-0.png") == (56, 56)


@pytest.mark.integration
def test_tools_are_called_by_hand_without_torch(tmp_path):
    sample = page(tmp_path)
    write_samples([Sample("page", prompt="Read it.", images=("page.png",))], tmp_path / "data.jsonl")
    assert sample.images
    turns = ['<tool_call>{"name": "crop", "arguments": {"box": [0, 0, 500, 500]}}</tool_call>', "It is blue."]
    code = (
        "import sys; from mmrl.cli import app; sys.argv = ['mmrl', *sys.argv[1:]]\n"
        "try: app()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "environments", "play", "tools", "tools=[{name: crop, args: {side: 90}}]",
         "--data", "data.jsonl"],
        cwd=tmp_path, input="\n".join(turns), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"answer": "It is blue."' in done.stdout and done.stdout.rstrip().endswith("False")
    assert image_size(tmp_path / "play" / "tools-0" / "turn-1-picture-0.png") == (90, 45)


def test_the_end_of_the_input_cuts_the_turn_off(tmp_path):
    played = run("play", SCREENS, "--data", "shapeworld:screens-validation", "--out", tmp_path)
    assert '"ended": "cut_off"' in played.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("tools", "--data", "x.jsonl"), 2, "name at least one"),
        (("tools", "max_turn=2", "--data", "x.jsonl"), 2, "max_turn"),
        ((SCREENS, "--data", "shapeworld:screens-validation", "--sample", "9999"), 1, "no sample 9999"),
        ((SCREENS, "--data", "shapeworld:vlm-validation"), 1, "no task of screens"),
        (("nowhere", "--data", "x.jsonl"), 2, "no environment"),
    ],
)
def test_mistakes_are_one_message(tmp_path, arguments, code, message):
    assert message in run("play", *arguments, "--out", tmp_path / "out", code=code).stderr
