"""Lists of boxes made to break a scorer or to cheat it.

Each gives a score or a status, never an exception; none but the true list is perfect; in any order, it is.
"""

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardContext, RewardInput, Status
from mmrl.rewards.rules.detection import DetectionF1, DetectionMAP, ODLength, WeightedPrecisionRecall
from mmrl.rewards.rules.scheduled_detection import DynamicIoU, ReachableIoU, VisionR1

ALL = [DetectionF1, DetectionMAP, ODLength, WeightedPrecisionRecall, VisionR1, DynamicIoU, ReachableIoU]
GARBAGE = 0.0
VALID_BUT_EMPTY = 1 / 3 + 1e-6  # what Vision-R1 pays for the format alone
TRUE = [([10, 10, 110, 110], "the dog's bowl"), ([200, 10, 300, 110], "cat"), ([10, 200, 110, 300], "cat")]
SIZE = [2000, 4000]


def as_text(boxes):
    return json.dumps([{"bbox_2d": box, "label": label} for box, label in boxes])


def ask(text, true=TRUE, space="norm_1000"):
    answer = [{"box": box, "label": label} for box, label in true]
    references = {"answer": answer, "space": space, "size": SIZE}
    return RewardInput("0", 0, "what is there?", text=text, references=references)


def run(reward, texts, progress=0.0, true=TRUE):
    """Scores and statuses; with the true list, turned around, at the end as the control."""
    batch = [ask(text, true) for text in [*texts, as_text(true[::-1])]]
    output = reward.score(batch, RewardContext(progress=progress))
    values, status = output.values[reward.name], output.status[reward.name]
    assert set(status) <= {Status.OK, Status.INVALID}, output.detail
    assert ((values >= 0) & (values <= 1)).all()
    assert values[-1] == 1 and status[-1] is Status.OK  # the control
    assert (values[:-1] < 1).all(), [text[:60] for text, v in zip(texts, values[:-1], strict=True) if v == 1]
    assert (values[:-1][[s is Status.INVALID for s in status[:-1]]] == GARBAGE).all()
    return values[:-1], status[:-1]


@pytest.mark.parametrize("progress", [0.0, 1.0])
@pytest.mark.parametrize("reward", ALL)
def test_one_malformed_box_makes_the_list_invalid(reward, progress):
    """Otherwise a list of garbage with the true boxes in it would be as good as the true boxes."""
    bad = ["[110, 110, 10, 10]", "[10, 10, 10, 110]", "[NaN, 1, 2, 3]", "[1, 1, 1e999, 9]", "[1, 1, 2, 1000000000]"]
    bad += ["[-500, 1, 2, 3]", '["1", 1, 2, 3]', "[true, 1, 2, 3]", "[1, 2, 3]", "[]", "null", "{}", '"cat"']
    whole = as_text(TRUE)[:-1]
    texts = [f'{whole}, {{"bbox_2d": {box}, "label": "cat"}}]' for box in bad]
    _, status = run(reward(), texts, progress)
    assert set(status) == {Status.INVALID}


@pytest.mark.integration
@pytest.mark.parametrize("progress", [0.0, 1.0])
@pytest.mark.parametrize("reward", ALL)
def test_stuffed_answers_are_not_perfect(reward, progress):
    grid = [([x, y, x + 100, y + 100], "cat") for x in range(0, 500, 50) for y in range(0, 500, 50)]
    texts = [
        as_text([*TRUE, *TRUE]),
        as_text([*TRUE, TRUE[0]]),
        as_text([*TRUE, ([500, 500, 600, 600], "cat")]),
        as_text([*TRUE, ([500, 500, 600, 600], "horse")]),
        as_text([*TRUE, *[([500, 500, 600, 600], f"thing {i}") for i in range(300)]]),
        as_text([(box, label) for box, _ in TRUE for label in ("cat", "the dog's bowl", "horse")]),
        as_text([*TRUE, *grid]),
        as_text(TRUE * 300),
        as_text(TRUE * 10_000),
        as_text([([0, 0, 1000, 1000], "cat")] * 900),
        as_text(TRUE[:-1]),
        as_text([]),
        as_text([(box, None) for box, _ in TRUE]),
        as_text([(box, label.replace("c", "\u0441")) for box, label in TRUE]),  # Cyrillic
        as_text([(box, label + "\u200b") for box, label in TRUE]),  # a space of no width
        as_text([(box, label.replace("'", "\u2019")) for box, label in TRUE]),
        f"<answer>{as_text(TRUE)}</answer><answer>{as_text(TRUE)}</answer>",
        f"```{as_text(TRUE)}```\n```{as_text(TRUE)}```",
        f"{as_text(TRUE)} {as_text(TRUE)}",
        as_text(TRUE).replace('"', "'"),
        "",
        "None",
    ]
    started = time.process_time()
    values, _ = run(reward(), texts, progress)
    assert values[11] <= VALID_BUT_EMPTY and time.process_time() - started < 20


