"""Things that are learnt from episodes that a policy plays by itself: contributions of turns, and demonstrations."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.data.jsonl import read_samples, write_samples
from mmrl.environments import Observation
from mmrl.errors import ConfigError
from mmrl.rewards.learned.progress_estimator import PlayedEpisode, PlayedTurn, read_estimator
from mmrl.rollout import EndOfEpisode, EpisodeRecord
from mmrl.workflows.estimate_progress import estimate_progress, played_episode
from mmrl.workflows.make_demonstrations import make_demonstrations
from mmrl_shapeworld import splits
from mmrl_shapeworld.shop.shop_environment import ToyShop

SETTINGS = ("data.path=data.jsonl", "data.group_size=4", "data.groups=4", "data.validation=null", "evaluation={}")


@pytest.fixture
def shops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = splits.samples("shop-development")[:12]
    write_samples(found, "data.jsonl")
    return found


@pytest.mark.integration
def test_successes_become_demonstrations_that_replay(shops):
    made = make_demonstrations(load_config("shapes-shop", list(SETTINGS)))
    assert made.prompts == 12 and 0 < len(made.samples) < 12 and 0 < made.success < 1
    environment = ToyShop()
    for sample in made.samples:
        episode = environment.begin(sample, None)
        for turn in sample.demonstration["turns"]:
            episode.step(turn)
        assert episode.outcome()["success"]
    assert [each.id for each in made.samples] == [each.id for each in shops if each.id in {m.id for m in made.samples}]


@pytest.mark.slow
def test_the_commands_write_what_a_run_reads(shops):
    done = CliRunner().invoke(app, ["data", "demonstrate", "shapes-shop", *SETTINGS, "--out", "made.jsonl"])
    assert done.exit_code == 0 and "of 12 samples" in done.output, done.output
    assert all(sample.demonstration["turns"] for sample in read_samples("made.jsonl"))
    done = CliRunner().invoke(app, ["data", "progress", "shapes-shop", "folder", *SETTINGS])
    assert done.exit_code == 0 and "48 episodes" in done.output, done.output
    estimator = read_estimator(Path("folder"))
    assert len(estimator.contributions(PlayedEpisode("bread: 1 2", (PlayedTurn("open 1", "bread"),)))) == 1


def test_an_episode_is_read_with_the_answers_of_its_environment():
    record = EpisodeRecord(
        texts=("open 1", "take"),
        observations=(Observation("bread"),),
        outcome={"success": True, "ended": "paid"},
        events=(),
        info=({}, {}),
        end=EndOfEpisode.OVER,
    )
    found = played_episode("bread: 1", record, "success")
    assert found == PlayedEpisode("bread: 1", (PlayedTurn("open 1", "bread"), PlayedTurn("take", "")), 1.0)
    with pytest.raises(ConfigError, match=r"--key ended: its value is 'paid'.*the outcome has ended, success"):
        played_episode("bread: 1", record, "ended")


def test_without_an_environment_there_are_no_episodes(shops):
    config = load_config("shapes-shop", [*SETTINGS, "environment=null", "rewards=[{name: numeric}]"])
    for work in (estimate_progress, make_demonstrations):
        with pytest.raises(ConfigError, match="environment: "):
            work(config, "success")
