"""Answers that try to break, or to fool, the rewards for masks, points, moments, tubes and actions on a screen.

Every answer gets a finite score or is invalid, and never an exception; none scores 1 but the perfect one, which does in
every test here.
"""

import json
import math
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmrl.rewards import Status
from mmrl.rewards.rules.gui import GUIAction, PointInBox
from mmrl.rewards.rules.moments import TemporalIoU, TubeIoU
from mmrl.rewards.rules.region_iou import MaskIoU

from ..rules.single_answer import ask, outcome

BOX = [100, 200, 300, 400]
SIZE = {"space": "pixel", "size": [640, 480]}
CASES = {
    "mask_iou": (MaskIoU(), json.dumps(BOX), BOX, SIZE),
    "point_in_box": (PointInBox(), "(200, 300)", BOX, SIZE),
    "temporal_iou": (TemporalIoU(), "[3.2, 7]", [3.2, 7], {}),
    "tube_iou": (TubeIoU(), json.dumps({"1": BOX, "2": BOX}), {"1": BOX, "2": BOX}, SIZE),
    "gui_action": (GUIAction(), "click(200, 300)", {"action": "click", "box": BOX}, SIZE),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)

STRANGE_NUMBERS = [math.nan, math.inf, -math.inf, -1, -1e9, 1e9, 1e308, 0, 1e-300, 10**400, True, None, "100", "１００"]  # noqa: RUF001
NUMBERS = st.one_of(
    st.sampled_from(STRANGE_NUMBERS),
    st.integers(-1000, 1000),
    st.floats(-1e10, 1e10),
)
PIECES = st.sampled_from(
    [
        *["[", "]", "{", "}", "(", ")", ",", ":", '"', "'", "`", "```", "```json\n", "\n", " ", "\\", "-", "~"],
        *["100", "200", "3.2", "7", "00:03", "1e9", "NaN", "Infinity", "-0", "３", "²", "٣", "О", "−"],  # noqa: RUF001
        *[
            "to",
            "and",
            "s",
            "x",
            "=",
            "click(",
            "type('it's')",
            "Action:",
            "start",
            '"box": ',
            '"counts": ',
            '"size": ',
        ],
        *["<think>", "</think>", "<answer>", "</answer>", "<point>", "<|box_start|>", "null", "true", "[]", "{}"],
    ]
)
SOUP = st.lists(PIECES, max_size=30).map("".join)


def perfect(case):
    """The control: the perfect answer scores 1."""
    reward, text, truth, refs = case
    assert outcome(reward, text, truth, **refs) == (1, Status.OK)
    assert outcome(reward, f"<think>[1, 2] or 3?</think>\n<answer>\n{text}\n</answer>", truth, **refs)[0] == 1


def defined(case, text):
    """A finite score in [0, 1], or an invalid answer with its reason: never an exception, never NaN."""
    reward, _, truth, refs = case
    output = reward.score([ask(text, truth, **refs)])
    value, status = float(output.values[reward.name][0]), output.status[reward.name][0]
    assert status in (Status.OK, Status.INVALID), (text[:200], output.detail)
    assert 0 <= value <= 1
    assert status is Status.OK or (value == 0 and output.detail[0][reward.name])
    return value


@EVERY
@given(text=st.one_of(SOUP, st.text(max_size=60)))
@example(text="")
@example(text=" \n")
@example(text="\x00")
@example(text="\ud800")
def test_random_brackets_numbers_and_tags_have_a_defined_score(case, text):
    perfect(case)
    defined(case, text)


def masks(numbers):
    return st.one_of(
        st.lists(numbers, max_size=9),
        st.lists(st.lists(numbers, max_size=3), max_size=5),
        st.fixed_dictionaries({"size": st.lists(numbers, max_size=3), "counts": st.lists(numbers, max_size=5)}),
        st.fixed_dictionaries(
            {"size": st.just([480, 640]), "counts": st.text("0123456789:;<=>?@ABCPQRabcdo", max_size=9)}
        ),
        st.fixed_dictionaries({"size": st.just([480, 640]), "counts": st.lists(st.integers(0, 307200), max_size=4)}),
    )


@given(masks(NUMBERS))
def test_masks_of_special_numbers_are_never_perfect(mask):
    perfect(CASES["mask_iou"])
    value = defined(CASES["mask_iou"], json.dumps(mask))
    assert value < 1 or mask == BOX


