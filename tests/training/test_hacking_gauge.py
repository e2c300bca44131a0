"""The gauge of reward hacking: by hand, on noise, and in runs whose proxy is hacked."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mmrl.build.config_checks import check
from mmrl.build.hacking import build_hacking_gauge
from mmrl.config import load_config
from mmrl.config.training import HackingConfig
from mmrl.errors import ConfigError
from mmrl.training.hacking_gauge import LEVEL, HackingGauge
from mmrl.workflows.train import train
from tests.training.conftest import Nearness
from tests.training.test_monitors import RecordingDisplay
from tests.training.test_trainer import lines, without_timings

WAVE = (-0.01, 0.0, 0.01)


def gauge(window=3, then="warn", trained=("proxy",), measured=("truth",)) -> HackingGauge:
    return HackingGauge(HackingConfig(window=window, then=then), dict.fromkeys(trained, 1), dict.fromkeys(measured, 1))


def feed(one: HackingGauge, levels, names=("proxy", "truth"), start=0):
    """Give three iterations of each pair of levels; return the metrics of the last one of each window."""
    found, step = [], start
    for level in levels:
        for wave in WAVE:
            step += 1
            metrics = {f"reward/{name}": value + wave for name, value in zip(names, level, strict=True)}
            one.update(step, metrics)
        found.append(metrics | {"message": one.message})
    return found


def test_a_proxy_that_rises_while_the_truth_falls_is_flagged_by_name_and_iteration():
    windows = feed(gauge(), [(0.2, 0.5), (0.5, 0.5), (0.8, 0.1)])
    assert [each["hacking/flagged"] for each in windows] == [0, 0, 1]
    assert windows[2]["hacking/fall/truth"] == pytest.approx(0.4)
    assert windows[2]["message"] == (
        "iteration 9: measured rewards fell: truth from 0.500 to 0.100 since iterations 4 to 6, while proxy from 0.500 "
        "to 0.800 rose. The reward is probably being hacked"
    )


def test_a_rise_before_the_fall_hides_nothing():
    """The truth ends above its start, and far below its best."""
    windows = feed(gauge(), [(0.1, 0.3), (0.3, 0.9), (0.9, 0.4)])
    assert [each["hacking/flagged"] for each in windows] == [0, 0, 1]
    assert "truth from 0.900 to 0.400 since iterations 4 to 6" in windows[2]["message"]


@pytest.mark.parametrize(
    "levels",
    [
        [(0.2, 0.5), (0.8, 0.9)],  # both rise
        [(0.8, 0.5), (0.2, 0.1)],  # both fall: harder prompts, or a collapse
        [(0.2, 0.5), (0.8, 0.5)],  # the truth stays
        [(0.2, 0.5), (0.2, 0.1)],  # the proxy stays
    ],
)
def test_other_changes_are_not_flagged(levels):
    assert [each["hacking/flagged"] for each in feed(gauge(), levels)] == [0, 0]


def test_directions_count():
    """An error that is trained down, while another that is measured goes up, is hacked too."""
    one = HackingGauge(HackingConfig(window=3), {"loss": -1}, {"error": -1})
    assert feed(one, [(0.8, 0.1), (0.2, 0.5)], ("loss", "error"))[-1]["hacking/flagged"] == 1
    one = HackingGauge(HackingConfig(window=3), {"loss": -1}, {"error": -1})
    assert feed(one, [(0.2, 0.5), (0.8, 0.1)], ("loss", "error"))[-1]["hacking/flagged"] == 0


def test_warnings_are_not_repeated_until_the_run_has_recovered():
    levels = [(0.2, 0.9), (0.4, 0.6), (0.6, 0.4), (0.7, 0.9), (0.9, 0.1)]
    windows = feed(gauge(), levels)
    assert [each["hacking/flagged"] for each in windows] == [0, 1, 1, 0, 1]
    assert [bool(each["message"]) for each in windows] == [False, True, False, False, True]


def test_iterations_without_a_mean_are_left_out():
    one = gauge()
    for step, value in enumerate((0.5, math.nan, 0.5, 0.5), 1):
        metrics = {"reward/proxy": 0.1, "reward/truth": value}
        one.update(step, metrics)
        assert ("hacking/flagged" in metrics) == (step == 4)
    one.update(5, {"reward/proxy": 0.1})  # a stage that does not measure it
    assert one.state_dict()["open"] == {"proxy": [], "truth": []}


def simulated(seed: int, drift: float) -> bool:
    """Return True if any of 20 windows of ten iterations is flagged; the rewards are noise and part by `drift`."""
    rng, one = np.random.default_rng(seed), gauge(window=10)
    found = False
    for step in range(1, 201):
        way = drift * step / 200
        one.update(step, {"reward/proxy": rng.normal() + way, "reward/truth": rng.normal() - way})
        found |= one.flagged
    return found


@pytest.mark.integration
def test_noise_is_seldom_flagged_and_a_drift_of_few_deviations_mostly():
    assert np.mean([simulated(seed, 0.0) for seed in range(200)]) <= LEVEL
    assert np.mean([simulated(seed, 4.0) for seed in range(20)]) >= 0.9


def test_a_refresh_lasts_one_window_and_begins_anew():
    one = gauge(then="refresh")
    assert not one.rewards_learn
    feed(one, [(0.2, 0.9), (0.9, 0.2)])
    assert one.rewards_learn and "rewards that learn do so in iterations 7 to 9" in one.message
    (window,) = feed(one, [(0.1, 0.3)], start=6)
    assert not one.rewards_learn and window["hacking/flagged"] == 0 and "stay as they are" in window["message"]
    windows = feed(one, [(0.2, 0.4), (0.9, 0.1)], start=9)
    assert [each["hacking/flagged"] for each in windows] == [0, 1] and one.rewards_learn
    assert "since iterations 10 to 12" in windows[-1]["message"]


def test_state_survives_json_at_every_iteration():
    levels = [(0.2, 0.9), (0.6, 0.5), (0.9, 0.2), (0.4, 0.8), (0.9, 0.3)]
    steps = [(a + wave, b + wave) for a, b in levels for wave in WAVE]
    straight, resumed = gauge(then="refresh"), gauge(then="refresh")
    for step, (proxy, truth) in enumerate(steps, 1):
        rows = [{"reward/proxy": proxy, "reward/truth": truth} for _ in range(2)]
        straight.update(step, rows[0])
        resumed.update(step, rows[1])
        assert rows[0] == rows[1] and straight.message == resumed.message
        state = json.loads(json.dumps(resumed.state_dict()))
        resumed = gauge(then="refresh")
        resumed.load_state_dict(state, step)
        assert resumed.rewards_learn == straight.rewards_learn
    other = gauge(window=4)
    other.load_state_dict(state, 15)  # another window: it begins after iteration 15
    assert other.state_dict()["first"] == 16 and other.state_dict()["windows"] == []


class Overshooting(Nearness):
    """A proxy that wants numbers beyond the target, and the truth beside it."""

    name, range = "proxy", (-100.0, 0.0)

    def score_one(self, item):
        numbers = [float(word) for word in item.text.split()]
        return {"proxy": -sum(abs(n - 4) for n in numbers), "truth": -sum((n - 1) ** 2 for n in numbers)}


def gaussian(make_trainer, run, then, iterations=120):
    display = RecordingDisplay()
    one = gauge(window=6, then=then)
    settings = {"training": {"iterations": iterations, "save_every": 4}, "hacking": one, "display": display}
    return make_trainer(run, reward=Overshooting(), **settings), display


@pytest.mark.integration
def test_a_run_stops_after_the_truth_has_fallen_and_resumes_to_the_same_iteration(make_trainer, tmp_path):
    straight, display = gaussian(make_trainer, tmp_path / "a", "stop")
    straight.train()
    rows = [row for row in lines(tmp_path / "a") if row["kind"] == "train"]
    assert 12 < straight.step < 120 and straight.step % 6 == 0
    truth = [row["reward/truth"] for row in rows]
    assert np.mean(truth[-6:]) < max(truth) and rows[-1]["reward/proxy"] > rows[0]["reward/proxy"]
    assert f"caution: iteration {straight.step}: measured rewards fell: truth" in display.texts[-2]
    assert f"ended after iteration {straight.step} of 120: a measured reward fell" in display.texts[-1]

    first, _ = gaussian(make_trainer, tmp_path / "b", "stop", iterations=8)  # in the middle of a window
    first.train()
    again, _ = gaussian(make_trainer, tmp_path / "b", "stop")
    again.resume()
    again.train()
    assert again.step == straight.step and torch.equal(again.policy.theta, straight.policy.theta)
    assert without_timings(lines(tmp_path / "b")) == without_timings(lines(tmp_path / "a"))

    still, _ = gaussian(make_trainer, tmp_path / "a", "stop")
    still.resume()
    still.train()
    assert still.step == straight.step, "it has stopped still"
    further, _ = gaussian(make_trainer, tmp_path / "a", "warn", iterations=straight.step + 6)
    further.resume()
    further.train()
    assert further.step == straight.step + 6


class Correctable(Overshooting):
    """A proxy whose aim moves towards the truth with each iteration that it learns from."""

    name, learns, scheduled = "proxy", True, True

    def __init__(self):
        self.aim = 4.0

    def score_one(self, item):
        numbers = [float(word) for word in item.text.split()]
        return {"proxy": -sum(abs(n - self.aim) for n in numbers), "truth": -sum((n - 1) ** 2 for n in numbers)}

    def learn(self, items):
        self.aim += 0.2 * (1 - self.aim)
        return {"aim": self.aim}

    def state_dict(self):
        return {"aim": self.aim}

    def load_state_dict(self, state):
        self.aim = state.get("aim", 4.0)


@pytest.mark.integration
def test_a_run_that_is_resumed_within_a_refresh_is_the_uninterrupted_one(make_trainer, tmp_path):
    def trainer(run, iterations):
        one = gauge(window=6, then="refresh")
        settings = {"training": {"iterations": iterations, "save_every": 4}, "hacking": one}
        made = make_trainer(run, reward=Correctable(), **settings)
        made.source.hacking = one
        return made

    trainer(tmp_path / "a", 120).train()
    rows = [row for row in lines(tmp_path / "a") if row["kind"] == "train"]
    learnt = [row["step"] for row in rows if "proxy/aim" in row]
    first = next(row["step"] for row in rows if row.get("hacking/flagged"))
    assert learnt[:6] == list(range(first + 1, first + 7)) and len(learnt) < 60
    assert np.mean([row["reward/truth"] for row in rows[-6:]]) > rows[first - 1]["reward/truth"], "it is right again"
    trainer(tmp_path / "b", first + 3).train()
    again = trainer(tmp_path / "b", 120)
    again.resume()
    again.train()
    assert without_timings(lines(tmp_path / "b")) == without_timings(lines(tmp_path / "a"))


PROXY = """
def digits(text):
    return min(1.0, sum(letter.isdigit() for letter in text) / 40)


