"""Actions on a screen, by hand and against a matching of words."""

import json
import random

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.gui import GUIAction, text_match

from .single_answer import outcome, value

BOX = [300, 200, 340, 280]
CLICK = {"action": "click", "box": BOX}
TYPE = {"action": "type", "text": "red big box"}
PIXEL = {"space": "pixel", "size": [640, 480]}


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ('{"action": "click", "coordinate": [320, 240]}', CLICK, 1),
        ("click(300, 280)", CLICK, 1),
        ("<think>so</think><answer>tap(340, 200)</answer>", CLICK, 1),
        ("click(341, 240)", CLICK, 0.5),
        ("click()", CLICK, 0.5),
        ("long_press(320, 240)", CLICK, 0),
        ("type(content='red big box')", TYPE, 1),
        ("type(content=' Red  big box ')", TYPE, 1),
        ("type(content='red box')", TYPE, (1 + 0.8) / 2),
        ("type(content='blue')", TYPE, 0.5),
        ("type()", TYPE, 0.5),
        ("type()", {"action": "type", "text": ""}, 0.5),
        ("type(content='')", {"action": "type", "text": ""}, 1),
        ("type(content='Action: go')", {"action": "type", "text": "Action: go"}, 1),
        ("press_back()", {"action": "back"}, 1),
        ("{'action': 'press_back', 'point': [-100, -100], 'input_text': 'no input text'}", {"action": "back"}, 1),
        ("scroll(direction='Down')", {"action": "scroll", "text": "down"}, 1),
        ("scroll(direction='up')", {"action": "scroll", "text": "down"}, 0.5),
        ("swipe(direction='down')", {"action": "scroll", "text": "down"}, 0),
        ("type(320, 240, 'red')", {"action": "type", "box": BOX, "text": "red"}, 1),
        ("type(0, 0, 'red')", {"action": "type", "box": BOX, "text": "red"}, 2 / 3),
    ],
)
def test_actions_by_hand(text, truth, score):
    assert value(GUIAction(), text, truth, **PIXEL) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("click(320, 240)", CLICK, 1),
        ("click(341, 240)", CLICK, 0.5),
        ("long_press(320, 240)", CLICK, 0.5),
        ("long_press(341, 240)", CLICK, 0),
        ("scroll('down')", CLICK, 0),
        ("click(320, 240, 'red big box')", {"action": "type", "box": BOX, "text": "red big box"}, 2 / 3),
        ("write('red box')", TYPE, (1 + 0.8) / 2),
        ("finished('red box')", TYPE, 0.4),
        ("swipe('down')", {"action": "scroll", "text": "down"}, 0.5),
        ("type('down now')", {"action": "scroll", "text": "down"}, 0),
        ("click()", {"action": "back"}, 0),
    ],
)
def test_published_parts_count_each_by_itself(text, truth, score):
    assert value(GUIAction(published=True), text, truth, **PIXEL) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "name", "published", "score"),
    [
        ("tap(320, 240)", "tap", False, 1),
        ("click(320, 240)", "tap", False, 0),
        ("click(320, 240)", "tap", True, 0.5),
        ("{'action': 'tap', 'point': [320, 240]}", "tap", False, 1),
        ("left_click(320, 240)", "tap", True, 0.5),
    ],
)
def test_without_aliases_an_action_has_the_name_of_the_reference(text, name, published, score):
    truth = CLICK | {"action": name}
    assert value(GUIAction(published=published, aliases=False), text, truth, **PIXEL) == pytest.approx(score)
    assert value(GUIAction(published=published), text, truth, **PIXEL) == 1


def test_weights_apply_to_requested_parts():
    reward = GUIAction(action=1, point=2, text=5)
    assert value(reward, "click(0, 0)", CLICK, **PIXEL) == pytest.approx(1 / 3)
    assert value(reward, "type(content='no')", TYPE, **PIXEL) == pytest.approx(1 / 6)
    assert value(reward, "click(320, 240)", CLICK, **PIXEL) == 1


