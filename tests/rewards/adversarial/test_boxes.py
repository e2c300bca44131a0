"""Answers of one box made to break a scorer or to cheat it.

Each gives a score or a status, never an exception; none but the true box is perfect; the true box always is.
"""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status
from mmrl.rewards.rules.region_iou import BoxCIoU, BoxDIoU, BoxGIoU, BoxIoU

ALL = [BoxIoU, BoxGIoU, BoxDIoU, BoxCIoU]
SPACES = ["pixel", "norm_1", "norm_1000"]
TRUE = {"pixel": [20, 40, 400, 800], "norm_1": [0.01, 0.01, 0.2, 0.2], "norm_1000": [10, 10, 200, 200]}
SIZE = [2000, 4000]


def ask(text, input_space="pixel"):
    references = {"answer": TRUE[input_space], "space": input_space, "size": SIZE}
    return RewardInput("0", 0, "where is it?", text=text, references=references)


def run(reward, texts, space="pixel", input_space="pixel"):
    """Scores, statuses; with the true box at the end as the control."""
    output = reward(space=space).score([ask(text, input_space) for text in [*texts, json.dumps(TRUE[space])]])
    values, status = output.values[reward.name], output.status[reward.name]
    assert len(values) == len(texts) + 1 and set(status) <= {Status.OK, Status.INVALID}, output.detail
    assert ((reward.range[0] <= values) & (values <= 1)).all()
    assert values[-1] == 1 and status[-1] is Status.OK  # the control
    assert (values[:-1] < 1).all(), [text[:60] for text, v in zip(texts, values[:-1], strict=True) if v == 1]
    return values[:-1], status[:-1]


def box(*edges):
    return json.dumps(list(edges))


X1, Y1, X2, Y2 = TRUE["pixel"]


@pytest.mark.parametrize("reward", ALL)
@pytest.mark.parametrize("input_space", SPACES)
@pytest.mark.parametrize("space", SPACES)
def test_boxes_in_every_pair_of_spaces_score_perfect_if_true(reward, space, input_space):
    x1, y1, x2, y2 = TRUE[space]
    texts = [box(x2, y2, x1, y1), box(x2, y1, x1, y2), box(x1, y2, x2, y1), box(x1, y1, x1, y2), box(x1, y1, x1, y1)]
    texts += [box(x1, y1, x2, 1e9), box(-1e9, y1, x2, y2), box(-x2, -y2, -x1, -y1)]
    _, status = run(reward, texts, space, input_space)
    assert set(status) == {Status.INVALID}
    others = {json.dumps(TRUE[s]) for s in SPACES if s != space}  # right numbers, in another space
    run(reward, sorted(others), space, input_space)


@pytest.mark.parametrize("reward", ALL)
def test_non_finite_and_non_numeric_coordinates_are_invalid(reward):
    texts = ["[NaN, 40, 400, 800]", "[nan, 40, 400, 800]", "[20, 40, Infinity, 800]", "[20, 40, 1e999, 800]"]
    texts += ['["20", "40", "400", "800"]', "[true, 40, 400, 800]", "[null, 40, 400, 800]", "[20, 40, 400]"]
    texts += ["[0x14, 40, 400, 800]", "[20, 40, 400, 800", "[20 40 400 800]", "[２０, 40, 400, 800]"]  # noqa: RUF001
    texts += [
        f"[20, 40, 400, 8{'0' * 10_000}]",
        "[20, 40, 400, 8e2e2]",
        "[\u221220, 40, 400, 800]",
        "[2_0, 40, 400, 800]",
    ]
    _, status = run(reward, texts)
    assert set(status) == {Status.INVALID}


@pytest.mark.parametrize("reward", ALL)
def test_every_form_of_the_true_box_is_perfect(reward):
    true = json.dumps(TRUE["pixel"])
    forms = [
        f"```json\n{true}\n```",
        f"```\n{true}```",
        f"[{true}]",
        f'{{"bbox_2d": {true}, "label": "the dog\'s \\"ball\\""}}',
        f'{{"answer": {{"boxes": [{{"bbox": {true}}}]}}}}',
        f"It is at {true}.",
        "(20,40),(400,800)",
        "<|box_start|>(20,40),(400,800)<|box_end|>",
        f"<think>perhaps [1, 2, 3, 4]</think>{true}",
        f"<think>x</think><answer>{true}</answer>",
        "[20.0, 4e1, 400, 800.000]",
    ]
    output = reward().score([ask(form) for form in forms])
    assert (output.values[reward.name] == 1).all(), output.detail


