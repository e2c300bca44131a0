"""A trained judge as a reward: both orders, win rates, and the folders that it is loaded from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import RewardInput, load
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.judges.trained_judge import TrainedJudge, checkpoint_folder
from mmrl_shapeworld.shipped_models import VLM_JUDGE
from mmrl_shapeworld.vqa.canvas import PALETTE
from mmrl_shapeworld.worlds.picture_pairs import painted
from tests.rewards.service.served_reward import served

CAPTION = ("3", "large", "red", "circle", "left")
VALUES = [CAPTION, ("2", "large", "red", "circle", "left"), ("2", "small", "blue", "circle", "right")]
ARGS = {"model": str(VLM_JUDGE), "question": "{prompt}", "max_new_tokens": 40, "device": "cpu"}


def pictures(values=VALUES, group=0):
    return [
        RewardInput(f"{group}-{n}", group, " ".join(CAPTION), image=Image.fromarray(PALETTE[painted(each, n)[0]]))
        for n, each in enumerate(values)
    ]


@pytest.fixture(scope="module")
def judge():
    return load("trained_judge", **ARGS)


class ScriptedJudge(TrainedJudge):
    """The judge with other words: `say` gives the text to a question (prompt, first answer, second answer)."""

    say = staticmethod(lambda prompt, first, second: "A")

    def _written(self, questions):
        return [self.say(*each) for each in questions]


def scripted(judge, say, orders="mean"):
    found = ScriptedJudge.__new__(ScriptedJudge)
    found.__dict__ |= judge.__dict__
    found.say, found._orders = say, orders
    return found


def lengths(prompt, first, second):
    """Prefer the longer text."""
    return "<think>by length</think>" + ("A" if len(first) > len(second) else "B")


def texts(*answers):
    return [RewardInput(str(n), 0, "?", text=each) for n, each in enumerate(answers)]


@pytest.mark.integration
def test_win_rates_are_those_of_single_comparisons_in_both_orders(judge):
    """The batched verdicts are those of `compare`, one question at a time."""
    items = pictures()
    rates = judge.score(items).values["trained_judge"]
    by_pair = {}
    for i in range(3):
        for j in range(3):
            if i != j:
                by_pair[i, j] = judge.compare(items[i], items[j])
    for i in range(3):
        expected = np.mean([(by_pair[i, j] + 1 - by_pair[j, i]) / 2 for j in range(3) if j != i])
        assert rates[i] == pytest.approx(expected)


@pytest.mark.integration
def test_a_trained_judge_ranks_pictures_by_how_well_they_fit(judge):
    output = judge.score(pictures())
    assert output.values["trained_judge"].tolist() == [1, 0.5, 0]
    assert output.values["trained_judge_agreement"].tolist() == [1, 1, 1]


def test_rates_of_a_consistent_judge_are_ranks(judge):
    output = scripted(judge, lengths).score(texts("a", "abc", "ab"))
    assert output.values["trained_judge"].tolist() == [0, 1, 0.5]
    assert output.values["trained_judge_agreement"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("orders", ["mean", "agree"])
def test_a_judge_that_prefers_a_place_says_nothing(judge, orders):
    """Negative control: in one order alone its first answer would win."""
    output = scripted(judge, lambda *_: "A", orders).score(texts("a", "abc"))
    assert output.values["trained_judge"].tolist() == [0.5, 0.5]
    assert output.values["trained_judge_agreement"].tolist() == [0, 0]


def test_where_orders_disagree_only_agreement_counts(judge):
    """It prefers the longer text, but the first place between a and ab: by hand."""

    def say(prompt, first, second):
        return "A" if {first, second} == {"a", "ab"} else lengths(prompt, first, second)

    mean = scripted(judge, say).score(texts("a", "abc", "ab")).values["trained_judge"]
    agree = scripted(judge, say, "agree").score(texts("a", "abc", "ab")).values["trained_judge"]
    assert mean.tolist() == [0.25, 1, 0.25] and agree.tolist() == [0, 1, 0]


def test_malformed_answers_lose_and_what_cannot_be_read_is_left_out(judge):
    output = scripted(judge, lengths).score(texts("a", "  ", "<|im_end|>", "ab"))
    assert output.values["trained_judge"].tolist() == [pytest.approx(2 / 3), 0, 0, 1]
    assert output.status["trained_judge"][1:3] == [Status.INVALID] * 2
    silent = scripted(judge, lambda *_: "<think>so").score(texts("a", "ab"))
    assert silent.failures[0]["trained_judge"].kind == "unparseable"
    assert judge.score(pictures()[:1]).failures[0]["trained_judge"].kind == "alone"


@pytest.mark.integration
def test_groups_are_judged_apart(judge):
    both = judge.score([*pictures(), *pictures(VALUES[::-1], group=1)]).values["trained_judge"]
    assert both[:3].tolist() == judge.score(pictures()).values["trained_judge"].tolist()
    items = [replace(each, group=5) for each in pictures(VALUES[::-1], group=1)]
    assert both[3:].tolist() == judge.score(items).values["trained_judge"].tolist()


@pytest.mark.integration
def test_the_folder_of_a_run_is_its_last_checkpoint(judge, tmp_path):
    shutil.copytree(VLM_JUDGE, tmp_path / "checkpoints" / "step-4")
    (tmp_path / "checkpoints" / "index.json").write_text(json.dumps({"last": "step-4", "best": "step-4"}))
    assert checkpoint_folder(str(tmp_path)) == str(tmp_path / "checkpoints" / "step-4")
    again = load("trained_judge", **ARGS | {"model": str(tmp_path)})
    assert again.score(pictures()).values["trained_judge"].tolist() == pytest.approx(
        judge.score(pictures()).values["trained_judge"].tolist()
    )


@pytest.mark.integration
def test_adapters_are_merged_into_their_base(tmp_path):
    """Adapters that add nothing leave the verdicts as they are; the base is named by the folder."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    base = AutoModelForImageTextToText.from_pretrained(VLM_JUDGE)
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": str(VLM_JUDGE)}))
    adapted = load("trained_judge", **ARGS | {"model": str(tmp_path)})
    assert len(adapted.weight_files()) == 2
    plain = load("trained_judge", **ARGS)
    assert (
        adapted.score(pictures()).values["trained_judge"].tolist()
        == plain.score(pictures()).values["trained_judge"].tolist()
    )


def test_wrong_settings_are_named(tmp_path):
    for args, problem in (
        ({"question": "?"}, "must have the slot"),
        ({"orders": "first"}, "one of mean, agree"),
        ({"batch": 0}, "at least 1"),
        ({"model": str(tmp_path)}, "has no model.safetensors"),
    ):
        with pytest.raises(RewardError, match=problem):
            load("trained_judge", **ARGS | args)


@pytest.mark.integration
def test_a_service_holds_it_as_well(judge):
    settings = [f"trained_judge.{name}={json.dumps(value)}" for name, value in ARGS.items()]
    options = [part for each in settings for part in ("--arg", each)]
    with served(*options, reward="trained_judge") as (_, url):
        remote = load("remote", url=url, reward="trained_judge")
        rates = remote.score(pictures()).values["trained_judge"]
    assert rates.tolist() == judge.score(pictures()).values["trained_judge"].tolist()
