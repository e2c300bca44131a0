"""The status and failures of answers that a reward cannot score."""

import math

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import (
    InvalidAnswer,
    Reward,
    RewardContext,
    RewardError,
    RewardInput,
    RowsReward,
    ScoringFailed,
    Status,
)


class Length(Reward):
    """Length of a number's text, in [1, 9], and whether it is even."""

    name, needs, range = "length", ("text", "references.most"), (1.0, 9.0)

    def score_one(self, item):
        if not item.text.isdigit():
            raise InvalidAnswer(f"{item.text!r} is no number")
        if item.text == "500":
            raise ConnectionError("503 from the judge")
        if item.text == "0":
            return math.inf
        return {"length": len(item.text), "even": math.nan if item.text == "7" else 1 - int(item.text) % 2}


def ask(text, most=9):
    return RewardInput(id=str(text), group=0, prompt="a number", text=text, references={"most": most})


def test_failures_have_a_status_and_are_never_zero():
    output = Length().score([ask("1234"), ask("x"), ask("500"), ask("0"), ask(None), ask("1", most=None)])
    np.testing.assert_array_equal(output.values["length"], np.float32([4, 1, math.nan, math.nan, math.nan, math.nan]))
    assert output.status["length"] == [Status.OK, Status.INVALID, *[Status.ERROR] * 4]
    assert [row.get("length") for row in output.detail] == [
        None,
        "'x' is no number",
        "ConnectionError: 503 from the judge",
        "length returned inf, not a finite number",
        "length needs text",
        "length needs references.most",
    ]
    assert output.values["length"].dtype == np.float32 and output.seconds > 0


def test_missing_extra_scores_are_errors():
    output = Length().score([ask("12"), ask("x"), ask("500"), ask("7")])
    np.testing.assert_array_equal(output.values["even"], np.float32([1, 1, math.nan, math.nan]))
    assert output.status["even"] == [Status.OK, Status.INVALID, Status.ERROR, Status.ERROR]
    assert output.values["length"][3] == 1 and output.status["length"][3] is Status.OK


def test_empty_batches_have_no_scores():
    output = Length().score([])
    assert list(output.values) == ["length"] and output.values["length"].shape == (0,) and output.detail == []


def test_invalid_answers_without_a_lowest_value_are_errors():
    class Unbounded(Length):
        range = (-math.inf, 0.0)

    output = Unbounded().score([ask("x")])
    assert np.isnan(output.values["length"][0]) and output.status["length"] == [Status.ERROR]
    assert "no worst value" in output.detail[0]["length"]


def test_unknown_needs_raise_with_the_class():
    with pytest.raises(RewardError, match=r"Wrong.needs names pictures; a RewardInput has id, group, prompt, image"):

        class Wrong(Length):
            needs = ("pictures",)


def test_wrong_return_types_are_recorded_as_failures():
    class Text(Length):
        def score_one(self, item):
            return "high"

    output = Text().score([ask("1"), RewardInput(id="2", group=0, prompt="", image=Image.new("RGB", (2, 2)))])
    assert output.status["length"] == [Status.ERROR] * 2 and np.isnan(output.values["length"]).all()


class LengthApart(RowsReward):
    """A reward that computes with a model of the run, here a number, and defines no `score_one`."""

    name, needs, range = "distance", ("text",), (0.0, math.inf)
    models = ("target",)

    def score_rows(self, items, context):
        if "target" not in context.models:
            raise context.no_model("model target")
        return [abs(len(item.text) - context.models["target"]) for item in items]


def test_a_reward_of_rows_scores_in_a_run_and_fails_outside_of_one():
    items = [RewardInput(id=text, group=0, prompt="", text=text) for text in ("a", "abcd")]
    found = LengthApart().score(items, RewardContext(models={"target": 3}))
    assert found.values["distance"].tolist() == [2, 1]
    assert [each["distance"].kind for each in LengthApart().score(items).failures] == ["no_model", "no_model"]
    with pytest.raises(ScoringFailed, match="no model target"):
        LengthApart().score_one(items[0])


def test_values_outside_of_the_stated_range_are_warned_of_once(caplog):
    class Share(Length):
        name, range = "share", (0.0, 1.0)

        def score_one(self, item):
            return 5.0 if item.text else 1.00001

    reward = Share()
    for text in ("", "b", "c"):
        reward.score([ask(text)])
    (record,) = caplog.records
    assert record.getMessage().startswith("share returned 5, outside of its stated range 0 to 1. ")
