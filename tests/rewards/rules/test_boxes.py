"""IoU and its kin, against torchvision and by hand."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import ops

from mmrl.rewards import RewardError, RewardInput, Status
from mmrl.rewards.rules.region_iou import (
    BoxCIoU,
    BoxDIoU,
    BoxGIoU,
    BoxIoU,
    pairwise_ciou,
    pairwise_diou,
    pairwise_giou,
    pairwise_iou,
)

OVERLAPS = {
    pairwise_iou: ops.box_iou,
    pairwise_giou: ops.generalized_box_iou,
    pairwise_diou: ops.distance_box_iou,
    pairwise_ciou: ops.complete_box_iou,
}
REWARDS = {BoxIoU: pairwise_iou, BoxGIoU: pairwise_giou, BoxDIoU: pairwise_diou, BoxCIoU: pairwise_ciou}
EXACT = 1e-6  # torchvision adds 1e-7 to denominators


def ask(text, answer, space="pixel", **references):
    references |= {"answer": answer, "space": space}
    return RewardInput(id="0", group=0, prompt="where is it?", text=text, references=references)


def score(reward, *args, **references):
    output = reward.score([ask(*args, **references)])
    assert output.status[reward.name] == [Status.OK], output.detail
    return output.values[reward.name][0]


def random_boxes(generator, count, low=1.0):
    corner = generator.uniform(0, 500, (count, 2))
    return np.concatenate([corner, corner + generator.uniform(low, 400, (count, 2))], axis=1)


@pytest.mark.parametrize("ours", OVERLAPS)
def test_overlaps_equal_torchvision(ours):
    generator = np.random.default_rng(0)
    a, b = random_boxes(generator, 1000), random_boxes(generator, 40)
    b[:5] = a[:5]
    theirs = OVERLAPS[ours](torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_allclose(ours(a, b), theirs, atol=EXACT)
    # The control: each of the others is told apart by the same comparison.
    for other in set(OVERLAPS) - {ours}:
        assert np.abs(other(a, b) - theirs).max() > 1000 * EXACT
    assert ours(a, b[:0]).shape == (1000, 0) and ours(a[:0], b).shape == (0, 40)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("space", ["pixel", "norm_1", "norm_1000"])
def test_rewards_equal_torchvision_in_every_space(reward, space):
    """500 answers in `space` to true boxes in pixels of a picture of 1000 by 1000."""
    generator = np.random.default_rng(1)
    true, answered = random_boxes(generator, 500).round(1), random_boxes(generator, 500).round(1)
    per_pixel = {"pixel": 1.0, "norm_1": 1e-3, "norm_1000": 1.0}[space]
    batch = [
        ask(json.dumps((a * per_pixel).tolist()), t.tolist(), size=[1000, 1000])
        for a, t in zip(answered, true, strict=True)
    ]
    theirs = OVERLAPS[REWARDS[reward]](torch.from_numpy(answered), torch.from_numpy(true)).diagonal().numpy()
    output = reward(space=space).score(batch)
    assert output.status[reward.name] == [Status.OK] * 500
    np.testing.assert_allclose(output.values[reward.name], theirs, atol=EXACT)


def test_box_rewards_by_hand():
    """[0, 0, 2, 2] and [1, 0, 3, 2] share 2 of 6; centres 1 apart, diagonal 13; around both 6, so no gap."""
    near = "[1, 0, 3, 2]", [0, 0, 2, 2]
    assert score(BoxIoU(), *near) == pytest.approx(1 / 3)
    assert score(BoxGIoU(), *near) == pytest.approx(1 / 3)
    assert score(BoxDIoU(), *near) == pytest.approx(1 / 3 - 1 / 13)
    assert score(BoxCIoU(), *near) == pytest.approx(1 / 3 - 1 / 13)
    apart = "[3, 0, 4, 2]", [0, 0, 1, 1]  # areas 2 and 1, around both 4 by 2; centres (3.5, 1) and (0.5, 0.5)
    v = 4 / math.pi**2 * (math.atan(1 / 2) - math.atan(1)) ** 2
    assert score(BoxIoU(), *apart) == 0
    assert score(BoxGIoU(), *apart) == pytest.approx(-5 / 8)
    assert score(BoxDIoU(), *apart) == pytest.approx(-9.25 / 20)
    assert score(BoxCIoU(), *apart) == pytest.approx(-9.25 / 20 - v * v / (1 + v))


def test_distances_are_in_pixels_if_the_size_is_known():
    """A picture twice as wide as high: in thousandths both boxes are square, in pixels they are not."""
    answer, true = "[500, 0, 600, 100]", [0, 0, 100, 100]
    square = score(BoxDIoU(), answer, true, "norm_1000")
    wide = score(BoxDIoU(), answer, true, "norm_1000", size=[2000, 1000])
    assert square == pytest.approx(-(500**2) / (600**2 + 100**2))
    assert wide == pytest.approx(-(1000**2) / (1200**2 + 100**2))
    assert score(BoxDIoU(), "[1000, 0, 1200, 100]", [0, 0, 200, 100]) == pytest.approx(float(wide))


@pytest.mark.parametrize("reward", REWARDS)
def test_answers_without_a_single_box_are_invalid_with_the_lowest_score(reward):
    texts = ["", "[]", "left", "[1, 2, 3]", "[30, 40, 1, 2]", "[1, 2, 30, 40] [1, 2, 30, 40]", "<answer>[1, 2, 30, 40]"]
    output = reward().score([ask(text, [1, 2, 30, 40]) for text in texts])
    assert output.status[reward.name] == [Status.INVALID] * len(texts)
    assert (output.values[reward.name] == reward.range[0]).all() and all(output.detail)


def test_final_answer_is_extracted_from_the_completion():
    text = "<think>[9, 9, 10, 10] or so</think><answer>```json\n[1, 2, 30, 40]\n```</answer>"
    assert score(BoxIoU(), text, [1, 2, 30, 40]) == 1


def test_malformed_references_are_errors():
    batch = [
        ask("[1, 2, 3, 4]", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ask("[1, 2, 3, 4]", []),
        ask("[1, 2, 3, 4]", [3, 4, 1, 2]),
        ask("[1, 2, 3, 4]", [1, 2, 3, 4], space=None),
        ask("[1, 2, 3, 4]", [1, 2, 3, 4], space="metres"),
    ]
    output = BoxIoU().score(batch)
    assert output.status["box_iou"] == [Status.ERROR] * 5 and np.isnan(output.values["box_iou"]).all()
    assert {failures["box_iou"].kind for failures in output.failures} == {"reference", "missing"}
    without_size = BoxIoU(space="norm_1").score([ask("[0.1, 0.1, 0.2, 0.2]", [1, 2, 3, 4])])
    assert without_size.status["box_iou"] == [Status.ERROR] and "size" in without_size.detail[0]["box_iou"]


def test_unknown_spaces_raise():
    with pytest.raises(RewardError, match="box_giou: space is 'norm_100'"):
        BoxGIoU(space="norm_100")


EDGES = st.tuples(*[st.integers(0, 600)] * 2, *[st.integers(1, 400)] * 2)


def box_of(edges):
    x, y, width, height = edges
    return [x, y, x + width, y + height]


@given(EDGES, EDGES, st.integers(2, 50), st.sampled_from(list(OVERLAPS)))
def test_overlaps_are_symmetric_and_invariant_to_scale_and_shift(first, second, scale, overlap):
    a, b = (np.array([box_of(edges)], float) for edges in (first, second))
    value = overlap(a, b)
    np.testing.assert_allclose(overlap(b, a), value, atol=1e-12)
    np.testing.assert_allclose(overlap(a * scale, b * scale), value, atol=1e-9)
    np.testing.assert_allclose(overlap(a + scale, b + scale), value, atol=1e-9)
    assert (value == 1) == (first == second) and -1.5 < value[0, 0] <= 1


@pytest.mark.parametrize("reward", REWARDS)
def test_boxes_off_by_a_millionth_of_a_pixel_are_not_perfect(reward):
    assert 1 - 1e-6 < score(reward(), "[1, 2, 1001, 2002.000001]", [1, 2, 1001, 2002]) < 1


SPACES = ["pixel", "norm_1", "norm_1000"]


def written_in(space, thousandths):
    """A box of whole thousandths of a picture of 2000 by 4000 pixels: exact in every space."""
    scale = {"pixel": (2, 4, 2, 4), "norm_1": (1e-3,) * 4, "norm_1000": (1,) * 4}[space]
    return [round(edge * s, 3) for edge, s in zip(thousandths, scale, strict=True)]


@given(EDGES, EDGES, st.sampled_from(list(REWARDS)), st.sampled_from(SPACES), st.sampled_from(SPACES))
def test_only_the_true_box_is_perfect_in_all_spaces(first, second, reward, space, input_space):
    true, other = box_of(first), box_of(second)
    batch = [
        ask(json.dumps(written_in(space, box)), written_in(input_space, true), input_space, size=[2000, 4000])
        for box in (true, other)
    ]
    right, wrong = reward(space=space).score(batch).values[reward.name]
    assert right == 1 and (wrong < 1) == (true != other)


def test_references_may_be_coco_annotations():
    coco = [{"bbox": [10, 20, 60, 90], "category": "cat", "segmentation": [[10, 20, 60, 90, 5, 5]], "area": 7, "id": 3}]
    item = RewardInput("a", 0, "", text="[10, 20, 60, 90]", references={"answer": coco, "space": "pixel"})
    assert BoxIoU().score([item]).values["box_iou"].tolist() == [1.0]
