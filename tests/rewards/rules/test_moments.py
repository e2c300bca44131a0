"""Overlaps in time, against a fine grid, torchvision and by hand."""

import json
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import ops

from mmrl.rewards import RewardError, Status
from mmrl.rewards.parsing.spans import merge_spans
from mmrl.rewards.rules.moments import TemporalIoU, TubeIoU, temporal_iou, tube_iou

from .single_answer import ask, outcome, value


@pytest.mark.parametrize(
    ("text", "truth", "score"),
    [
        ("[3, 7]", [3, 7], 1),
        ("[3, 7]", [5, 9], 2 / 6),
        ("[3, 7]", [7, 9], 0),
        ("[3, 7]", [8, 9], 0),
        ("[3, 7]", [4, 5], 1 / 4),
        ("0 to 2 and 4 to 6", [[0, 6]], 4 / 6),
        ("[[4, 6], [0, 3], [2, 4]]", [[0, 6]], 1),
        ("<answer>00:03 - 00:07</answer>", {"start": 3, "end": 7}, 1),
        ("01:23.4 to 02:00", [83.4, 120], 1),
        ("[3, 7]", "3 to 7", 1),
        ("[]", [], 1),
        ("[]", [3, 7], 0),
        ("[3, 7]", [], 0),
        ("[0, 1000000000]", [3, 7], 4e-9),
    ],
)
def test_temporal_iou_by_hand(text, truth, score):
    assert value(TemporalIoU(), text, truth) == pytest.approx(score, abs=1e-7)
    assert (value(TemporalIoU(), text, truth) == 1) == (score == 1)


@pytest.mark.parametrize(
    ("text", "threshold", "score"),
    [
        ("[3, 7]", 0.5, 1),
        ("[5, 7]", 0.5, 1),
        ("[5, 7]", 0.51, 0),
        ("[4, 7]", 1.0, 0),
        ("[3, 7]", 1.0, 1),
        ("[8, 9]", 0.1, 0),
    ],
)
def test_an_answer_hits_or_misses_a_threshold(text, threshold, score):
    assert value(TemporalIoU(threshold), text, [3, 7]) == score


@pytest.mark.parametrize("threshold", [0.0, 1.5, float("nan")])
def test_a_threshold_is_a_share(threshold):
    with pytest.raises(RewardError, match="temporal_iou: threshold"):
        TemporalIoU(threshold)


def random_spans(rng, cells):
    ends = np.sort(rng.integers(0, cells + 1, (rng.integers(1, 5), 2)), axis=1)
    ends[:, 1] = np.maximum(ends[:, 1], ends[:, 0] + 1)
    return ends


def test_500_random_answers_equal_a_fine_grid():
    """Spans end on eighths of a second, so that cells of that width measure them exactly."""
    rng = np.random.default_rng(0)
    items, expected = [], []
    for _ in range(500):
        grids = []
        spans = [random_spans(rng, 80) for _ in range(2)]
        for ends in spans:
            grid = np.zeros(82, bool)
            for start, end in ends:
                grid[start:end] = True
            grids.append(grid)
        expected.append((grids[0] & grids[1]).sum() / (grids[0] | grids[1]).sum())
        answered, truth = ((ends / 8).tolist() for ends in spans)
        text = json.dumps(answered) if rng.random() < 0.5 else ", ".join(f"{a}s to {b}s" for a, b in answered)
        items.append(ask(text, truth))
    output = TemporalIoU().score(items)
    np.testing.assert_allclose(output.values["temporal_iou"], expected, atol=1e-6)
    np.testing.assert_array_equal(output.values["temporal_iou"] == 1, np.array(expected) == 1)


SPANS = st.lists(
    st.tuples(st.floats(0, 1e9), st.floats(1e-6, 1e6)).map(lambda s: (s[0], s[0] + s[1])).filter(lambda s: s[0] < s[1]),
    max_size=6,
).map(merge_spans)


@given(SPANS, SPANS)
def test_temporal_iou_is_symmetric_and_one_for_equal_unions_only(first, second):
    score = temporal_iou(first, second)
    assert 0 <= score <= 1
    assert temporal_iou(second, first) == pytest.approx(score, abs=1e-9)
    assert temporal_iou(first, list(first)) == 1
    assert (np.float32(score) == 1) == (first == second)


@pytest.mark.parametrize("truth", [[7, 3], [3, 3], [-1, 3], 5, "when?", [[3, 7], 9], [3, float("nan")]])
def test_malformed_references_are_scorer_failures(truth):
    assert outcome(TemporalIoU(), "[3, 7]", truth)[1] is Status.ERROR


def test_swapped_and_empty_spans_are_invalid():
    for text in ("[7, 3]", "[3, 3]", "7s to 3s", "[3, 7", "[3, 7] [1, 2"):
        assert outcome(TemporalIoU(), text, [3, 7]) == (0, Status.INVALID)


BOX = [10, 20, 110, 220]