digits.range = (0.0, 1.0)
"""


def settings_of(tmp_path, *more):
    (tmp_path / "proxy.py").write_text(PROXY)
    rewards = f"rewards=[{{name: '{tmp_path}/proxy.py:digits'}}, {{name: numeric, weight: 0}}]"
    small = ["data.groups=8", "data.group_size=8", "data.validation=null", "optimizer.lr=1e-3"]
    quiet = ["run.display=plain", "run.pictures=0", f"run.dir={tmp_path / 'run'}"]
    return [rewards, *small, *quiet, "training.iterations=24", *more]


@pytest.mark.slow
def test_a_language_model_that_hacks_its_reward_is_stopped(tmp_path, capsys):
    """It is paid for digits, and its answers to calculations become wrong."""
    run = train(load_config("shapes-reasoning", settings_of(tmp_path, "training.hacking={window: 4, then: stop}")))
    rows = [row for row in lines(run) if row["kind"] == "train"]
    assert len(rows) in (8, 12, 16) and rows[-1]["hacking/flagged"] == 1
    text = " ".join(capsys.readouterr().err.split())
    assert f"iteration {len(rows)}: measured rewards fell: numeric from" in text and "while digits from" in text
    assert (run / "checkpoints" / f"step-{len(rows)}").is_dir()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["rewards.1.weight=1", "training.hacking={}"], "no reward is measured: give one"),
        (
            ["training.hacking={measured: [maths]}"],
            "training.hacking.measured: maths is no reward of weight 0",
        ),
        (["training.hacking={window: 13}"], "two windows of 13 iterations do not fit into training.iterations, 24"),
        (["training.hacking={then: refresh}"], "no reward learns, so none can be refreshed"),
        (["training.hacking={}", "algorithm={name: sft}"], "sft samples and scores nothing as it trains"),
    ],
)
def test_settings_with_which_nothing_can_be_found_raise(tmp_path, more, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", settings_of(tmp_path, *more)))


def test_the_gauge_of_a_configuration_takes_weights_and_directions(tmp_path):
    trained = "{name: numeric, weight: -1}, {name: ocr_cer}"
    measured = "{name: format, weight: 0}, {name: thinks, weight: 0}"
    rewards = f"rewards=[{trained}, {measured}]"
    config = load_config("shapes-reasoning", [rewards, "training.hacking={measured: [format]}"])
    assert build_hacking_gauge(config)._signs == {"numeric": -1, "ocr_cer": -1, "format": 1}
    assert build_hacking_gauge(load_config("shapes-reasoning", [rewards])) is None


def learnt_in(rows, name):
    return [row["step"] for row in rows if f"{name}/pairs" in row]


COTRAINED = "mmrl_shapeworld.reasoning.answer_rewards:CotrainedAnswers"


@pytest.mark.slow
def test_rewards_learn_only_in_the_window_after_a_flag(tmp_path):
    measured = "training.hacking={window: 4, then: refresh, measured: [numeric]}"
    rewards = f"rewards.2={{name: '{COTRAINED}', weight: 0}}"
    run = train(load_config("shapes-reasoning", settings_of(tmp_path, rewards, measured, "training.iterations=14")))
    rows = [row for row in lines(run) if row["kind"] == "train"]
    flagged = [row["step"] for row in rows if row.get("hacking/flagged")]
    assert flagged and learnt_in(rows, "cotrained_answers") == list(range(flagged[0] + 1, min(flagged[0] + 4, 14) + 1))


@pytest.mark.slow
def test_a_reward_model_that_is_hacked_is_refreshed(tmp_path):
    """The share of right answers falls under a frozen reward model, which then learns on for one window."""
    rewards = f'rewards=[{{name: "{COTRAINED}"}}, {{name: numeric, weight: 0}}]'
    quiet = ["run.display=plain", "run.pictures=0", f"run.dir={tmp_path / 'run'}", "data.validation=null"]
    rule = ["training.iterations=60", "training.hacking={window: 10, then: refresh}"]
    run = train(load_config("shapes-reasoning", [rewards, *quiet, *rule]))
    rows = [row for row in lines(run) if row["kind"] == "train"]
    (flagged,) = (row["step"] for row in rows if row.get("hacking/flagged"))
    assert learnt_in(rows, "cotrained_answers") == list(range(flagged + 1, min(flagged + 10, 60) + 1))
    right = [row["reward/numeric"] for row in rows]
    assert np.mean(right[flagged - 10 : flagged]) < np.mean(right[:10]) - 0.05