def test_small_weights_keep_wrong_answers_below_perfect():
    assert value(GUIAction(point=1e-12), "click(0, 0)", CLICK, **PIXEL) < 1
    assert value(GUIAction(text=1e-12), "type('no')", TYPE, **PIXEL) < 1


def test_texts_may_be_compared_by_character():
    reward = GUIAction(match="exact")
    assert value(reward, "type(content='red big box')", TYPE, **PIXEL) == 1
    for near in ("Red big box", "red  big box", "red big", "rеd big box"):  # noqa: RUF001
        assert value(reward, f"type(content={near!r})", TYPE, **PIXEL) == 0.5


def test_500_random_texts_equal_the_largest_word_matching():
    rng = random.Random(0)
    for _ in range(500):
        answer, truth = (rng.choices(["red", "Big", "box", "it's", "三"], k=rng.randrange(7)) for _ in range(2))
        if not answer and not truth:
            continue
        equal = np.array([[a.lower() == b.lower() for b in truth] for a in answer], int).reshape(
            len(answer), len(truth)
        )
        shared = (maximum_bipartite_matching(csr_matrix(equal)) >= 0).sum() if equal.size else 0
        score = text_match(" ".join(answer), " \n".join(truth))
        assert score == pytest.approx(2 * shared / (len(answer) + len(truth)), abs=1e-6)
        same = [word.lower() for word in answer] == [word.lower() for word in truth]
        assert (np.float32(score) == 1) == same


def test_reordered_words_are_not_perfect():
    assert 0.99 < value(GUIAction(), "type(content='big red box')", TYPE, **PIXEL) < 1
    assert value(GUIAction(), "type(content='red big box box')", TYPE, **PIXEL) < 1


def test_points_may_use_another_space_than_the_box():
    text = json.dumps({"action": "click", "coordinate": [500, 500]})
    assert value(GUIAction(space="norm_1000"), text, CLICK, **PIXEL) == 1
    assert value(GUIAction(space="norm_1000"), "click(468.75, 500)", CLICK, **PIXEL) == 1
    assert value(GUIAction(space="norm_1000"), "click(468, 500)", CLICK, **PIXEL) == 0.5
    assert outcome(GUIAction(space="norm_1"), "click(0.5, 0.5)", CLICK, space="pixel")[1] is Status.ERROR


@pytest.mark.parametrize(
    "text",
    [
        "",
        "click",
        "click(320, 240",
        "click(320, 240) click(100, 100)",
        "click([320, 240], point=[100, 100])",
        "click(320)",
        "click(320, 240, 340, 280)",
        "click(1000000000, 240)",
        "click(-320, 240)",
        "click(point='(３20, 240)')",  # noqa: RUF001
        '{"action": "click", "coordinate": [NaN, 240]}',
        '{"action": "click", "coordinate": "here"}',
        "[{'action': 'click', 'point': [320, 240]}, {'action': 'press_back'}]",
        "<answer>click(320, 240)</answer><answer>press_back()</answer>",
    ],
)
def test_malformed_answers_are_invalid(text):
    assert outcome(GUIAction(), text, CLICK, **PIXEL) == (0, Status.INVALID)


@pytest.mark.parametrize(
    "truth",
    [
        "click",
        {"box": BOX},
        {"action": 3},
        {"action": "click", "bbox": BOX},
        {"action": "click", "box": [340, 200, 300, 280]},
        {"action": "click", "box": [BOX, BOX]},
        {"action": "type", "text": 5},
    ],
)
def test_malformed_references_are_scorer_failures(truth):
    assert outcome(GUIAction(), "click(320, 240)", truth, **PIXEL)[1] is Status.ERROR


@pytest.mark.parametrize(
    "wrong", [{"action": 0}, {"point": -1}, {"text": float("nan")}, {"match": "fuzzy"}, {"space": "percent"}]
)
def test_invalid_arguments_are_rejected(wrong):
    with pytest.raises(RewardError, match=next(iter(wrong))):
        GUIAction(**wrong)
