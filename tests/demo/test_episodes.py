"""Checkpoints play a sample in the environment of their run: on the demo's tab and as a page of the command line."""

from __future__ import annotations

import httpx
import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.error_handling import DemoError, Stopped
from mmrl.demo.generate import GenerationSettings, generate
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import heat
from mmrl.demo.tab_episodes import _players, episode_job, without_folders
from mmrl.environments import register
from mmrl.evaluation.episodes.episode_view import EpisodeView
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.worlds.button_environment import ButtonScreens
from tests.demo.app_process import started
from tests.demo.demo_runs import make_run
from tests.demo.test_serving import call, endpoint

register(ButtonScreens)
SCREENS = (
    "environment={name: shapeworld_screens}",
    "rewards=[{name: outcome, args: {key: progress}}]",
    "data.path=shapeworld:screens-train",
    "data.validation=shapeworld:screens-development",
    "sampling.max_new_tokens=6",
)


@pytest.fixture(scope="module")
def screens_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("played") / "screens" / "seed-0"
    return make_run(folder, "shapes-vlm", steps=(5,), shake=0.1, overrides=SCREENS)


@pytest.fixture(scope="module")
def players(screens_run):
    return CheckpointColumns([str(screens_run)])


@pytest.fixture(scope="module")
def sample():
    return samples("screens-development")[1]


@pytest.mark.integration
def test_checkpoints_play_side_by_side_with_the_same_noise(players, sample):
    assert players.in_environment() == list(players.chosen) == ["base", "screens/seed-0@5"]
    settings = GenerationSettings(3, temperature=1.0)
    reports = [each.html for each in episode_job(players, players.chosen, sample, "Q?", settings).reports()]
    assert "base plays" in reports[0] and "plays" not in reports[-1]
    last = list(episode_job(players, players.chosen, sample, "<b>Q?", settings).reports())[-1]
    base, trained = (last.episodes[name] for name in players.chosen)
    assert base.turns[0].pictures[0].size == (56, 56) and base.turns[0].space == "pixel"
    assert [turn.action for turn in base.turns] != [turn.action for turn in trained.turns]
    assert last.html.count('class="turn-head"') == 2 and "<b>" not in last.html and "success" in last.html
    assert last.html.replace("&lt;b&gt;Q", "Q") == reports[-1]  # the same seed, the same episodes


def test_a_checkpoint_that_cannot_play_leaves_the_other(players):
    wrong = Sample("w", prompt="the red.", images=samples("screens-development")[0].images)
    (last,) = list(episode_job(players, ["base"], wrong, "Q", GenerationSettings(0)).reports())[-1:]
    assert not last.episodes and "no task of screens" in last.problems["base"] and 'role="alert"' in last.html


def test_an_environment_that_broke_down_names_no_folder():
    broken = {"void": "error", "detail": "FileNotFoundError: /home/me/secret/world.json"}
    episode = EpisodeView("s", (), broken, "over")
    assert without_folders(episode).outcome == {"void": "error", "detail": "FileNotFoundError: world.json"}
    assert without_folders(EpisodeView("s", (), {"void": None}, "over")).outcome == {"void": None}


def test_cancel_stops_before_the_next_token(players, sample):
    job = episode_job(players, ["base"], sample, "Q", GenerationSettings(0))
    reports = job.reports()
    next(reports)
    job.stop()
    with pytest.raises(Stopped):
        list(reports)


def test_the_other_tabs_still_get_one_answer(players, sample):
    job = StoppableJob(lambda job: iter(()))
    found = generate(players.pool, players.usable("base"), sample, GenerationSettings(0, rows=2), job)
    assert len(found.media) == 2
    with players.pool.activate("base") as policy:
        assert policy.environment is not None  # it plays again afterwards


def test_runs_without_an_environment_have_no_players(columns):
    assert columns.in_environment() == []


@pytest.mark.slow
def test_the_tab_plays_over_http(screens_run, fork_server, tmp_path, sample):
    with started(fork_server, tmp_path, [screens_run]) as served, httpx.Client(base_url=served.url) as client:
        number, described = endpoint(client, "mm-play")
        assert described["api_visibility"] == "private"
        played = call(client, number, [["base", "screens/seed-0@5"], sample.id, 0, 1.0])
        assert played["success"] and str(played["output"]).count("turn-head") >= 2
        for wrong in (["unknown"], ["base"] * 3 + ["screens/seed-0@5", "x"]):
            assert not call(client, number, [wrong, sample.id, 0, 1.0])["success"]


@pytest.mark.parametrize("sent", ["base", [], ["base", "other"], ["base", "base", "a", "b"], [3]])
def test_programs_cannot_ask_for_other_players(sent):
    with pytest.raises(DemoError):
        _players(sent, ["base", "a", "b"])
    assert _players(["b", "b", "a"], ["a", "b"]) == ["b", "a"]


def test_a_temperature_has_bounds():
    assert heat(1) == 1.0
    for wrong in ("1", True, -0.1, 2.1, float("nan"), None):
        with pytest.raises(DemoError):
            heat(wrong)


def watch(*arguments, code=0):
    result = CliRunner().invoke(app, ["environments", "watch", *map(str, arguments)])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.mark.integration
def test_watch_writes_a_page(screens_run, tmp_path, run):
    page = tmp_path / "pages" / "one.html"
    printed = watch(f"{screens_run}@base", screens_run, "--sample", 2, "--out", page).stdout
    text = page.read_text(encoding="utf-8")
    assert "turn 1: " in printed and "progress 0" in printed and printed.rstrip().endswith("one.html")
    assert text.count('class="turn-head"') == 2 and samples("screens-development")[2].prompt in text
    assert "no sample 999" in watch(screens_run, "--sample", 999, "--out", page, code=1).stderr
    assert "no run with an environment" in watch(run, "--out", page, code=2).stderr
