"""V-Triune's schedule, and which of its thresholds can be reached at all."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardContext, RewardError, RewardInput, Status
from mmrl.rewards.parsing.boxes import true_boxes
from mmrl.rewards.rules.region_iou import pairwise_iou
from mmrl.rewards.rules.scheduled_detection import DynamicIoU, ReachableIoU, max_reachable_iou

LATE = RewardContext(progress=1.0)
ASIDE = np.array([1, 0, 1, 0])


def ask(answered, true, space="norm_1000", **references):
    references |= {"answer": true, "space": space}
    return RewardInput("0", 0, "where is it?", text=json.dumps(answered), references=references)


def score(reward, answered, true, progress, **references):
    output = reward.score([ask(answered, true, **references)], RewardContext(progress=progress))
    assert output.status[reward.name] == [Status.OK], output.detail
    return output.values[reward.name][0]


@pytest.mark.parametrize("reward", [DynamicIoU, ReachableIoU])
def test_threshold_rises_at_a_tenth_and_a_quarter_of_training(reward):
    """The true box is 1000 wide, so that leaving out a column of n is an IoU of 1 − n/1000."""
    true = [0, 0, 1000, 500]
    for progress, threshold in [(0, 0.85), (0.1, 0.85), (0.101, 0.95), (0.25, 0.95), (0.251, 0.99), (1, 0.99)]:
        missing = round(1000 * (1 - threshold))
        kept = score(reward(), [missing - 1, 0, 1000, 500], true, progress)
        assert kept == pytest.approx(threshold + 0.001)  # past the threshold the IoU itself
        assert score(reward(), [missing + 1, 0, 1000, 500], true, progress) == 0
        assert score(reward(), true, true, progress) == 1


def test_several_boxes_by_hand():
    """Two true boxes; of three answered ones one has IoU 1, one 0.9, one 0."""
    true = [[0, 0, 100, 100], [200, 0, 300, 100]]
    answered = [[500, 500, 600, 600], [210, 0, 300, 100], [0, 0, 100, 100]]
    assert score(DynamicIoU(), answered, true, 0.0) == pytest.approx((1 + 0.9) / (2 + 0.5))
    assert score(DynamicIoU(), answered, true, 0.2) == pytest.approx(1 / (1 + 1.5))
    output = DynamicIoU().score([ask(answered, true)], RewardContext(progress=0.2))
    assert output.values["dynamic_iou_matched"][0] == 0.5


def test_extra_wrong_boxes_do_not_offset_a_missing_one():
    """With the published penalty, 0.6 to the power of the difference in number, it does: 0.3 becomes 0.5."""
    true = [[0, 0, 100, 100], [200, 0, 300, 100]]
    alone = score(DynamicIoU(), [[0, 0, 100, 100]], true, 0.0)
    assert score(DynamicIoU(), [[0, 0, 100, 100], [500, 500, 600, 600]], true, 0.0) < alone


def test_thresholds_are_validated_arguments():
    reward = DynamicIoU(thresholds=(0.5, 0.75), until=(0.5,))
    assert score(reward, [40, 0, 100, 100], [0, 0, 100, 100], 0.5) == pytest.approx(0.6)
    assert score(reward, [40, 0, 100, 100], [0, 0, 100, 100], 0.6) == 0
    for build, reason in [
        (lambda: DynamicIoU(thresholds=(0.5, 0.75), until=(0.1, 0.2)), "2 thresholds"),
        (lambda: DynamicIoU(until=(0.25, 0.1)), "rising"),
        (lambda: DynamicIoU(thresholds=(0.0, 0.5, 0.9)), "a threshold is 0.0"),
        (lambda: ReachableIoU(decimals=-1), "decimals is -1"),
    ]:
        with pytest.raises(RewardError, match=reason):
            build()


def small_boxes(count, seed=0):
    """Boxes with sides of 30 to 100 thousandths, anywhere."""
    generator = np.random.default_rng(seed)
    sides = generator.uniform(30, 100, (count, 2))
    corner = generator.uniform(0, 1000 - sides)
    return np.concatenate([corner, corner + sides], axis=1)


def best_answer(box):
    """By trying all 256 boxes of whole numbers within 2 of the true edges, where the code tries 16."""
    around = [np.floor(edge) + np.arange(-1, 3) for edge in box]
    grid = np.array(list(itertools.product(*around)))
    iou = pairwise_iou(grid, box[None])[:, 0]
    return grid[iou.argmax()], iou.max()


def test_true_box_on_the_grid_beats_its_neighbours():
    boxes = small_boxes(300)
    boxes[150:, 2:] = boxes[150:, :2] + np.random.default_rng(1).uniform(0.05, 6, (150, 2))  # down to a part of a cell
    truth = true_boxes({"answer": boxes.tolist(), "space": "norm_1000"})
    np.testing.assert_allclose(max_reachable_iou(truth), [best_answer(box)[1] for box in boxes], atol=1e-12)


def test_small_boxes_pass_at_the_reachable_threshold():
    """In 600 boxes with sides of 30 to 100, the best answer in whole numbers."""
    boxes = small_boxes(600)
    best = [best_answer(box)[0] for box in boxes]
    batch = [ask(answer.tolist(), box.tolist()) for answer, box in zip(best, boxes, strict=True)]
    passed = DynamicIoU().score(batch, LATE).values["dynamic_iou"] > 0
    assert 0.09 < passed.mean() < 0.18
    reachable = ReachableIoU().score(batch, LATE)
    assert (reachable.values["reachable_iou"] > 0.9).all() and (reachable.values["reachable_iou_matched"] == 1).all()
    # The control: one step beside the best answer fails, but for the few boxes whose grid neighbours pass 0.99 too.
    beside = [ask((answer + ASIDE).tolist(), box.tolist()) for answer, box in zip(best, boxes, strict=True)]
    assert (ReachableIoU().score(beside, LATE).values["reachable_iou"] == 0).mean() > 0.98


@pytest.mark.parametrize(
    ("space", "decimals", "size", "share"),
    [("norm_1000", None, [1920, 1080], 0.10), ("norm_1", 3, [1920, 1080], 0.10), ("norm_1", 2, [1920, 1080], 0.02)],
)
def test_grid_is_that_of_the_answer_space(space, decimals, size, share):
    """True boxes in whole pixels, sides 30 to 100; the best answer has `decimals` places."""
    generator = np.random.default_rng(0)
    corner = generator.integers(0, 900, (300, 2))
    boxes = np.concatenate([corner, corner + generator.integers(30, 101, (300, 2))], axis=1)
    steps = {"norm_1000": 1000, "norm_1": 10 ** (decimals or 0)}[space]
    per = 1000 if space == "norm_1000" else 1
    batch = []
    for box in boxes:
        on_grid = best_answer(box / np.tile(size, 2) * steps)[0] / steps * per
        batch.append(ask(on_grid.tolist(), box.tolist(), "pixel", size=size))
    dynamic = DynamicIoU(space=space).score(batch, LATE).values["dynamic_iou"]
    reachable = ReachableIoU(space=space, decimals=decimals).score(batch, LATE).values["reachable_iou"]
    assert (dynamic > 0).mean() < share and (reachable > 0).all()


def test_integer_pixels_match_integer_boxes_exactly():
    boxes = small_boxes(50).round()
    truth = true_boxes({"answer": boxes.tolist(), "space": "pixel"})
    assert (max_reachable_iou(truth) == 1).all()


@given(st.lists(st.floats(0, 900), min_size=2, max_size=2), st.lists(st.floats(0.5, 99), min_size=2, max_size=2))
def test_reachable_threshold_is_at_most_the_scheduled_one(corner, sides):
    box = [*corner, *(edge + side for edge, side in zip(corner, sides, strict=True))]
    truth = true_boxes({"answer": box, "space": "norm_1000"})
    for progress in (0.0, 0.2, 1.0):
        threshold = ReachableIoU().threshold_of(truth, progress)
        assert 0 < threshold[0] <= DynamicIoU().threshold_at(progress)
