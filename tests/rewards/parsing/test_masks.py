"""Masks out of answers, against pycocotools and numpy."""

import json
import time

import numpy as np
import pytest
from pycocotools import mask as coco

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.parsing.masks import Canvas, mask_from_json, parse_mask

SMALL = Canvas(20, 10, "pixel")
BIG = Canvas(4096, 4096, "pixel")


def runs(mask):
    """Run lengths in columns, counted by hand."""
    flat = mask.flatten(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff([0, *edges, flat.size]).tolist()
    return [0, *lengths] if flat[0] else lengths


def random_mask(rng):
    height, width = rng.integers(1, 40, 2)
    return (rng.random((height, width)) < rng.choice([0.02, 0.5, 0.9])).astype(np.uint8)


@pytest.mark.integration
def test_500_random_masks_round_trip_in_all_three_encodings():
    rng = np.random.default_rng(0)
    for _ in range(500):
        mask = random_mask(rng)
        height, width = mask.shape
        compressed = coco.encode(np.asfortranarray(mask))
        size = [height, width]
        canvas = Canvas(int(width), int(height), None)
        texts = [
            json.dumps({"size": [int(side) for side in size], "counts": compressed["counts"].decode()}),
            json.dumps({"size": [int(side) for side in size], "counts": runs(mask)}),
        ]
        for text in texts:
            np.testing.assert_array_equal(coco.decode(parse_mask(text, canvas)), mask)
        np.testing.assert_array_equal(coco.decode(mask_from_json(compressed, canvas)), mask)  # counts as bytes


def test_long_and_empty_runs_are_read():
    canvas = Canvas(30_000, 30_000, None)
    area = 30_000**2
    text = json.dumps({"size": [30_000, 30_000], "counts": [5, 0, area - 6, 1, 0, 0]})
    assert coco.area(parse_mask(text, canvas)) == 1
    text = json.dumps({"size": [30_000, 30_000], "counts": [0, area - 6, 0, 4, 2]})
    assert coco.area(parse_mask(text, canvas)) == area - 2


@pytest.mark.parametrize(
    "text",
    [
        "[2, 3, 6, 8]",
        "[[2, 3, 6, 8]]",
        '{"bbox_2d": [2, 3, 6, 8], "label": "dog"}',
        "[2, 3, 6, 3, 6, 8, 2, 8]",
        "[[2, 3], [6, 3], [6, 8], [2, 8]]",
        "[[[2, 3], [6, 3], [6, 8], [2, 8]]]",
        '{"segmentation": [[2, 3, 6, 3, 6, 8, 2, 8]]}',
        '{"polygon": [[2, 3], [6, 3], [6, 8], [2, 8]]}',
        "[[2, 3, 4, 8], [4, 3, 6, 8]]",
        "[[2, 3, 5, 8], [3, 3, 6, 8]]",  # they overlap
        '```json\n{"polygons": [[2, 3, 6, 3, 6, 8, 2, 8]]}\n```',
        "It is here: [2, 3, 6, 8]",
    ],
)
def test_polygons_and_boxes_are_filled_and_united(text):
    expected = np.zeros((10, 20), np.uint8)
    expected[3:8, 2:6] = 1
    np.testing.assert_array_equal(coco.decode(parse_mask(text, SMALL)), expected)


def test_shapes_may_be_in_any_space():
    expected = coco.decode(parse_mask("[2, 3, 6, 8]", SMALL))
    for text, space in (("[0.1, 0.3, 0.3, 0.8]", "norm_1"), ("[100, 300, 300, 800]", "norm_1000")):
        np.testing.assert_array_equal(coco.decode(parse_mask(text, Canvas(20, 10, space))), expected)
    with pytest.raises(ScoringFailed, match="space"):
        parse_mask("[2, 3, 6, 8]", Canvas(20, 10, None))


def test_empty_lists_are_empty_masks():
    assert coco.area(parse_mask("[]", SMALL)) == 0
    assert coco.area(parse_mask('{"size": [10, 20], "counts": [200]}', SMALL)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a dog",
        "[1, 2, 3]",
        "[1, 2, 3, 4, 5]",
        "[[1, 2], [3, 4]]",
        "[[], [2, 3, 6, 8]]",
        "[6, 3, 2, 8]",
        "[2, 3, 2, 8]",
        "[1, 1, 5, 5, 9, 9]",  # a line
        "[1.2, 1.2, 1.3, 1.3]",  # between pixels
        "[-5, 3, 6, 8]",
        "[2, 3, 6, 1e9]",
        "[2, 3, 6, NaN]",
        "[2, 3, 6, 1e999]",
        "[0, 0, 0, 9, 1e9, 9]",
        "[2, 3, 6, true]",
        '[2, 3, 6, "8"]',
        "[2, 3, 6, 8",
        "[2, 3, 6, 8] [2, 3, 6, 8]",
        '{"box": [2, 3, 6, 8], "polygon": [2, 3, 6, 3, 6, 8]}',
        '{"label": "dog"}',
        '{"mask": null}',
        "[" * 6 + "2, 3, 6, 8" + "]" * 6,
        '{"counts": [200]}',
        '{"size": [20, 10], "counts": [200]}',
        '{"size": "10, 20", "counts": [200]}',
        '{"size": [10, 20], "counts": [199]}',
        '{"size": [10, 20], "counts": [201]}',
        '{"size": [10, 20], "counts": [-1, 201]}',
        '{"size": [10, 20], "counts": [100.0, 100.0]}',
        '{"size": [10, 20], "counts": [true, 199]}',
        '{"size": [10, 20], "counts": null}',
        '{"size": [10, 20], "counts": 200}',
        '{"size": [10, 20], "counts": []}',
        '{"size": [10, 20], "counts": ""}',
        '{"size": [10, 20], "counts": "P"}',  # breaks off
        '{"size": [10, 20], "counts": "h6~"}',
        '{"size": [10, 20], "counts": "oooooooooooooooo0"}',
        '{"size": [10, 20], "counts": "O"}',  # negative
        '{"size": [10, 20], "counts": [' + "9" * 5000 + "]}",
    ],
)
def test_texts_that_are_no_mask_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_mask(text, SMALL)


def zigzag(strokes, length):
    return [coordinate for i in range(strokes) for coordinate in (length * (i % 2), 4000 * i / strokes)]


@pytest.mark.parametrize(
    "text",
    [
        '{"size": [1000000000, 1000000000], "counts": [1000000000000000000]}',
        '{"size": [4096, 4096], "counts": "' + "1" * 900_000 + '"}',
        '{"size": [4096, 4096], "counts": [' + "1," * 300_000 + "16477216]}",
        json.dumps(zigzag(3000, 4000)),
        json.dumps([zigzag(200, 100)] * 201),
        json.dumps(zigzag(30_000, 1)),
        "[" * 500_000,
        '{"size": [4096, 4096], "counts": "' + "o" * 900_000 + '"}',
    ],
    ids=["size", "compressed", "runs", "outline", "shapes", "corners", "brackets", "digits"],
)
def test_huge_masks_are_rejected_quickly(text):
    started = time.thread_time()
    with pytest.raises(InvalidAnswer):
        parse_mask(text, BIG)
    assert time.thread_time() - started < 10  # CPU seconds; about 1 on an ordinary machine


def test_masks_just_within_the_limits_are_read():
    assert coco.area(parse_mask(json.dumps(zigzag(190, 4000)), BIG)) > 0
