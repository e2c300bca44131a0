"""Several rewards of services in one run: each has its own name, which all keys of the recipe mean it by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmrl.build.config_checks import check
from mmrl.build.hacking import build_hacking_gauge
from mmrl.build.reward_suites import build_reward_suite
from mmrl.config import load_config
from mmrl.config.rewards import RewardConfig
from mmrl.errors import ConfigError
from mmrl.rewards.core.routing import SharedLoader
from mmrl.workflows.generate_images import InferenceOptions, _load
from mmrl.workflows.train import train
from tests.rewards.service.served_reward import served, text_input

SMALL = (
    "data={path: 'shapeworld:sums-train', validation: null, heldout: null, groups: 4, group_size: 4}",
    "training={iterations: 2}",
    "evaluation={}",
)
CHANNELS = (
    "algorithm={name: grpo, advantage: {channels: [{rewards: [numeric]}, {rewards: [format], among: {numeric: 0.5}}]}}"
)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with served("format", "ocr_cer", reward="numeric") as (_, url):
        yield url


@pytest.fixture(scope="module")
def lengths() -> Iterator[str]:
    with served() as (_, url):
        yield url


def remote(url: str, reward: str, more: str = "", **args: str) -> str:
    """Return a reward of a service as an override; `more` are further keys."""
    arguments = "".join(f", {name}: {value}" for name, value in args.items())
    return f"{{name: remote, args: {{url: '{url}', reward: {reward}{arguments}}}{more}}}"


def trained(folder: Path, rewards: list[str], *more: str) -> list[dict[str, Any]]:
    """Return the metrics of the iterations of a run, without times."""
    words = [*SMALL, f"rewards=[{', '.join(rewards)}]", f"run={{dir: '{folder}', display: quiet}}", *more]
    run = train(load_config("shapes-reasoning", words))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith(("seconds/", "memory_mib/", "reward_seconds"))
        }
        for row in rows
        if row["kind"] == "train"
    ]


@pytest.mark.parametrize(
    ("condition", "more"),
    [
        ("", [CHANNELS]),
        (", counts_if: {reward: numeric, at_least: 0.5}", []),
        (", after: {numeric: 0.5}", []),
    ],
    ids=["channels", "counts_if", "after"],
)
def test_a_run_with_two_rewards_of_a_service_has_the_numbers_of_the_same_ones_in_process(
    service, tmp_path, condition, more
):
    here = trained(tmp_path / "here", ["{name: numeric}", f"{{name: format{condition}}}"], *more)
    there = trained(tmp_path / "there", [remote(service, "numeric"), remote(service, "format", condition)], *more)
    assert len(here) == 2 and {"reward/numeric", "reward/format"} < here[0].keys()
    assert there == here


def test_two_of_one_name_are_refused_and_one_of_them_can_be_called_otherwise(lengths):
    alike = f"rewards=[{remote(lengths, 'text_length')}, {remote(lengths, 'text_length')}]"
    with pytest.raises(ConfigError, match=r"rewards\.1\.name: text_length is there twice.*: give args\.called to one"):
        check(load_config("shapes-reasoning", [alike]))
    apart = f"rewards=[{remote(lengths, 'text_length')}, {remote(lengths, 'text_length', called='long')}]"
    config = load_config("shapes-reasoning", [apart])
    check(config)
    with closing(build_reward_suite(config.rewards, (), SharedLoader())) as suite:
        output = suite.score([text_input("four"), text_input("bad")])
    assert output.values.keys() == {"text_length", "third", "long", "long/third", "total"}
    np.testing.assert_array_equal(output.values["long"], output.values["text_length"])
    np.testing.assert_array_equal(output.values["long/third"], output.values["third"])
    assert output.status["long"] == output.status["text_length"]


def test_the_gauge_of_reward_hacking_has_the_names_and_directions_of_the_service(service):
    rewards = [remote(service, "numeric"), remote(service, "ocr_cer", ", weight: 0", called="errors")]
    words = [f"rewards=[{', '.join(rewards)}]", "training.hacking={measured: [errors]}"]
    config = load_config("shapes-reasoning", words)
    check(config)
    with closing(build_reward_suite(config.rewards, (), SharedLoader())) as suite:
        assert build_hacking_gauge(config, suite)._signs == {"numeric": 1, "errors": -1}


def test_pictures_are_ranked_by_both_rewards_of_a_run_s_service(service):
    rewards = [remote(service, "numeric"), remote(service, "format", ", weight: 0.5")]
    own = {each.known_as: each for each in load_config("shapes-reasoning", [f"rewards=[{', '.join(rewards)}]"]).rewards}
    found = _load({name: each.weight for name, each in own.items()}, own, InferenceOptions())
    assert [(reward.name, weight) for reward, weight in found] == [("numeric", 1.0), ("format", 0.5)]


def test_other_keys_mean_a_reward_by_the_name_that_it_has_in_the_run():
    args = {"url": "http://127.0.0.1:1", "reward": "clip_score"}
    assert RewardConfig(name="remote", args=args).known_as == "clip_score"
    assert RewardConfig(name="remote", args=args | {"called": "large"}).known_as == "large"
    assert RewardConfig(name="clip_score", args={"called": "x"}).known_as == "clip_score"
    with pytest.raises(ConfigError, match=r"channels\.0: remote is none of rewards \(clip_score, format\)"):
        check(load_config("shapes-reasoning", [
            f"rewards=[{remote('http://127.0.0.1:1', 'clip_score')}, {{name: format}}]",
            "algorithm={name: grpo, advantage: {channels: [{rewards: [remote]}, {rewards: [format]}]}}",
        ]))  # fmt: skip


def test_channels_name_a_reward_of_one_s_own_as_the_recipe_does(tmp_path):
    """The values of a class in a file have the name that the class gives them."""
    own = f"{Path(__file__).with_name('served_reward.py')}:TextLength"
    channels = f"algorithm={{name: grpo, advantage: {{channels: [{{rewards: [numeric]}}, {{rewards: ['{own}']}}]}}}}"
    rows = trained(tmp_path / "run", ["{name: numeric}", f"{{name: '{own}'}}"], channels)
    assert len(rows) == 2 and rows[0]["reward/text_length"] > 0
