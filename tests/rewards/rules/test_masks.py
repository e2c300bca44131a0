"""IoU of masks, against numpy on pixels."""

import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.region_iou import MaskIoU

from .single_answer import ask, outcome, value


def as_text(mask):
    encoded = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    return json.dumps({"size": list(mask.shape), "counts": encoded["counts"].decode()})


def overlap(first, second):
    either = (first | second).sum()
    return (first & second).sum() / either if either else 1.0


def blobs(rng, shape):
    """Rectangles and noise, at times nothing at all."""
    mask = rng.random(shape) < rng.choice([0, 0, 0.05])
    for _ in range(rng.integers(0, 3)):
        (top, bottom), (left, right) = (np.sort(rng.integers(0, side + 1, 2)) for side in shape)
        mask[top:bottom, left:right] = True
    return mask


@pytest.mark.integration
def test_500_random_mask_pairs_equal_numpy_in_every_reference_format(tmp_path):
    rng = np.random.default_rng(0)
    items, expected = [], []
    for row in range(500):
        shape = tuple(rng.integers(1, 40, 2).tolist())
        answered, truth = blobs(rng, shape), blobs(rng, shape)
        if rng.random() < 0.1:
            answered = truth.copy()
        path = tmp_path / f"{row}.png"
        Image.fromarray(truth.astype(np.uint8) * 255).save(path)
        forms = [
            truth,
            truth.astype(np.float32),
            Image.fromarray(truth),
            Image.fromarray(truth.astype(np.uint8)),
            Image.fromarray(np.stack([truth.astype(np.uint8) * 9] * 3, -1)),
            path,
            str(path),
            json.loads(as_text(truth)),
            as_text(truth),
        ]
        items.append(ask(as_text(answered), forms[row % len(forms)]))
        expected.append(overlap(answered, truth))
    output = MaskIoU().score(items)
    np.testing.assert_allclose(output.values["mask_iou"], expected, atol=1e-6)
    np.testing.assert_array_equal(output.values["mask_iou"] == 1, np.array(expected) == 1)
    assert 30 < (np.array(expected) == 1).sum() < 200


@pytest.mark.integration
def test_500_random_boxes_and_polygons_equal_pycocotools_and_numpy():
    rng = np.random.default_rng(1)
    items, expected = [], []
    height, width = 60, 80
    for _ in range(500):
        masks, shapes = [], []
        for _ in range(2):
            if rng.random() < 0.5:
                x1, y1, x2, y2 = 0, 0, 0, 0
                while x2 - x1 < 2 or y2 - y1 < 2:
                    (x1, x2), (y1, y2) = np.sort(rng.integers(0, width, 2)), np.sort(rng.integers(0, height, 2))
                mask = np.zeros((height, width), bool)
                mask[y1:y2, x1:x2] = True
                shape = [int(side) for side in (x1, y1, x2, y2)]
            else:
                angles = np.sort(rng.uniform(0, 2 * np.pi, 5)) + np.arange(5) * 0.1
                radius = rng.uniform(8, 25, 5)
                corners = np.stack([40 + radius * np.cos(angles), 30 + radius * np.sin(angles)], -1).round(2)
                mask = coco.decode(coco.frPyObjects([corners.flatten().tolist()], height, width))[..., 0] > 0
                shape = corners.tolist() if rng.random() < 0.5 else corners.flatten().tolist()
            masks.append(mask)
            shapes.append(shape)
        items.append(ask(json.dumps(shapes[0]), shapes[1], space="pixel", size=[width, height]))
        expected.append(overlap(*masks))
    np.testing.assert_allclose(MaskIoU().score(items).values["mask_iou"], expected, atol=1e-6)


def test_circle_overlap_equals_the_analytic_value():
    """Two discs of radius r whose centres are r apart: r² (2π/3 − √3/2) of 2πr² less that."""
    angles = np.linspace(0, 2 * np.pi, 720, endpoint=False)
    discs = [np.stack([x + 300 * np.cos(angles), 500 + 300 * np.sin(angles)], -1).tolist() for x in (400, 700)]
    both = 2 * np.pi / 3 - np.sqrt(3) / 2
    score = value(MaskIoU(), json.dumps(discs[0]), discs[1], space="pixel", size=[1000, 1000])
    assert score == pytest.approx(both / (2 * np.pi - both), abs=2e-3)


