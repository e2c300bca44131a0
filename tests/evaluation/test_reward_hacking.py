"""Trained rewards against watched ones: who is warned, and who is not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmrl.evaluation import Evaluation
from mmrl.evaluation.results import RewardChange
from mmrl.evaluation.reward_hacking import HackingMonitor, diverged, proxy_gaps, reward_changes
from mmrl.evaluation.run_reader import read_run
from mmrl.statistics.intervals import Interval
from tests.evaluation.test_final_summary import final_summary, printed
from tests.evaluation.test_report import read
from tests.evaluation.test_run_reader import with_config


def change(mean: float, half: float = 0.05, spread: float = 0.2) -> RewardChange:
    return RewardChange(0.5, 0.5 + mean, Interval(mean, mean - half, mean + half, 100), spread)


UP = {"clip": change(0.2)}


def test_falling_heldout_rewards_are_reported():
    (text,) = diverged(UP, {"honest": change(0.1), "observer": change(-0.1)})
    assert text.startswith("clip rose while the held-out observer fell by 0.100") and "being hacked" in text


def test_flat_heldout_rewards_are_reported_if_trained_ones_rise():
    (text,) = diverged(UP, {"observer": change(0.01, half=0.03), "judge": change(0.0, half=0.02)})
    assert text.startswith("clip rose by 1.00 standard deviations while no held-out reward did: observer +0.010")


@pytest.mark.parametrize(
    ("trained", "heldout"),
    [
        (UP, {"observer": change(0.1)}),  # goes along
        (UP, {"observer": change(0.01, half=0.03), "judge": change(0.1)}),  # one of them does
        (UP, {"observer": change(0.02, half=0.15)}),  # undecided: too few prompts
        (UP, {"observer": change(-0.02, half=0.15)}),  # falls, perhaps
        ({"clip": change(0.03, half=0.01)}, {"observer": change(0.0, half=0.001)}),  # did not rise far
        ({"clip": change(0.03)}, {"observer": change(-0.1)}),  # rose, perhaps
        ({"clip": change(-0.2)}, {"observer": change(-0.1)}),  # both fell
        (UP, {}),
        ({}, {"observer": change(-0.1)}),
    ],
)
def test_diverged_is_empty_without_divergence(trained, heldout):
    assert diverged(trained, heldout) == []


def test_gaps_are_in_standard_deviations_of_the_base():
    assert proxy_gaps(UP, {"observer": change(-0.1, spread=0.4)}) == {"observer": pytest.approx(1.25)}
    assert proxy_gaps(UP, {"flat": change(0.1, spread=0.0)}) == {}


def test_changes_are_paired_by_prompt_without_unscored_rows(make_run):
    run = make_run(failed=3)
    pair = [Evaluation.load(run, step, images=False) for step in (0, 10)]
    found = reward_changes(*pair, ["redness", "held", "unknown"])
    assert list(found) == ["redness", "held"] and found["held"].difference.n == 37
    assert found["redness"].spread == pytest.approx(np.std(pair[0].values["redness"]), rel=1e-6)
    assert found["redness"].effect_size == pytest.approx(found["redness"].difference.mean / found["redness"].spread)


@pytest.mark.parametrize(("heldout", "hacked"), [(-0.2, True), (0.2, False)])
def test_divergence_is_in_metrics_report_and_terminal(make_run, heldout, hacked):
    run = make_run(heldout=heldout)
    monitor = HackingMonitor(run, ["redness"], ["held"])
    assert monitor.update(Evaluation.load(run, 0, images=False)) == {} and monitor.warnings == ()
    metrics = monitor.update(Evaluation.load(run, 10, images=False))
    assert metrics["evaluation_parted"] == float(hacked) and bool(monitor.warnings) == hacked
    assert (metrics["evaluation_gap/held"] > 2) == hacked
    assert ("being hacked" in read(run)[1].text) == hacked
    output = " ".join(printed(final_summary(run, colours=False, width=140)).split())
    assert ("Caution: redness rose while the held-out held fell" in output) == hacked


def test_report_states_that_no_heldout_reward_rose(make_run):
    assert "while no held-out reward did" in read(make_run(heldout=0.0, prompts=400))[1].text


def test_violated_constraints_are_reported(make_run):
    rewards = [{"name": "redness"}, {"name": "held", "at_least": 0.45}]
    run = with_config(make_run(), rewards=rewards, evaluation={})
    record = read_run(run)
    assert record.trained == {"redness": 1.0} and record.constrained == {"held": 0.45} and not record.shows_total
    text = read(run)[1].text
    assert "held ended at 0.296" in text and "below its constraint of at least 0.45" in text
    assert "being hacked" not in text and "held ≥ 0.45" in text
    fine = with_config(make_run("fine", heldout=0.2), rewards=rewards, evaluation={})
    assert "below its constraint" not in read(fine)[1].text


def test_file_rewards_are_known_by_their_name(make_run):
    rewards = [{"name": "my/rewards.py:redness", "weight": 0}, {"name": "held", "weight": 2}]
    record = read_run(with_config(make_run(), rewards=rewards, evaluation={}))
    assert record.trained == {"redness": 0.0, "held": 2.0}


def test_runs_stopped_by_kl_budget_are_finished(make_run):
    run = with_config(make_run(), training={"iterations": 12, "max_kl": 9.5e-4})
    text = read(run)[1].text
    assert "10 of 12 iterations: its KL limit was exceeded" in text and "unfinished" not in text


@pytest.mark.parametrize(("then", "flag"), [("stop", 1.0), ("warn", 1.0), ("stop", 0.0)])
def test_runs_that_the_gauge_stopped_are_finished(make_run, then, flag):
    run = with_config(make_run(), training={"iterations": 12, "hacking": {"window": 5, "then": then}})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 10, "hacking/flagged": flag}) + "\n")
    text = read(run)[1].text
    stopped = "10 of 12 iterations: a measured reward fell while the trained one rose" in text
    assert stopped == (then == "stop" and flag == 1) == ("unfinished" not in text)


def test_runs_that_spent_their_tokens_are_finished(make_run):
    run = with_config(make_run(), training={"iterations": 12, "max_tokens": 500})
    metrics = run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(row | {"tokens": 50.0}) + "\n" for row in rows))
    text = read(run)[1].text
    assert "10 of 12 iterations: its tokens are spent" in text and "unfinished" not in text
