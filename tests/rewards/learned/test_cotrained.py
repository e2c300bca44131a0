"""Reward models of texts: trained from pairs, compared with references, and learning on during a run."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from mmrl.config import load_config
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards import RewardError, RewardInput, RewardSuite, load
from mmrl.rewards.learned.cotrained import confirmed_pairs
from mmrl.workflows.train import train
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.reasoning import answer_pairs


def recipe(path, *overrides):
    settings = [f"data.path={path}", f"data.validation={path}", "training.steps=60", "head.hidden=16"]
    return load_reward_recipe("shapes-answers", [*settings, *overrides])


def digits(number: int) -> Sample:
    """A pair of which the right answer repeats the reference."""
    right, wrong = number % 10, (number + 1 + number // 10) % 10
    answer = None if number < 0 else str(right)
    return Sample(f"d{number}", prompt="1+1=", answer=answer, chosen=str(right), rejected=str(wrong))


def written(tmp_path, samples):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    return path


def answer(text: str | None, right: str | None, group: int = 0) -> RewardInput:
    references = {} if right is None else {"answer": right}
    return RewardInput(id=str(text), group=group, prompt="1+1=", text=text, references=references)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    done = train_reward(recipe(written(folder, [digits(number) for number in range(90)])), folder / "model")
    assert done.quality.accuracy["overall"] > 0.9
    return done.folder


def test_a_reference_decides_which_text_is_better(model):
    reward = load("learned_text", model=str(model))
    items = [answer("4", "4"), answer("4", "7"), answer("4", None), answer("", "4")]
    output = reward.score(items)
    assert output.values["learned_text"][0] > output.values["learned_text"][1]
    assert np.isnan(output.values["learned_text"][2]) and "references.answer is missing" in str(output.detail[2])
    assert np.isfinite(output.values["learned_text"][3])
    alone = reward.score(items[:1]).values["learned_text"][0]
    assert alone == pytest.approx(output.values["learned_text"][0], abs=1e-5)  # padding has no effect
    with pytest.raises(RewardError, match="reward model of texts: load it with the reward learned_text"):
        load("learned", model=str(model))


def test_what_a_reward_model_of_texts_needs_is_named(tmp_path):
    with pytest.raises(DataError, match=r"'d-1' has no answer, and encoder.against is answer"):
        train_reward(recipe(written(tmp_path, [digits(-1)])), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"head.kind pointwise is for pictures"):
        train_reward(recipe(written(tmp_path, [digits(1)]), "head.kind=pointwise"), tmp_path / "b")
    silent = Sample("p", prompt="x", answer="1", rejected="b")
    with pytest.raises(DataError, match=r"'p': head.kind bradley_terry needs texts in chosen and rejected"):
        train_reward(recipe(written(tmp_path, [silent])), tmp_path / "c")


def test_pairs_are_of_one_group_and_of_confirmed_and_other_answers():
    values = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.5, np.nan, 0.0])
    found = confirmed_pairs(values, [0, 0, 0, 0, 1, 1, 1, 2], 1.0, most=8, seed=0)
    assert found == [(0, 1), (0, 2), (3, 1), (3, 2), (4, 5)]
    few = confirmed_pairs(values, [0, 0, 0, 0, 1, 1, 1, 2], 1.0, most=2, seed=3)
    assert len(few) == 3 and set(few) < set(found)
    assert few == confirmed_pairs(values, [0, 0, 0, 0, 1, 1, 1, 2], 1.0, most=2, seed=3)


def cotrained(model, **args):
    return load("cotrained", model=str(model), rule="numeric", **args)


HACKS = [answer(f"<think>{n}</think>{n}", f"{n}", n) for n in range(4)] + [
    answer(f"<think>{n} {n} {n}</think>{n + 5}", f"{n}", n) for n in range(4)
]
"""Right answers, and wrong ones that name the reference more often."""


@pytest.mark.integration
def test_a_cotrained_reward_model_stops_to_prefer_what_the_rule_does_not_confirm(model):
    frozen, learning = cotrained(model, updates=0), cotrained(model, updates=20)
    before = learning.score(HACKS).values["cotrained"]
    assert np.array_equal(before, frozen.score(HACKS).values["cotrained"])
    assert (before[4:] > before[:4]).any()
    assert frozen.learn(HACKS) == {} and np.array_equal(frozen.score(HACKS).values["cotrained"], before)
    first = learning.learn(HACKS)
    assert first["pairs"] == 4 and first["in_order"] < 1
    for _ in range(4):
        last = learning.learn(HACKS)
    after = learning.score(HACKS).values["cotrained"]
    assert (after[:4] > after[4:]).all() and last["in_order"] == 1
    assert learning.learn(HACKS[:4]) == {"pairs": 0.0}  # nothing wrong to learn from
    fresh = cotrained(model, updates=20)
    fresh.load_state_dict(json.loads(json.dumps(learning.state_dict())))
    assert np.array_equal(fresh.score(HACKS).values["cotrained"], after)
    fresh.learn(HACKS), learning.learn(HACKS)
    assert np.array_equal(fresh.score(HACKS).values["cotrained"], learning.score(HACKS).values["cotrained"])
    with pytest.raises(RewardError, match="the saved heads do not fit"):
        fresh.load_state_dict({"learnt": 1, "heads": "AAAA"})


def test_a_rule_whose_lower_values_are_better_confirms_low_values(model):
    rewards = [
        load("cotrained", model=str(model), rule=rule, at_least=least, updates=4)
        for rule, least in (("numeric", 1.0), ("ocr_cer", 0.0))
    ]
    items = [answer(text, "7", 0) for text in ("7", "3")]
    learnt = [reward.learn(items) for reward in rewards]
    assert learnt[0] == learnt[1]
    assert rewards[0].state_dict() == rewards[1].state_dict()
    assert rewards[0].learn([answer(None, "7")]) == {"pairs": 0.0}


def test_a_suite_lets_only_those_learn_that_do(model):
    suite = RewardSuite([(cotrained(model), 1.0), (load("numeric"), 0.0)])
    assert suite.learns and not RewardSuite([(load("numeric"), 1.0)]).learns
    assert suite.learn(HACKS).keys() == {"cotrained/pairs", "cotrained/in_order"}
    assert suite.state_dict().keys() == {"cotrained"}
    suite.close()


@pytest.mark.integration
def test_a_run_trains_the_reward_model_and_saves_it_with_the_checkpoint(model, tmp_path):
    rewards = f"rewards=[{{name: cotrained, args: {{model: {model}, rule: numeric}}}}, {{name: numeric, weight: 0}}]"
    few = ["training.iterations=2", "data.groups=4", "data.group_size=4", "data.validation=null"]
    quiet = ["run.display=quiet", "run.pictures=0", f"run.dir={tmp_path / 'run'}"]
    run = train(load_config("shapes-reasoning", [rewards, *few, *quiet]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(row["cotrained/pairs"] >= 0 for row in rows if row["kind"] == "train")
    state = json.loads((run / "checkpoints/step-2/trainer/state.json").read_text())["source"]["rewards"]
    assert state["cotrained"]["learnt"] == 2
    restored = cotrained(model)
    restored.load_state_dict(state["cotrained"])
    changed = restored.score(HACKS).values["cotrained"]
    assert not np.array_equal(changed, cotrained(model).score(HACKS).values["cotrained"])


@pytest.mark.slow
def test_the_reward_of_the_study_needs_no_folder_once_it_is_loaded():
    reward = load("mmrl_shapeworld.reasoning.answer_rewards:CotrainedAnswers", updates=0)
    assert len(reward.spec.weights) == 2  # the encoder and the heads
    right, wrong = (answer(f"<think></think>{number}", "4") for number in (4, 7))
    values = reward.score([right, wrong]).values["cotrained_answers"]
    assert values[0] > values[1]


def test_pairs_of_answers_have_one_right_side():
    for name in answer_pairs.NAMES:
        found = answer_pairs.samples(name)
        assert len(found) == answer_pairs.SIZES[name.removeprefix("answer-pairs-")]
        for each in found[:100]:
            ends = [str(side).rpartition("</think>")[2] for side in (each.chosen, each.rejected)]
            assert ends[0] == each.answer != ends[1]
    direct = answer_pairs.samples("answer-pairs-direct")
    assert all(str(each.chosen).startswith("<think></think>") for each in direct)
    with pytest.raises(KeyError, match="choose one of answer-pairs-train"):
        answer_pairs.samples("answer-pairs-none")
