"""Parsing boxes from answers, and rejecting ambiguous or malformed ones."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.parsing.boxes import (
    MAX_BOXES,
    LabelledBox,
    check_box,
    check_space,
    convert_box,
    parse_box,
    parse_boxes,
    parse_labelled_boxes,
    true_boxes,
)
from mmrl.rewards.parsing.json_text import decode_json, json_values

BOX = (10.0, 20.0, 110.0, 220.0)


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 110, 220]",
        "[[10, 20, 110, 220]]",
        "[10.0, 2e1, 110, 220]",
        '{"bbox_2d": [10, 20, 110, 220]}',
        '{"bbox": [10, 20, 110, 220], "label": null}',
        '[{"box": [10, 20, 110, 220]}]',
        '```json\n[{"bbox_2d": [10, 20, 110, 220]}]\n```',
        "Here it is:\n```\n[10, 20, 110, 220]\n```\nThe dog sits there (left).",
        "The dog is at [10, 20, 110, 220].",
        '{"objects": [{"bbox_2d": [10, 20, 110, 220]}], "count": 1}',
        '{"answer": {"found": {"box": [10, 20, 110, 220]}}}',
        "(10,20),(110,220)",
        "( 10 , 20 ) ( 110 , 220 )",
        "<|box_start|>(10,20),(110,220)<|box_end|>",
        "<box>(10,20),(110,220)</box>",
    ],
)
def test_single_boxes_are_read_in_every_form(text):
    assert parse_box(text, "pixel") == BOX
    assert [found.label for found in parse_labelled_boxes(text, "pixel")] == [None]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('[{"bbox_2d": [10, 20, 110, 220], "label": "the dog\'s bowl"}]', ["the dog's bowl"]),
        ('[{"bbox": [10, 20, 110, 220], "category": "Straße"}]', ["Straße"]),
        ('[{"label": "a", "box": [10, 20, 110, 220]}, {"box": [10, 20, 110, 220], "label": "b"}]', ["a", "b"]),
        ("<|object_ref_start|>dog (big)<|object_ref_end|><|box_start|>(10,20),(110,220)<|box_end|>", ["dog (big)"]),
        ("<ref>dogs</ref><box>(10,20),(110,220)</box><box>(10,20),(110,220)</box>", ["dogs", "dogs"]),
        ("<ref>a</ref>(10,20),(110,220)<ref>b</ref>(10,20),(110,220)", ["a", "b"]),
    ],
)
def test_labels_are_read_verbatim(text, labels):
    assert parse_labelled_boxes(text, "pixel") == [LabelledBox(BOX, label) for label in labels]


def test_scores_are_read():
    text = '[{"bbox": [10, 20, 110, 220], "score": 0.5}, {"bbox": [10, 20, 110, 220], "confidence": 1}]'
    assert [found.score for found in parse_labelled_boxes(text, "pixel")] == [0.5, 1.0]


def test_paligemma_tokens_are_y_first_fractions():
    text = "<loc0128><loc0256><loc0512><loc0768> dog ; <loc0000><loc0000><loc1023><loc1023> cat"
    dog, cat = parse_labelled_boxes(text, "norm_1")
    assert dog == LabelledBox((0.25, 0.125, 0.75, 0.5), "dog") and cat.label == "cat"
    assert parse_boxes(text, "norm_1000")[0] == (250.0, 125.0, 750.0, 500.0)
    assert parse_boxes(text, "pixel", (200, 400))[0] == (50.0, 50.0, 150.0, 200.0)
    for wrong in ("<loc0128><loc0256><loc0512>", "<loc0512><loc0256><loc0128><loc0768>", "<loc128>" * 4):
        with pytest.raises(InvalidAnswer):
            parse_boxes(wrong, "norm_1")
    with pytest.raises(InvalidAnswer, match="size is not known"):
        parse_boxes(text, "pixel")


@pytest.mark.parametrize("text", ["[]", "```json\n[]\n```", "None", " none ", "null", '{"objects": []}'])
def test_empty_answers_are_read_as_no_boxes(text):
    assert parse_boxes(text, "pixel") == []
    with pytest.raises(InvalidAnswer, match="there are 0 boxes, not one"):
        parse_box(text, "pixel")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no box"),
        ("the dog is on the left", "no box"),
        ("10, 20, 110, 220", "no box"),
        ("[10, 20, 110]", "four numbers"),
        ("[10, 20, 110, 220, 1]", "four numbers"),
        ('[10, 20, 110, "220"]', "not a number"),
        ("[10, 20, 110, true]", "not a number"),
        ("[10, 20, 110, null]", "not a number"),
        ("[10, 20, 110, NaN]", "NaN is not a number"),
        ("[10, 20, 110, Infinity]", "Infinity is not a number"),
        ("[-Infinity, 20, 110, 220]", "-Infinity is not a number"),
        ("[10, 20, 110, 1e999]", "not finite"),
        (f"[10, 20, 110, 1{'0' * 400}]", "too large"),
        (f"[10, 20, 110, 1{'0' * 5000}]", "not JSON"),
        ("[110, 220, 10, 20]", "swapped"),
        ("[110, 20, 10, 220]", "swapped"),
        ("(110,220),(10,20)", "swapped"),
        ("[10, 20, 10, 220]", "no area"),
        ("[10, 20, 110, 20]", "no area"),
        ("[10, 20, 10.00000000001, 220]", "no area"),
        ("[-200000, 20, 110, 220]", "outside"),
        ("[10, 20, 1000000000, 220]", "outside"),
        ('[{"bbox_2d": [10, 20, 110, 220]', "not JSON"),
        ('[{"bbox_2d": [10, 20, 110, 220]}, {"bbox_2d": [10, 2', "not JSON"),
        ("[10, 20, 110, 220]]", "has no opening bracket"),
        ("```json\n[10, 20, 110, 220]", "never closed"),
        ("```[10, 20, 110, 220]``` or ```[11, 20, 110, 220]```", "2 fenced blocks"),
        ("[{'bbox_2d': [10, 20, 110, 220]}]", "not JSON"),
        ('{"bbox_2d": [10, 20, 110, 220], "bbox_2d": [1, 2, 3, 4]}', "occurs twice"),
        ('{"bbox_2d": [10, 20, 110, 220], "bbox": [1, 2, 3, 4]}', "both bbox_2d and bbox"),
        ('{"bbox": [10, 20, 110, 220], "label": "a", "category": "b"}', "both label and category"),
        ('{"bbox": [10, 20, 110, 220], "label": 3}', "a label is 3"),
        ('{"bbox": [10, 20, 110, 220], "label": ["dog"]}', "a label is"),
        ('{"bbox": [10, 20, 110, 220], "score": 1.5}', "not in"),
        ('{"bbox": [10, 20, 110, 220], "score": "high"}', "not a number"),
        ('{"bbox": null}', "four numbers"),
        ('{"bbox": {"x1": 10, "y1": 20, "x2": 110, "y2": 220}}', "four numbers"),
        ('{"label": "dog"}', "none of the keys"),
        ('{"dogs": [[10, 20, 110, 220]], "cats": [[10, 20, 110, 220]]}', "none of the keys"),
        ("{}", "none of the keys"),
        ("[[], [10, 20, 110, 220]]", "empty list"),
        ('["dog", [10, 20, 110, 220]]', "four numbers"),
        ("[" * 12 + "10, 20, 110, 220" + "]" * 12, "deep"),
        ("[" * 100_000, "too deep"),
        ('{"a":' * 100_000, "too deep"),
        ("(10,20),(110,", "opens no pair"),
        ("(10,20)", "opens no pair"),
        ("(10,20),(110,220) (see there)", "opens no pair"),
        ("(\uff11\uff10,20),(110,220)", "opens no pair"),  # full-width digits
        ("\uff3b10, 20, 110, 220\uff3d", "no box"),  # full-width brackets
    ],
)
def test_malformed_boxes_are_invalid_with_a_reason(text, reason):
    with pytest.raises(InvalidAnswer, match=reason):
        parse_boxes(text, "pixel")


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 110, 220] and 30,30,40,40",
        "3 or [10, 20, 110, 220]",
        "[10, 20, 110, 220] (1,1),(2,2)",
        "[10, 20, 110, 220] \u0663",
        "```json [10, 20, 110, 220]``` or (1,1),(2,2)",
        "(1,1),(2,2) ```json [10, 20, 110, 220]```",
        "```(10,20),(110,220)``` [1, 1, 2, 2]",
        "(10, 20), (110, 220) 5,5,6,6",
        "[] [10, 20, 110, 220]",
        "[10, 20, 110, 220] []",
        '{"boxes": []} [10, 20, 110, 220]',
        "[] (10,20),(110,220)",
        '[{"boxes": []}, [10, 20, 110, 220]]',
        '{"bbox": [10, 20, 110, 220], "other": [[1, 1, 2, 2]]}',
        '{"bbox": [10, 20, 110, 220], "other": {"boxes": [{"at": [1, 1, 2, 2]}]}}',
        "<loc0020><loc0010><loc0220><loc0110> dog (1,1),(2,2)",
        "<loc0020><loc0010><loc0220><loc0110> dog; 1 1 2 2",
        "[1, 1, 2, 2] <loc0020><loc0010><loc0220><loc0110>",
        "[] <loc0020><loc0010><loc0220><loc0110>",
    ],
)
def test_ambiguous_boxes_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_boxes(text, "norm_1000")


@pytest.mark.parametrize(
    "text",
    [
        "The bbox_2d is:\n```json\n[10, 20, 110, 220]\n```\nIt (the dog) sits there.",
        '{"bbox": [10, 20, 110, 220], "label": "dog 2 [3] (4, 5)"}',
        '{"bbox": [10, 20, 110, 220], "id": 7, "attributes": ["red", "big"]}',
        "<ref>dog 2</ref><box>(10,20),(110,220)</box>",
    ],
)
def test_words_without_digits_and_labels_with_them_are_ignored(text):
    assert parse_boxes(text, "pixel") == [BOX]


def test_coordinates_may_exceed_the_image_by_one_hundredth():
    assert check_box((-10, 0, 1010, 1000), "norm_1000") == (-10, 0, 1010, 1000)  # as it stands: not clipped
    assert check_box((-6.4, 0, 640, 484.8), "pixel", (640, 480)) == (-6.4, 0, 640, 484.8)
    for box, space, size in [
        ((-10.1, 0, 500, 500), "norm_1000", None),
        ((0, 0, 500, 1010.1), "norm_1000", None),
        ((0, 0, 500, 500), "norm_1", None),
        ((0, 0, 646.5, 480), "pixel", (640, 480)),
        ((700, 10, 710, 20), "pixel", (640, 480)),
    ]:
        with pytest.raises(InvalidAnswer, match="outside the picture"):
            check_box(box, space, size)


def test_non_finite_numbers_are_invalid():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(InvalidAnswer, match="not finite"):
            check_box((0, 0, 1, value), "pixel")


def test_too_many_boxes_are_invalid_quickly():
    one = [1, 2, 3, 4]
    assert len(parse_boxes(json.dumps([one] * MAX_BOXES), "pixel")) == MAX_BOXES
    for text in (json.dumps([one] * 10_000), "(1,2),(3,4) " * 10_000, "<loc0001><loc0001><loc0002><loc0002> " * 10_000):
        started = time.process_time()
        with pytest.raises(InvalidAnswer, match=f"more than {MAX_BOXES}"):
            parse_boxes(text, "norm_1000")
        assert time.process_time() - started < 2


@pytest.mark.integration
def test_hostile_texts_are_parsed_in_linear_time():
    bombs = [
        "(" * 300_000,
        "(1,2)" + " " * 900_000 + ",",
        "(1," * 250_000,
        "<ref>" * 180_000,
        "<ref>" + "(" * 900_000,
        "<loc0000>" * 100_001,
        "[] " * 300_000,
        "[" + "1," * 400_000,
        '{"a":1}' * 120_000,
        json.dumps(dict.fromkeys(map(str, range(40_000)), 1))[:-1] + ', "a": 1, "a": 2}',
        "```" * 300_000,
        "9" * 900_000,
        "(" + "9" * 900_000,
    ]
    for bomb in bombs:
        started = time.process_time()
        try:
            found = parse_boxes(bomb, "pixel")
        except InvalidAnswer:
            found = []
        assert found == [] and time.process_time() - started < 3, bomb[:20]


def test_spaces_convert_into_each_other():
    assert convert_box((0.1, 0.2, 0.5, 1.0), "norm_1", "norm_1000") == (100.0, 200.0, 500.0, 1000.0)
    assert convert_box((64, 48, 320, 480), "pixel", "norm_1", (640, 480)) == (0.1, 0.1, 0.5, 1.0)
    assert convert_box((100, 100, 500, 1000), "norm_1000", "pixel", (640, 480)) == (64.0, 48.0, 320.0, 480.0)
    assert convert_box(BOX, "pixel", "pixel") == BOX
    with pytest.raises(ScoringFailed, match=r"references\['size'\]"):
        convert_box(BOX, "pixel", "norm_1")
    with pytest.raises(RewardError, match="space is 'pixels'"):
        check_space("box_iou", "pixels")


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_thousandths_and_fractions_compare_equal(edges):
    box = tuple(map(float, edges))
    written = tuple(float(f"{edge / 1000:.3f}") for edge in edges)
    assert convert_box(box, "norm_1000", "norm_1") == written


def test_references_are_read_in_every_form():
    listed = [{"box": [10, 20, 110, 220], "label": "dog"}]
    for answer in (listed, listed[0], json.dumps(listed)):
        truth = true_boxes({"answer": answer, "space": "pixel"})
        assert truth.boxes == (LabelledBox(BOX, "dog"),) and truth.labelled and truth.answer_space == "pixel"
    assert true_boxes({"answer": list(BOX), "space": "pixel"}).boxes == (LabelledBox(BOX),)
    assert true_boxes({"answer": [], "space": "pixel", "size": [640, 480]}, "norm_1").boxes == ()


@pytest.mark.parametrize(
    ("references", "reason"),
    [
        ({"answer": [110, 20, 10, 220], "space": "pixel"}, "swapped"),
        ({"answer": "somewhere", "space": "pixel"}, "no box"),
        ({"answer": list(BOX), "space": "pixels"}, "space"),
        ({"answer": list(BOX), "space": "pixel", "size": [0, 480]}, "size"),
        ({"answer": list(BOX), "space": "pixel", "size": "640x480"}, "size"),
        ({"answer": list(BOX), "space": "norm_1"}, "outside"),
        ({"answer": [{"box": list(BOX), "label": "a"}, {"box": list(BOX)}], "space": "pixel"}, "1 of 2 boxes"),
    ],
)
def test_malformed_references_are_scorer_failures(references, reason):
    with pytest.raises(ScoringFailed, match=reason) as failure:
        true_boxes(references)
    assert failure.value.kind == "reference"


def test_single_json_values_are_found_among_words():
    assert decode_json('So: {"a": [1, {"b": null}]}. Done') == {"a": [1, {"b": None}]}
    assert json_values("[1] and [2]") == [[1], [2]]
    with pytest.raises(InvalidAnswer, match="there are 2"):
        decode_json("[1] and [2]")
    with pytest.raises(InvalidAnswer, match="there are 0"):
        decode_json("nothing")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["box", "label", "a"]), inner),
    max_leaves=10,
)


@pytest.mark.integration
@given(st.text(st.sampled_from('[](){}<>"`,:.-+0123456789eEloc_Naif \n'), max_size=80) | JSON.map(json.dumps))
def test_any_text_is_boxes_or_invalid(text):
    try:
        boxes = parse_boxes(text, "norm_1000")
    except InvalidAnswer:
        return
    assert all(-10 <= x1 < x2 <= 1010 and -10 <= y1 < y2 <= 1010 for x1, y1, x2, y2 in boxes)