@pytest.mark.parametrize("reward", ALL)
def test_every_form_of_the_true_list_is_perfect(reward):
    text = as_text(TRUE)
    forms = [
        f"```json\n{text}\n```",
        f'{{"objects": {text}}}',
        f'{{"answer": {{"found": {text}, "count": 3}}}}',
        f"<think>three</think><answer>\n{text}\n</answer>",
        " ".join(as_text([box])[1:-1] for box in TRUE),
        json.dumps([{"category": label, "box": box, "confidence": 0.5} for box, label in TRUE]),
        "".join(
            f"<|object_ref_start|>{label}<|object_ref_end|><|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"
            for (x1, y1, x2, y2), label in TRUE
        ),
    ]
    output = reward().score([ask(form) for form in forms])
    assert (output.values[reward.name] == 1).all(), output.detail
    shares = json.dumps([{"box": [edge / 1000 for edge in box], "label": label} for box, label in TRUE])
    pixels = as_text([([x1 * 2, y1 * 4, x2 * 2, y2 * 4], label) for (x1, y1, x2, y2), label in TRUE])
    for space, form in (("norm_1", shares), ("pixel", pixels)):
        assert reward(space=space).score([ask(form)]).values[reward.name] == 1


@pytest.mark.parametrize("reward", ALL)
def test_truncated_lists_are_not_perfect(reward):
    whole = f"```json\n{as_text(TRUE)}\n```"
    run(reward(), [whole[:end] for end in range(0, len(whole), 3)])
    _, status = run(reward(), [as_text(TRUE)[:end] for end in range(len(as_text(TRUE)))])
    assert set(status) == {Status.INVALID}


@pytest.mark.parametrize("reward", ALL)
def test_empty_references_are_matched_by_empty_answers_only(reward):
    """If there is nothing to detect, an answer with boxes or without a valid list is never perfect."""
    for progress in (0.0, 1.0):
        texts = [as_text(TRUE), as_text(TRUE[:1]), "", "nothing", "[[]]", "[", "(", "{}", "[[], []]"]
        values, _ = run(reward(), texts, progress, true=[])
        assert (values <= VALID_BUT_EMPTY).all()


@pytest.mark.integration
@pytest.mark.parametrize("reward", [DetectionF1, DetectionMAP, VisionR1, ReachableIoU])
def test_a_thousand_boxes_are_scored_in_time(reward):
    boxes = [([x, y, x + 9, y + 9], f"thing {x // 10}") for x in range(0, 1000, 40) for y in range(0, 1000, 25)]
    started = time.process_time()
    values, _ = run(reward(), [as_text(boxes[1:]), as_text(boxes[:500])], 1.0, true=boxes)
    assert (values > 0.2).all() and time.process_time() - started < 30


BOXES = st.lists(
    st.tuples(
        st.lists(st.integers(-20, 1020), min_size=4, max_size=4),
        st.sampled_from(["the dog's bowl", "cat", "", "'", '"', "c\u0430t", None, 3]),
    ),
    max_size=6,
)


@given(BOXES, st.sampled_from(ALL), st.floats(0, 1))
def test_any_boxes_are_scored_or_invalid(boxes, reward, progress):
    run(reward(), [as_text(boxes)], progress)


@given(st.permutations(TRUE), st.lists(st.sampled_from(TRUE), max_size=3), st.sampled_from(ALL), st.floats(0, 1))
def test_true_list_is_perfect_in_any_order_but_not_with_duplicates(order, more, reward, progress):
    kind = reward()
    batch = [ask(as_text(order)), ask(as_text([*order, *more]))]
    values = kind.score(batch, RewardContext(progress=progress)).values[kind.name]
    assert values[0] == 1 and (values[1] < 1) == bool(more)


@given(
    st.text(max_size=60) | st.text(st.sampled_from('[](){}<>"`,:.- 0248labelbox/'), max_size=60), st.sampled_from(ALL)
)
def test_any_text_is_scored_or_invalid(text, reward):
    values, _ = run(reward(), [text])
    assert np.isfinite(values).all()
