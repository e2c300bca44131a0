"""V-Triune's schedule and verifier, which of its thresholds can be reached at all, and Vision-R1's criteria."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardContext, RewardError, RewardInput, Status
from mmrl.rewards.parsing.boxes import true_boxes
from mmrl.rewards.rules.detection import match
from mmrl.rewards.rules.region_iou import pairwise_iou
from mmrl.rewards.rules.scheduled_detection import (
    DynamicIoU,
    ReachableIoU,
    VisionR1,
    match_by_box_cost,
    match_by_true_box,
    max_reachable_iou,
)

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


@pytest.mark.integration
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


@pytest.mark.integration
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


def labelled(*boxes):
    return [{"bbox_2d": box, "label": label} for box, label in boxes]


def published(answered, true, progress=0.0, **arguments):
    references = {"answer": [{"box": box, "label": label} for box, label in true], "space": "norm_1000"}
    text = answered if isinstance(answered, str) else json.dumps(labelled(*answered))
    item = RewardInput("0", 0, "what is there?", text=text, references=references)
    output = DynamicIoU(published=True, **arguments).score([item], RewardContext(progress=progress))
    assert output.status["dynamic_iou"] == [Status.OK], output.detail
    return output.values["dynamic_iou"][0]


DOG, CAT = ([0, 0, 100, 100], "dog"), ([200, 0, 300, 100], "cat")
NEAR = ([10, 0, 100, 100], "dog")  # IoU 0.9
AWAY = ([500, 500, 600, 600], "dog")


def test_published_dynamic_iou_by_hand():
    assert published([CAT, DOG], [DOG, CAT]) == 1
    assert published([NEAR, CAT], [DOG, CAT]) == pytest.approx(0.7 * 1.9 / 2 + 0.3)
    assert published([NEAR, CAT], [DOG, CAT], 0.2) == pytest.approx(0.7 * 1 / 2 + 0.3 / 2)  # 0.9 is below 0.95
    assert published([DOG], [DOG, CAT]) == pytest.approx((0.7 / 2 + 0.3 * (1 + 1 / 2) / 2) * 0.6)
    assert published([DOG, CAT, AWAY], [DOG, CAT]) == pytest.approx((0.7 + 0.3 * (2 / 3 + 1) / 2) * 0.6)
    assert published([(DOG[0], "cat")], [DOG]) == 0 < published([(DOG[0], "cat")], [DOG], labels=False) == 1
    assert published([DOG], []) == 0


def test_published_penalty_offsets_a_missing_box_with_a_wrong_one():
    assert published([DOG], [DOG, CAT]) < published([DOG, AWAY], [DOG, CAT]) == pytest.approx(0.7 / 2 + 0.3 / 2)


def test_published_matching_goes_by_the_true_boxes_in_turn():
    """The first true box takes the answer that the second needs: one pair, where the best matching has two."""
    first, second = ([0, 0, 100, 100], "dog"), ([0, 0, 100, 92], "dog")
    answered = [([0, 0, 100, 98], "dog"), ([0, 0, 100, 90], "dog")]  # IoU with first 0.98, 0.9; with second 0.94, 0.98
    assert published(answered, [first, second]) == pytest.approx(0.7 * (0.98 + 90 / 92) / 2 + 0.3)
    assert published(answered, [second, first], 0.2) == pytest.approx(0.7 * (0.98 + 90 / 92) / 2 + 0.3)
    overlap = np.array([[0.9, 0.88], [0.86, 0.1]])
    found = match_by_true_box(overlap, 0.85)
    assert list(zip(found.answered, found.true, strict=True)) == [(0, 0)] and found.recall == 0.5
    assert match(overlap, 0.85).recall == 1


def test_published_parsing_repairs_and_leaves_out():
    whole = labelled(DOG, CAT)
    text = json.dumps(whole)
    assert published(text.replace('"', "'"), [DOG, CAT]) == 1
    assert published(text.upper().replace("BBOX_2D", "bbox_2d"), [DOG, CAT]) == 1
    assert published(text[:-1] + ', {"bbox_2d": [1, 2', [DOG, CAT]) == 1  # truncated behind the second box
    assert published(json.dumps([*whole, whole[0]]), [DOG, CAT]) == 1  # the same box twice
    crooked = [{"bbox_2d": [9, 9, 1, 1], "label": "dog"}, {"bbox_2d": [1, 2, 3], "label": "dog"}, {"bbox_2d": DOG[0]}]
    assert published(json.dumps([*whole, *crooked, 5]), [DOG, CAT]) == 1
    endless = [f'[{{"bbox_2d": [0, 0, {side}, 5], "label": "a"}}]' for side in ("1e999", "9" * 400)]
    for text in ("[]", "no box", "[1e999]", json.dumps(crooked), *endless):
        output = DynamicIoU(published=True).score([ask(text, [])])
        assert output.status["dynamic_iou"] == [Status.INVALID], text


def test_matchings_by_turns_and_best_differ_in_crowds_alone():
    """On random overlaps the number of pairs by turns is never above the best, and equal if there is one true box."""
    generator = np.random.default_rng(0)
    fewer = 0
    for _ in range(300):
        overlap = generator.uniform(0, 1, generator.integers(0, 5, 2))
        ours, best = match_by_true_box(overlap, 0.4), match(overlap, 0.4)
        assert len(set(ours.answered)) == len(ours.overlaps) <= len(best.overlaps)
        assert (ours.overlaps >= 0.4).all()
        fewer += len(ours.overlaps) < len(best.overlaps)
        if overlap.shape[1] == 1:
            assert ours.overlaps.sum() == pytest.approx(best.overlaps.sum())
    assert fewer > 10


def vision(answered, true, progress=0.0, **arguments):
    references = {"answer": [{"box": box, "label": label} for box, label in true], "space": "pixel"}
    item = RewardInput("0", 0, "?", text=json.dumps(labelled(*answered)), references=references)
    return VisionR1(**arguments).score([item], RewardContext(progress=progress)).values


def test_vision_r1_of_the_paper_by_hand():
    scene = [([100 * n, 0, 100 * n + 50, 50], "dog") for n in range(5)]
    four = vision(scene[:4], scene, published=True)
    assert four["vision_r1_recall"][0] == 1 and four["vision_r1"][0] == 1  # 0.8 is past 0.75
    assert vision(scene[:4], scene)["vision_r1_recall"][0] == pytest.approx(0.8)
    late = vision(scene[:4], scene, 0.6, published=True)
    assert late["vision_r1_recall"][0] == pytest.approx(0.8)  # between 0.75 and 0.9
    assert vision(scene[:3], scene, 0.6, published=True)["vision_r1_recall"][0] == 0
    assert vision(scene[:3], scene, published=True)["vision_r1_recall"][0] == pytest.approx(0.6)
    renamed = [(scene[0][0], "cat"), *scene[1:]]
    assert vision(renamed, scene, published=True)["vision_r1"][0] == 1  # matched by boxes alone
    spam = vision([*scene, *scene], scene, published=True)
    assert spam["vision_r1_precision"][0] == pytest.approx(0.5)
    nothing = vision([], scene, published=True)
    assert nothing["vision_r1_recall"][0] == nothing["vision_r1_precision"][0] == 0
    assert vision([], [], published=True)["vision_r1"][0] == 1


def test_box_cost_pairs_all_before_the_threshold():
    """Distance in pixels decides: the far box is nearer in sum to the true one that the good box overlaps."""
    true = np.array([[0.0, 0, 100, 100]])
    answered = np.array([[300.0, 300, 400, 400], [10, 0, 100, 100]])
    found = match_by_box_cost(answered, true, 0.5)
    assert found.answered.tolist() == [1] and found.overlaps.tolist() == pytest.approx([0.9])
    assert match_by_box_cost(answered, true, 0.95).recall == 0
    # Both pairs of one order cost less in sum (50 + 40 pixels) than those of the other, though one then fails.
    true = np.array([[0.0, 0, 100, 100], [50, 0, 150, 100]])
    answered = np.array([[40.0, 0, 140, 100], [0, 0, 80, 100]])
    found = match_by_box_cost(answered, true, 0.5)
    assert sorted(zip(found.answered, found.true, strict=True)) == [(0, 1), (1, 0)]


def test_parts_of_vision_r1_can_be_left_out():
    scene = [([100 * n, 0, 100 * n + 50, 50], "dog") for n in range(4)]
    values = vision(scene[:1], scene, parts=["format", "precision"])
    assert values["vision_r1"][0] == 1 and values["vision_r1_recall"][0] == 0
    assert vision(scene[:1], scene)["vision_r1"][0] == pytest.approx(2 / 3)
    for parts in ([], ["speed"], ["recall", "recall"]):
        with pytest.raises(RewardError, match="parts is"):
            VisionR1(parts=parts)