@pytest.mark.parametrize(
    ("tube", "truth", "score"),
    [
        ({"1": BOX, "2": BOX}, {"1": BOX, "2": BOX}, 1),
        ({"2": BOX, "1.0": BOX}, {1: BOX, 2: BOX}, 1),
        ([{"frame": 1, "box": BOX}, {"time": 2.0, "bbox_2d": BOX}], {"1": BOX, "2": BOX}, 1),
        ({"2": BOX, "3": BOX}, {"1": BOX, "2": BOX}, 1 / 3),
        ({"1": BOX}, {"1": BOX, "2": BOX}, 1 / 2),
        ({"1": [10, 20, 60, 220], "2": BOX}, {"1": BOX, "2": BOX}, 3 / 4),
        ({"5": BOX}, {"1": BOX}, 0),
        ({}, {"1": BOX}, 0),
        ({}, {}, 1),
        ({"0.04": BOX}, {"0.04": BOX, "0.08": BOX}, 1 / 2),
    ],
)
def test_tube_iou_by_hand(tube, truth, score):
    assert value(TubeIoU(), f"```json\n{json.dumps(tube)}\n```", truth, space="pixel") == pytest.approx(score)


@pytest.mark.integration
def test_500_random_tubes_equal_torchvision():
    rng = np.random.default_rng(0)
    items, expected = [], []
    for _ in range(500):
        tubes = []
        for _ in range(2):
            start = int(rng.integers(0, 8))
            frames = range(start, start + int(rng.integers(1, 8)))
            corners = np.sort(rng.integers(0, 1000, (len(frames), 2, 2)), axis=1)
            corners[:, 1] += 1
            tubes.append(dict(zip(frames, corners.reshape(-1, 4).tolist(), strict=True)))
        shared, either = tubes[0].keys() & tubes[1].keys(), tubes[0].keys() | tubes[1].keys()
        boxes = [torch.tensor([tube[frame] for frame in shared]).double().reshape(-1, 4) for tube in tubes]
        expected.append(float(ops.box_iou(*boxes).diagonal().sum()) / len(either))
        items.append(ask(json.dumps(tubes[0]), tubes[1], space="norm_1000"))
    np.testing.assert_allclose(TubeIoU().score(items).values["tube_iou"], expected, atol=1e-6)


def test_true_tubes_are_perfect_in_any_space_and_shifted_ones_are_not():
    truth = {"1": [64, 96, 192, 192], "2": [108.8, 48, 320, 240]}
    tube = {"1": [100, 200, 300, 400], "2": [170, 100, 500, 500]}
    refs = {"space": "pixel", "size": [640, 480]}
    assert value(TubeIoU("norm_1000"), json.dumps(tube), truth, **refs) == 1
    tube["2"][0] += 1e-6
    assert value(TubeIoU("norm_1000"), json.dumps(tube), truth, **refs) < 1


def test_tube_keys_are_frame_numbers():
    one, two = Decimal(1), Decimal(2)
    assert tube_iou({one: (0, 0, 1, 1)}, {one: (0, 0, 1, 1), two: (0, 0, 1, 1)}) == 0.5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[3, 7]",
        "{",
        '{"1": [10, 20, 110, 220]',
        '{"1": [10, 20, 110]}',
        '{"1": [110, 20, 10, 220]}',
        '{"1": [10, 20, 10, 220]}',
        '{"1": [10, 20, 110, NaN]}',
        '{"1": [10, 20, 110, 1e9]}',
        '{"1": [10, 20, 110, 220], "1": [10, 20, 110, 220]}',
        '{"1": [10, 20, 110, 220], "1.0": [10, 20, 110, 220]}',
        '{"-1": [10, 20, 110, 220]}',
        '{"one": [10, 20, 110, 220]}',
        '{"\\uff11": [10, 20, 110, 220]}',
        '{"1": "10, 20, 110, 220"}',
        '{"1": [[10, 20, 110, 220], [10, 20, 110, 220]]}',
        '[{"frame": 1}]',
        '[{"frame": 1, "time": 1, "box": [10, 20, 110, 220]}]',
        '[{"frame": true, "box": [10, 20, 110, 220]}]',
        '{"1": [10, 20, 110, 220]} {"1": [10, 20, 110, 220]}',
        json.dumps({str(i): BOX for i in range(10_000)}),
    ],
)
def test_texts_that_are_no_tube_are_invalid(text):
    assert outcome(TubeIoU(), text, {"1": BOX}, space="pixel", size=[640, 480]) == (0, Status.INVALID)


def test_malformed_tube_references_are_scorer_failures():
    for truth, space in (({"1": [110, 20, 10, 220]}, "pixel"), ("x", "pixel"), ({"1": BOX}, "percent"), ({}, None)):
        assert outcome(TubeIoU(), json.dumps({"1": BOX}), truth, space=space)[1] is Status.ERROR
    assert outcome(TubeIoU("norm_1"), '{"1": [0, 0, 1, 1]}', {"1": BOX}, space="pixel")[1] is Status.ERROR
    with pytest.raises(RewardError):
        TubeIoU("percent")