@given(NUMBERS, NUMBERS)
def test_points_of_special_numbers_are_right_in_the_box_only(x, y):
    inside = all(type(v) in (int, float) for v in (x, y)) and 100 <= x <= 300 and 200 <= y <= 400
    for name in ("point_in_box", "gui_action"):
        perfect(CASES[name])
        for point in ([x, y], {"x": x, "y": y}, {"action": "click", "coordinate": [x, y]}):
            value = defined(CASES[name], json.dumps(point))
            assert (value == 1) == (inside and (name == "point_in_box" or "action" in point))
        for written in (f"({x}, {y})", f"click({x}, {y})", f"click(point='({x}, {y})')"):
            value = defined(CASES[name], written)
            assert value < 1 or (100 <= float(x) <= 300 and 200 <= float(y) <= 400)


@given(NUMBERS, NUMBERS)
@example(7, 3.2)
@example(3.2, 3.2)
@example(3.2, 7.000000000000001)
@example(3.2, 7 + 1e-9)
def test_spans_of_special_numbers_are_never_perfect(start, end):
    perfect(CASES["temporal_iou"])
    for text in (json.dumps([start, end]), json.dumps([[start, end]]), f"{start} to {end}", f"{start}s - {end}s"):
        assert defined(CASES["temporal_iou"], text) < 1 or (start, end) == (3.2, 7)


@given(
    st.dictionaries(
        st.one_of(st.text(max_size=3), st.sampled_from(["1", "2", "1.0", "-1"])), st.lists(NUMBERS, max_size=5)
    )
)
@example({"1": BOX})
@example({"1": BOX, "2": BOX, "3": BOX})
@example({"2": BOX, "3": BOX})
@example({"1": BOX, "2": [300, 200, 100, 400]})
@example({"1": BOX, "2": [100, 200, 300, 400 + 1e-9]})
def test_tubes_of_special_numbers_are_never_perfect(tube):
    perfect(CASES["tube_iou"])
    assert defined(CASES["tube_iou"], json.dumps(tube)) < 1


@EVERY
@settings(max_examples=40)
@given(data=st.data())
def test_truncated_perfect_answers_are_not_perfect(case, data):
    perfect(case)
    for text in (case[1], f"```json\n{case[1]}\n```", f"<answer>{case[1]}</answer>"):
        cut = text[: data.draw(st.integers(0, len(text) - 2))]
        value = defined(case, cut)
        assert value < 1 or cut.strip().strip("`").strip() == case[1]  # only what is no part of the answer is missing


@EVERY
def test_several_answers_are_invalid_even_if_one_is_perfect(case):
    perfect(case)
    _, text, _, _ = case
    for two in (
        f"<answer>{text}</answer><answer>{text}</answer>",
        f"<answer>{text}</answer> no, <answer>[1, 2]</answer>",
        f"<answer>{text}",
        f"{text}</answer>",
        f"```\n{text}\n```\n```\n{text}\n```",
        f"{text}\n```\n{text}",
        f"<think>{text}",
    ):
        reward, _, truth, refs = case
        assert outcome(reward, two, truth, **refs) == (0, Status.INVALID), two


STUFFED = {
    "mask_iou": f"{BOX} {BOX}",
    "point_in_box": " ".join(f"({x}, {y})" for x in range(0, 640, 20) for y in range(0, 480, 20)),
    "temporal_iou": "[3.2, 7] " + " ".join(str(second) for second in range(60)),
    "tube_iou": json.dumps({"1": [BOX, BOX]}),
    "gui_action": "click(200, 300) click(0, 0) press_back() scroll('up') scroll('down')",
}


@pytest.mark.parametrize("name", CASES)
def test_answers_with_every_option_are_invalid(name):
    perfect(CASES[name])
    assert defined(CASES[name], STUFFED[name]) == 0


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("mask_iou", ["{} and 5 5 30 30", "{} (1,1),(2,2)", "```json\n{}\n``` or 5,5,30,30", "7 {}"]),
        ("tube_iou", ["{} 5 5 5", "```{}``` (1,1),(2,2)"]),
        ("temporal_iou", ["{} minutes", "{} %", "- {}", "not {}", "```{}``` 9", "[] {}"]),
    ],
)
def test_answers_beside_another_are_invalid(name, texts):
    perfect(CASES[name])
    reward, right, truth, refs = CASES[name]
    for text in texts:
        assert outcome(reward, text.replace("{}", right), truth, **refs) == (0, Status.INVALID), text