@pytest.mark.parametrize("reward", ALL)
def test_several_boxes_are_invalid(reward):
    true = json.dumps(TRUE["pixel"])
    texts = [
        f"{true} {true}",
        f"[{true}, {true}]",
        f"{true} or [0, 0, 2000, 4000]",
        f"<answer>{true}</answer><answer>{true}</answer>",
        f"<answer>[1, 2, 3, 4]</answer><answer>{true}</answer>",
        f"```{true}``` ```{true}```",
        f"<answer>{true}",
        f"</answer>{true}<answer>",
        f'{{"bbox": {true}, "bbox_2d": {true}}}',
        f'{{"bbox": [1, 2, 3, 4], "bbox": {true}}}',
        f"{true} and 30,30,40,40",
        f"{true} (1,1),(2,2)",
        f"```json {true}``` or (1,1),(2,2)",
        "(20, 40), (400, 800) 5,5,6,6",
        f"[] {true}",
        f'{{"bbox": {true}, "other": [[1,1,2,2]]}}',
        json.dumps([[x, y, x + 380, y + 760] for x in range(0, 400, 20) for y in range(0, 400, 20)]),
        json.dumps([TRUE["pixel"]] * 10_000),
        "",
        " \n\t",
        "[]",
        "None",
        "\u200b",
    ]
    _, status = run(reward, texts)
    assert set(status) == {Status.INVALID}


@pytest.mark.parametrize("reward", ALL)
def test_truncated_texts_are_not_perfect(reward):
    for whole in (
        '```json\n[{"bbox_2d": [20, 40, 400, 800], "label": "dog"}]\n```',
        '{"boxes": [{"bbox_2d": [20, 40, 400, 800]}]}',
        "<|box_start|>(20,40),(400,800)",
        "<answer>[20, 40, 400, 800]</answer>",
    ):
        assert reward().score([ask(whole)]).values[reward.name] == 1
        run(reward, [whole[:end] for end in range(len(whole))])


def test_huge_inputs_are_rejected_quickly():
    bombs = [
        "[" * 900_000,
        '{"a":' * 150_000,
        "[20, 40, 400, 800]" * 50_000,
        "(20,40)," * 100_000,
        "<loc0001>" * 90_000,
    ]
    bombs += ["9" * 990_000, "[" + "9" * 990_000 + "]", "```" * 300_000, "<answer>" * 120_000, "(" + " " * 990_000]
    bombs += ["<ref>" + "a" * 990_000, '[{"label": "' + "\\u0041" * 150_000, "[" + "-" * 990_000, "x" * 2_000_000]
    started = time.process_time()
    _, status = run(BoxIoU, bombs)
    assert set(status) == {Status.INVALID} and time.process_time() - started < 20


COORDINATES = st.one_of(
    st.sampled_from([0, -1, 20, 40, 400, 800, 1e9, -1e9, 1e308, math.nan, math.inf, -math.inf, 2**70, 19.999999, True]),
    st.floats(-100, 5000),
    st.integers(-100, 5000),
)


@given(st.lists(COORDINATES, min_size=4, max_size=4), st.sampled_from(ALL), st.sampled_from(SPACES))
def test_any_four_numbers_are_scored_or_invalid(numbers, reward, input_space):
    output = reward().score([ask(json.dumps(numbers), input_space), ask(json.dumps(TRUE[input_space]), input_space)])
    value, control = output.values[reward.name]
    assert output.status[reward.name][0] in (Status.OK, Status.INVALID)
    assert control == 1 and np.isfinite(value) and (value < 1 or numbers == TRUE[input_space])


@given(st.text(max_size=60) | st.text(st.sampled_from('[](){}<>"`,:.- 0248answerbox/'), max_size=60))
def test_any_text_is_scored_or_invalid(text):
    run(BoxIoU, [text])
