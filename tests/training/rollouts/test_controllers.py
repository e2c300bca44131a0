"""Controllers move settings between rounds: what they probe, what they choose, and that a resumed run goes on alike."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from mmrl.build.config_checks import check
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.errors import ConfigError
from mmrl.training.rollouts.balance_score import BalanceScore, balance_score
from mmrl.training.rollouts.controllers import Controller, ProbeAnswers
from mmrl.workflows.train import train
from mmrl_shapeworld.splits import samples

MOVES = ("sampling.temperature", "algorithm.advantage.min_value")
CONTROLLER = (
    "data.controller={name: balance_score, every: 2, prompts: 3, answers: 4, "
    "args: {temperatures: [0.5, 1.5], thresholds: [0.0, 1.0], wanted: 2}}"
)
KEYS = (
    "algorithm={name: rejection_sft, aggregate: sequence, advantage: {keep: 4}}",
    "data.groups=2",
    "data.group_size=4",
    "data.validation=null",
    "sampling.max_new_tokens=12",
    "training={iterations: 4, save_every: 2}",
    "evaluation={}",
    "run.display=quiet",
    "run.pictures=0",
)


def probed(texts, totals, **more):
    rewards = {"total": np.array(totals, np.float32)} | {
        name: np.array(each, np.float32) for name, each in more.items()
    }
    return ProbeAnswers(texts, rewards)


# The score -----------------------------------------------------------------------------------------------------------


def test_score_by_hand():
    """Two different ones kept, four wanted: 2/4 * 2/2. None kept: 0. Four different ones: 1."""
    texts = [["a", "a", "b", "x"], ["a", "b", "c", "d"], ["a", "b", "c", "d"]]
    found = probed(texts, [[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    assert balance_score(found, 1.0, wanted=4) == pytest.approx((0.5 + 0 + 1) / 3)


def test_score_by_hand_with_wrong_answers_that_are_kept():
    """Kept a, b, b, x, x, y: right are a and b, different a, b, x, y. One wanted: 1 * 2/4; four: 2/4 * 2/4."""
    found = probed([["a", "b", "b", "x", "x", "y", "z"]], [[2, 2, 2, 1, 1, 1, 0]], numeric=[[1, 1, 1, 0, 0, 0, 0]])
    assert balance_score(found, 1.0, wanted=1, right="numeric") == pytest.approx(0.5)
    assert balance_score(found, 1.0, wanted=4, right="numeric") == pytest.approx(0.25)


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(-1, 2))
def test_answers_that_are_written_again_change_nothing(seed, wanted, threshold):
    rng = np.random.default_rng(seed)
    worth = rng.uniform(-1, 2, 3)
    rows = rng.integers(0, 3, (2, 5))
    twice = np.concatenate([rows, rows], axis=1)
    once, again = (
        balance_score(probed([[str(each) for each in row] for row in found], worth[found]), threshold, wanted)
        for found in (rows, twice)
    )
    assert again == pytest.approx(once)


def test_a_threshold_that_keeps_wrong_answers_is_worse():
    texts, totals, right = [["a", "b", "c", "d"]], [[1.4, 1.2, 0.6, 0.4]], [[1, 1, 0, 0]]
    found = probed(texts, totals, numeric=right)
    low, high = (balance_score(found, threshold, wanted=2, right="numeric") for threshold in (0.3, 1.0))
    assert (low, high) == (pytest.approx(0.5), pytest.approx(1.0))


def test_an_answer_that_could_not_be_scored_is_not_kept():
    found = probed([["a", "b"]], [[np.nan, 1.0]])
    assert balance_score(found, -100.0, wanted=1) == 1.0


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(-1, 2))
def test_it_lies_between_0_and_1_and_order_does_not_matter(seed, wanted, threshold):
    rng = np.random.default_rng(seed)
    totals = rng.uniform(-1, 2, (3, 5))
    texts = [[str(each) for each in row] for row in rng.integers(0, 3, (3, 5))]
    score = balance_score(probed(texts, totals), threshold, wanted)
    order = rng.permutation(5)
    turned = probed([[row[place] for place in order] for row in texts], totals[:, order])
    assert 0 <= score <= 1
    assert balance_score(turned, threshold, wanted) == pytest.approx(score)


def test_the_best_candidate_is_chosen_and_each_temperature_is_probed_once():
    calls = []

    def probe(temperature):
        calls.append(temperature)
        different = temperature > 1
        return probed([["a", "b" if different else "a"]], [[1.0, 1.0]])

    found = BalanceScore(temperatures=(0.5, 1.5), thresholds=(0.0, 1.0), wanted=2).choose(probe, 0)
    assert found == {"sampling.temperature": 1.5, "algorithm.advantage.min_value": 0.0}
    assert calls == [0.5, 1.5]


# In a run -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("controlled") / "run"
    return train(load_config("shapes-reasoning", [*KEYS, CONTROLLER, f"run.dir={folder}"]))


def lines(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


@pytest.mark.integration
def test_settings_stay_for_a_round_and_are_logged(straight):
    rows = lines(straight)
    assert [row.get("settings/answers") for row in rows] == [24.0, None, 24.0, None]
    for first, second in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert [first[f"settings/{name}"] for name in MOVES] == [second[f"settings/{name}"] for name in MOVES]
        assert first["settings/sampling.temperature"] in (0.5, 1.5)


@pytest.mark.integration
def test_it_resumes_to_the_bit(straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    shutil.rmtree(folder / "checkpoints" / "step-4")
    train(load_config(str(folder / "config.yaml")), resume=folder)
    files = [run / "checkpoints" / "step-4" / "trainer" / "parameters.safetensors" for run in (straight, folder)]
    ends = [load_file(file) for file in files]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


class Cold(Controller):
    """Writes at a temperature at which answers hardly differ, and probes nothing."""

    moves = ("sampling.temperature",)

    def choose(self, probe, number):
        return {"sampling.temperature": 0.01}


@pytest.mark.integration
def test_a_controller_of_ones_own_moves_the_temperature(tmp_path):
    own = f"data.controller={{name: '{__file__}:Cold', every: 1}}"
    keys = [key for key in KEYS if not key.startswith("training")] + ["training.iterations=1"]
    cold, plain = (
        lines(train(load_config("shapes-reasoning", [*keys, *more, f"run.dir={tmp_path}/{len(more)}"])))[0]
        for more in ([own], [])
    )
    assert cold["settings/sampling.temperature"] == 0.01
    assert "settings/answers" not in cold
    assert cold["diversity"] < 0.3 < plain["diversity"], (cold["diversity"], plain["diversity"])


class Wider(Controller):
    """Allows one turn more in each round."""

    moves = ("environment.max_turns",)

    def choose(self, probe, number):
        return {"environment.max_turns": 1 + number}


@pytest.mark.slow
def test_the_most_turns_of_an_episode_are_moved(tmp_path):
    keys = ("data.groups=2", "data.group_size=4", "data.validation=null", "evaluation={}", "run.display=quiet")
    own = (f"data.controller={{name: '{__file__}:Wider', every: 1}}", "training.iterations=2", "run.pictures=0")
    found = lines(train(load_config("shapes-screens", [*keys, *own, f"run.dir={tmp_path}/run"])))
    assert [row["settings/environment.max_turns"] for row in found] == [1.0, 2.0]
    assert found[0]["turns/count"] == 1.0 < found[1]["turns/count"] <= 2.0


class Shifting(Controller):
    """Begins with one source alone, and ends with another."""

    moves = ("data.prompts.weights.counting", "data.prompts.weights.chart")

    def choose(self, probe, number):
        return dict(zip(self.moves, (1 - number, number), strict=True))


MIXTURE = "data.prompts={name: mixture, weights: {counting: 1, chart: 1}}"


@pytest.mark.integration
def test_weights_of_sources_are_moved_and_resumed(tmp_path):
    path = tmp_path / "questions.jsonl"
    chosen = [each for each in samples("vlm-train") if each.source in ("counting", "chart")]
    write_samples(chosen[:40], path)
    keys = ("data.groups=2", "data.group_size=4", "data.validation=null", "evaluation={}", "run.display=quiet")
    own = (f"data.path={path}", MIXTURE, f"data.controller={{name: '{__file__}:Shifting', every: 1}}", "run.pictures=0")
    length = "training={iterations: 2, save_every: 1}"
    run = train(load_config("shapes-vlm", [*keys, *own, length, f"run.dir={tmp_path}/run"]))
    shares = [[row[f"prompts/share/{name}"] for name in ("counting", "chart")] for row in lines(run)]
    assert shares == [[1.0, 0.0], [0.0, 1.0]]
    shutil.rmtree(run / "checkpoints" / "step-2")
    before = lines(run)[1]
    again = lines(train(load_config(str(run / "config.yaml")), resume=run))[-1]
    assert again["prompts/share/chart"] == 1.0 and again["reward/total"] == before["reward/total"]


# What cannot work -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["algorithm={name: grpo}"], "balance_score moves algorithm.advantage.min_value, which rejection_sft has"),
        (["data.controller={name: balance_score, args: {temperatures: []}}"], "at least one temperature"),
        (["data.controller={name: balance_score, args: {wanted: 0}}"], "a wanted number of 1 or more"),
        (["run.overlap={lag: 1}"], "data.controller: it samples between iterations"),
        (["data.starts={name: token_budgets, args: {budgets: [4, 8]}}"], "moves the temperature of all rows"),
    ],
)
def test_what_cannot_work_is_refused_by_key(keys, message):
    with pytest.raises(ConfigError, match=message):
        own = [] if keys[0].startswith("algorithm") else KEYS[:1]
        check(load_config("shapes-reasoning", [*own, CONTROLLER, *keys]))


@pytest.mark.parametrize(
    ("recipe", "controller", "keys", "message"),
    [
        ("shapes-vlm", "Wider", [], "moves environment.max_turns: name an environment"),
        ("shapes-screens", "Wider", ["environment.horizon=[1, 2]"], "leave its horizon out"),
        ("shapes-vlm", "Shifting", [], "give data.prompts the name mixture, with a weight of counting"),
    ],
)
def test_settings_that_are_not_there_cannot_be_moved(recipe, controller, keys, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config(recipe, [*keys, f"data.controller={{name: '{__file__}:{controller}'}}"]))


def test_a_painter_has_no_temperature():
    with pytest.raises(ConfigError, match="moves the temperature, which this policy does not have"):
        check(load_config("quickstart", [f"data.controller={{name: '{__file__}:Cold'}}"]))


def test_a_stage_that_trains_a_painter_has_no_controller():
    painter = "{kind: pipeline, model: shapeworld, train: lora, sampling: {transition: {name: flow_sde}}}"
    prompts = "{name: written, by: policy, reader: {name: captions}}"
    reward = "mmrl_shapeworld.worlds.redrawn_scenes:SceneReconstruction"
    stage = f"{{iterations: 1, train: painter, rewards: [{{name: '{reward}'}}], data: {{prompts: {prompts}}}}}"
    keys = (
        "policy.model=shapeworld:vlm-worlds",
        f"models={{painter: {painter}}}",
        f"stages=[{stage}]",
        f"rewards=[{{name: '{reward}', args: {{painter: painter}}}}]",
        "data.path=shapeworld:described-train",
        f"data.controller={{name: '{__file__}:Cold'}}",
    )
    check(load_config("shapes-vlm", keys))