def test_covering_the_whole_image_is_never_perfect():
    whole = np.array([0, 0, 640, 480]).tolist()
    for name, text in (
        ("mask_iou", json.dumps(whole)),
        ("mask_iou", json.dumps([BOX, whole])),
        ("mask_iou", '{"size": [480, 640], "counts": [0, 307200]}'),
        ("temporal_iou", "[0, 1e9]"),
        ("temporal_iou", json.dumps([[second, second + 1] for second in range(100)])),
        ("tube_iou", json.dumps({str(frame): BOX for frame in range(1000)})),
        ("tube_iou", json.dumps({"1": whole, "2": whole})),
    ):
        perfect(CASES[name])
        assert 0 < defined(CASES[name], text) < 0.5


@pytest.mark.parametrize("name", CASES)
def test_order_and_repetition_of_regions_are_ignored(name):
    case = CASES[name]
    same = {
        "mask_iou": [json.dumps([[200, 200, 300, 400], [100, 200, 200, 400]]), json.dumps([BOX, BOX, BOX])],
        "point_in_box": ["(200,300)", " ( 200.0 , 300.000 ) "],
        "temporal_iou": ["[[5, 7], [3.2, 5]]", "3.2 to 7, 3.2 to 7, 4 to 5"],
        "tube_iou": [json.dumps({"2": BOX, "1": BOX}), json.dumps([{"frame": f, "box": BOX} for f in (2, 1)])],
        "gui_action": ["click(y=300, x=200)", '{"coordinate": [200, 300], "action": "click"}'],
    }
    for text in [
        *same[name],
        f"```json\n{same[name][0]}\n```" if name != "gui_action" else f"```\n{same[name][0]}\n```",
    ]:
        assert defined(case, text) == 1, text


def test_apostrophes_and_brackets_in_labels_are_ignored():
    label = 'the driver\'s "cab" [2] {3}'
    for name, text in (
        ("mask_iou", json.dumps({"bbox_2d": BOX, "label": label})),
        ("point_in_box", json.dumps({"point_2d": [200, 300], "label": label})),
        ("temporal_iou", json.dumps({"start": 3.2, "end": 7, "label": label})),
        ("tube_iou", json.dumps([{"frame": f, "box": BOX, "label": label} for f in (1, 2)])),
        ("gui_action", json.dumps({"action": "click", "point": [200, 300], "thought": label})),
        ("gui_action", str({"action": "click", "point": (200, 300), "thought": label})),
    ):
        assert defined(CASES[name], text) == 1, text
    truth = {"action": "type", "text": label}
    reward = GUIAction(match="exact")
    for text in (json.dumps({"action": "type", "text": label}), f"type(content={label!r})"):
        assert outcome(reward, text, truth)[0] == 1
    assert outcome(reward, 'type(content="the drivers cab")', truth)[0] == 0.5


BOMBS = {
    "brackets": "[" * 900_000,
    "braces": '{"a":' * 100_000,
    "calls": "click(" * 1000,
    "quotes": "type('" + "\\" * 9000,
    "long": "1" * 999_999,
    "too long": "1" * 1_000_001,
    "numbers": "1 to 2, " * 900,
    "pairs": "[3, 7], " * 1200,
    "clock": "0:" * 4900 + "0 to 1",
    "dashes": "-" * 9990,
    "spaces": " " * 900_000 + "x",
    "dots": "1." * 4900,
    "boxes": json.dumps([BOX] * 10_000),
    "frames": json.dumps({str(frame): BOX for frame in range(10_000)}),
    "polygon": json.dumps([[i % 600, i % 470] for i in range(30_000)]),
    "size": '{"size": [1000000000, 1000000000], "counts": [1000000000000000000]}',
    "runs": '{"size": [480, 640], "counts": [' + "0," * 400_000 + "307200]}",
    "counts": '{"size": [480, 640], "counts": "' + "0" * 900_000 + '"}',
    "digits": "[" + "9" * 100_000 + ", 1]",
    "tags": "<answer>" * 100_000,
}


@EVERY
@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_huge_inputs_are_rejected_quickly(case, bomb):
    started = time.thread_time()
    assert defined(case, bomb) < 1
    assert time.thread_time() - started < 10  # CPU seconds; about 1 on an ordinary machine