def test_large_masks_lacking_one_pixel_are_not_perfect():
    truth = {"size": [8000, 8000], "counts": [0, 64_000_000]}
    assert value(MaskIoU(), json.dumps(truth), truth) == 1
    assert value(MaskIoU(), '{"size": [8000, 8000], "counts": [1, 63999999]}', truth) < 1


def test_empty_references_are_matched_by_empty_masks_only():
    empty = np.zeros((10, 20), bool)
    refs = {"space": "pixel", "size": [20, 10]}
    for truth in (empty, [], {"size": [10, 20], "counts": [200]}, "[]"):
        assert value(MaskIoU(), "[]", truth, **refs) == 1
        assert value(MaskIoU(), as_text(empty), truth, **refs) == 1
        assert value(MaskIoU(), "[2, 3, 6, 8]", truth, **refs) == 0
    assert value(MaskIoU(), "[]", [2, 3, 6, 8], **refs) == 0


def test_answers_and_references_may_use_different_spaces():
    refs = {"space": "pixel", "size": [640, 480]}
    box = [108.8, 172.8, 200, 201.6]
    assert value(MaskIoU("norm_1000"), "[170, 360, 312.5, 420]", box, **refs) == 1
    assert value(MaskIoU("norm_1"), "[[0.17, 0.36], [0.3125, 0.36], [0.3125, 0.42], [0.17, 0.42]]", box, **refs) == 1
    assert value(MaskIoU("norm_1000"), "[170, 360, 320, 420]", box, **refs) < 1
    picture = np.zeros((480, 640), bool)
    picture[48:96, 64:128] = True
    assert value(MaskIoU("norm_1000"), "[100, 100, 200, 200]", picture) == 1
    assert outcome(MaskIoU(), "[100, 100, 200, 200]", picture)[1] is Status.ERROR  # nothing says what they count


@pytest.mark.parametrize(
    "truth",
    [
        "no/such/mask.png",
        "[2, 3, 6",
        {"size": [10, 20], "counts": [199]},
        {"size": [10**9, 10**9], "counts": [10**18]},
        [6, 3, 2, 8],
        3,
        None,
        np.zeros((10, 20, 3)),
        np.full((10, 20), np.nan),
        np.zeros((0, 20)),
        np.array([["a"]]),
        Image.new("RGBA", (20, 10)),
        Image.new("LA", (20, 10)),
    ],
    ids=lambda truth: type(truth).__name__,
)
def test_malformed_references_are_scorer_failures(truth):
    number, status = outcome(MaskIoU(), "[2, 3, 6, 8]", truth, space="pixel", size=[20, 10])
    assert status is Status.ERROR and np.isnan(number)


def test_shape_references_need_size_and_space():
    for refs in ({"space": "pixel"}, {"size": [20, 10]}, {"space": "percent", "size": [20, 10]}, {"size": [20.5, 10]}):
        assert outcome(MaskIoU(), "[2, 3, 6, 8]", [2, 3, 6, 8], **refs)[1] is Status.ERROR


def test_invalid_or_oversized_images_are_rejected_undecoded(tmp_path):
    broken, large = tmp_path / "broken.png", tmp_path / "large.png"
    Image.new("L", (50, 50), 255).save(broken)
    broken.write_bytes(broken.read_bytes()[:60])
    Image.new("1", (9000, 9000)).save(large)
    for path in (broken, large):
        assert outcome(MaskIoU(), "[]", path)[1] is Status.ERROR


def test_invalid_answers_score_0_with_a_reason():
    output = MaskIoU().score([ask("[6, 3, 2, 8]", np.ones((10, 20)), space="pixel")])
    assert output.status["mask_iou"] == [Status.INVALID] and "swapped" in output.detail[0]["mask_iou"]


def test_unknown_spaces_raise():
    with pytest.raises(RewardError, match="norm_1000"):
        MaskIoU("percent")
