"""Inputs that are built from samples, and outputs whose rows are selected and appended."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.data import RewardChoice, Sample
from mmrl.rewards import Failure, RewardError, RewardOutput, Status, reward_input
from mmrl.rewards.core.reward_io import append_rows, select_rows

SAMPLE = Sample(id="s", prompt="two cats", answer=2, task="counting", source="pets", metadata={"box": [0, 0, 1, 1]})


def test_media_are_assigned_to_their_field():
    image = Image.new("RGB", (2, 2))
    item = reward_input(SAMPLE, image, group=3, id="s-0")
    assert (item.id, item.group, item.prompt, item.image, item.video, item.text) == (
        "s-0",
        3,
        "two cats",
        image,
        None,
        None,
    )
    assert item.references == {"answer": 2, "box": [0, 0, 1, 1]}
    assert item.metadata == {"task": "counting", "source": "pets"}
    assert reward_input(SAMPLE, [image, image], 0, "").video == [image, image]
    assert reward_input(SAMPLE, "2", 0, "").text == "2"


def test_unset_answers_leave_no_reference():
    assert reward_input(Sample(id="s", prompt="a cat", metadata={"answer": 1}), "x", 0, "").references == {"answer": 1}


@pytest.mark.parametrize("media", [None, [], [1, 2], b"bytes"])
def test_unsupported_media_raise(media):
    with pytest.raises(RewardError, match="sample 's': cannot score a"):
        reward_input(SAMPLE, media, 0, "")


def test_reward_inputs_hold_prompt_media_and_tokens():
    sample = Sample(id="s", prompt="p", images=("a.png", "b.png"), videos=("c.mp4",), metadata={"space": "pixel"})
    item = reward_input(sample, "2 3", 0, "", tokens=[7, 8, 0])
    assert item.references == {"images": ["a.png", "b.png"], "videos": ["c.mp4"], "space": "pixel"}
    assert item.metadata == {"task": None, "source": "default", "tokens": [7, 8, 0]}


def test_reward_inputs_hold_the_requested_rewards():
    chosen = (RewardChoice("exact", 0.5),)
    assert reward_input(Sample(id="s", prompt="p", rewards=chosen), "x", 0, "").metadata["rewards"] == chosen


@pytest.mark.parametrize(
    ("content", "expected"),
    [("how many?", "how many?"), ([{"type": "image"}, {"type": "text", "text": "how many?"}], "how many?"), ([], "")],
)
def test_last_request_is_the_prompt_of_a_conversation(content, expected):
    messages = (
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": content},
    )
    assert reward_input(Sample(id="s", messages=messages), "3", 0, "").prompt == expected
    assert reward_input(Sample(id="s", messages=({"role": "system", "content": "x"},)), "3", 0, "").prompt == ""


def output(size):
    return RewardOutput(
        values={"a": np.arange(size, dtype=np.float32), "total": 2 * np.arange(size, dtype=np.float32)},
        status={"a": [Status.OK] * size, "total": [Status.OK] * size},
        detail=[{"row": row} for row in range(size)],
        events=[[(row, 1.0)] for row in range(size)],
        failures=[{"a": Failure(str(row))} for row in range(size)],
    )


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=8))))
def test_rows_are_selected_in_order_with_all_fields(case):
    size, rows = case
    some = select_rows(output(size), rows)
    assert some.values["total"].tolist() == [2 * row for row in rows]
    assert some.detail == [{"row": row} for row in rows] and some.events == [[(row, 1.0)] for row in rows]
    assert [each["a"].kind for each in some.failures] == [str(row) for row in rows]
    assert len(some.status["a"]) == len(rows)


def test_rows_of_an_output_hold_known_fields_and_request_no_reward():
    more = append_rows(output(2), [{"total": 5.0}, {"total": 6.0, "a": 1.0}])
    np.testing.assert_array_equal(more.values["a"], [0, 1, np.nan, 1])
    assert more.values["total"].tolist() == [0, 2, 5, 6] and more.values["a"].dtype == np.float32
    assert more.status["a"][2:] == [Status.NOT_APPLICABLE, Status.OK] and more.status["total"][2:] == [Status.OK] * 2
    assert [len(column) for column in (more.detail, more.events, more.failures)] == [4, 4, 4]
