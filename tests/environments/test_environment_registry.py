"""Environments and tools by name: built in, from an installed package, from a file; and the section that names them."""

from __future__ import annotations

import sys
import tomllib

import pytest
from pydantic import ValidationError

from mmrl.config.environment import EnvironmentConfig, ToolConfig
from mmrl.environments import (
    ToolEnvironment,
    available_environments,
    available_tools,
    build_environment,
    describe,
    environment_registry,
    load_environment,
    load_tool,
    register,
)
from mmrl.environments.call_formats import FORMATS
from mmrl.errors import ConfigError
from tests.environments.worlds import Countdown, Slow
from tests.plugins.test_registry import offer

SOURCE = '''
from mmrl.environments import Observation, Step, ToolArguments, TypedTool

class Coin:
    """Guess a coin."""

    name, max_turns, instructions, deadline_s = "coin", 1, "", None

    def __init__(self, side: str = "heads", max_turns: int = 1):
        self.side, self.max_turns = side, max_turns

    def begin(self, sample, reader):
        return self

    def step(self, action):
        return Step(None)

    def outcome(self):
        return {"success": True}

class Flip(TypedTool):
    """Flip a coin."""

    name = "flip"
    Arguments = ToolArguments

    def run(self, context, arguments):
        return Observation("heads")

def add(a: int, b: int) -> int:
    """Add."""
    return a + b

NUMBER = 3
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with an environment and a tool."""
    (tmp_path / "coin_package.py").write_text(SOURCE)
    offer(tmp_path, "coin-world", "coin = coin_package:Coin", group="mmrl.environments")
    offer(tmp_path, "coin-tools", "flip = coin_package:Flip", group="mmrl.tools")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("coin_package", None)


def test_an_installed_package_offers_environments_and_tools(package):
    assert "coin" in available_environments() and "flip" in available_tools()
    assert "coin_package" not in sys.modules  # listing imports nothing
    assert load_environment("coin", side="tails").side == "tails"
    assert load_tool("flip").call(None, {}).text == "heads"
    assert describe("coin").startswith("coin: Guess a coin.") and "side: str = heads" in describe("coin")
    assert "kind       tool" in describe("flip")


def test_components_of_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    assert load_environment(f"{tmp_path}/mine.py:Coin").max_turns == 1
    assert load_tool(f"{tmp_path}/mine.py:add").call(None, {"a": 1, "b": 2}).text == "3"
    assert isinstance(load_tool(f"{tmp_path}/mine.py:Flip").parameters, dict)
    assert "kind       tool\narguments  a: int, b: int" in describe(f"{tmp_path}/mine.py:add")
    assert "kind       tool" in describe(f"{tmp_path}/mine.py:Flip")
    assert "kind       environment" in describe(f"{tmp_path}/mine.py:Coin")
    for name in ("NUMBER", "add", "Flip"):
        with pytest.raises(ConfigError, match="no environment"):
            load_environment(f"{tmp_path}/mine.py:{name}")
    with pytest.raises(ConfigError, match="no tool"):
        load_tool(f"{tmp_path}/mine.py:Coin")
    with pytest.raises(ConfigError, match="takes no settings"):
        load_tool(f"{tmp_path}/mine.py:add", a=1)


def test_registered_components_are_found_and_names_are_not_taken_twice(monkeypatch):
    for registry in (environment_registry.ENVIRONMENTS, environment_registry.TOOLS):
        monkeypatch.setattr(registry, "registered", {})
    assert register(Countdown) is Countdown and register(Slow) is Slow and register(Slow) is Slow
    assert "countdown" in available_environments() and "slow" in available_tools()
    assert isinstance(load_environment("countdown", deadline_s=1.0), Countdown)
    for other in (type("Crop", (), {"name": "crop", "call": None}), type("Other", (), {"name": "slow", "call": None})):
        with pytest.raises(ConfigError, match="already a tool"):
            register(other)
    with pytest.raises(ConfigError, match="neither"):
        register(type("Nothing", (), {"name": "nothing"}))


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [("crp", {}, "did you mean crop"), ("crop", {"sides": 3}, "sides"), ("crop", {"space": "cm"}, "space"),
     ("crop", {"side": 0}, "side"), ("search", {"index": "absent.jsonl"}, "absent")],
)  # fmt: skip
def test_tools_that_cannot_be_built_name_the_reason(name, args, message):
    with pytest.raises(ConfigError, match=message):
        load_tool(name, **args)


def test_the_section_builds_an_environment():
    config = EnvironmentConfig(
        tools=(ToolConfig(name="crop", args={"side": 96}), ToolConfig(name="calculator")),
        max_turns=3,
        first_turn="must_call",
        deadline_s=5.0,
        args={"max_calls": 2},
    )
    made = build_environment(config, family="gemma3")
    assert isinstance(made, ToolEnvironment)
    assert (made.format.name, made.max_turns, made.first_turn, made.max_calls) == ("gemma", 3, "must_call", 2)
    assert made.tools["crop"].side == 96
    assert build_environment(config).format.name == "hermes"


def test_the_section_of_another_environment(package):
    made = build_environment(EnvironmentConfig(name="coin", args={"side": "tails"}, max_turns=4))
    assert (made.side, made.max_turns) == ("tails", 4)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        build_environment(EnvironmentConfig(name="coin", args={"sides": 3}))


def test_environments_of_packages_play_others_by_name(package, tmp_path):
    file = tmp_path / "doubled.py"
    file.write_text(
        "from mmrl.environments.wrapped import WrappedEnvironment\n\n"
        "class Doubled(WrappedEnvironment):\n    name = 'doubled'\n"
    )
    inner = {"name": f"{file}:Doubled", "args": {"of": {"name": "coin", "args": {"side": "tails", "max_turns": 4}}}}
    made = build_environment(EnvironmentConfig(name="tagged", args={"of": inner}, max_turns=2))
    assert (made.max_turns, made.of.max_turns, made.of.of.side) == (2, 4, "tails")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "at least one"),
        ({"tools": [{"name": "crop"}, {"name": "crop"}]}, "at most once"),
        ({"tools": [{"name": "crop"}], "max_turns": 0}, "max_turns"),
        ({"tools": [{"name": "crop"}], "deadline_s": -1}, "deadline_s"),
        ({"tools": [{"name": "crop"}], "first_turn": "maybe"}, "first_turn"),
        ({"tools": [{"name": "crop", "side": 3}]}, "side"),
        ({"name": "coin", "tools": [{"name": "crop"}]}, "key of the environment tools"),
        ({"name": "coin", "format": "llama"}, "key of the environment tools"),
        ({"name": "coin", "turns": 3}, "turns"),
    ],
)
def test_sections_that_cannot_be_name_the_key(document, message):
    with pytest.raises(ValidationError, match=message):
        EnvironmentConfig.model_validate(document)


def test_the_help_of_format_names_every_format():
    help_text = EnvironmentConfig.model_fields["format"].description
    assert all(name in help_text for name in FORMATS)


def test_entry_points_of_the_project_are_environments(repository):
    points = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["entry-points"]["mmrl.environments"]
    for name, place in points.items():
        assert load_environment(place).name == name
