"""Detection rewards, against pycocotools, brute force and by hand."""

import contextlib
import io
import itertools
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmrl.rewards import RewardContext, RewardError, RewardInput, Status
from mmrl.rewards.rules.detection import (
    DetectionF1,
    DetectionMAP,
    ODLength,
    WeightedPrecisionRecall,
    average_precision,
    match,
)
from mmrl.rewards.rules.region_iou import pairwise_iou
from mmrl.rewards.rules.scheduled_detection import DynamicIoU, ReachableIoU, VisionR1

ALL = [DetectionF1, DetectionMAP, ODLength, WeightedPrecisionRecall, VisionR1, DynamicIoU, ReachableIoU]
SCHEDULED = [VisionR1, DynamicIoU, ReachableIoU]


def as_text(boxes):
    return json.dumps([{"bbox_2d": box, "label": label} for box, label in boxes])


def ask(answered, true, **references):
    text = answered if isinstance(answered, str) else as_text(answered)
    answer = [{"box": box, "label": label} for box, label in true]
    references = {"answer": answer, "space": "pixel"} | references
    return RewardInput("0", 0, "what is there?", text=text, references=references)


def score(reward, answered, true, progress=0.0):
    output = reward.score([ask(answered, true)], RewardContext(progress=progress))
    assert output.status[reward.name] == [Status.OK], output.detail
    return output.values[reward.name][0]


DOG, CAT, COW = ([10, 10, 110, 110], "dog"), ([200, 10, 300, 110], "cat"), ([10, 200, 110, 300], "cow")
OFF = ([20, 10, 120, 110], "dog")  # IoU with DOG: 90 / 110 = 0.818
AWAY = ([500, 500, 600, 600], "dog")
SCENE = [DOG, CAT, COW]


@pytest.mark.parametrize("reward", ALL)
def test_only_the_true_boxes_are_perfect_in_every_order(reward):
    for order in itertools.permutations(SCENE):
        for progress in (0.0, 0.5, 1.0):
            assert score(reward(), list(order), SCENE, progress) == 1
    wrong = [
        [],
        SCENE[:2],
        [*SCENE, DOG],
        [*SCENE, AWAY],
        [*SCENE, ([500, 500, 600, 600], "horse")],
        [AWAY, CAT, COW],
        [(DOG[0], "cat"), (CAT[0], "dog"), COW],
        [(DOG[0], None), CAT, COW],
        [([10, 10, 40, 110], "dog"), CAT, COW],
    ]
    for answered in wrong:
        for progress in (0.0, 1.0):
            assert score(reward(), answered, SCENE, progress) < 1, answered


@pytest.mark.parametrize("reward", ALL)
def test_empty_answer_to_empty_reference_is_perfect(reward):
    for text in ("[]", "None", "```json\n[]\n```"):
        assert score(reward(), text, []) == 1
    assert score(reward(), SCENE, []) <= 1 / 3  # Vision-R1 pays a third for the format
    assert score(reward(), [], SCENE) <= 1 / 3


@pytest.mark.parametrize("reward", ALL)
def test_labels_count_if_requested_and_known(reward):
    renamed = [(box, f"not a {label}") for box, label in SCENE]
    assert score(reward(), renamed, SCENE) < 0.5
    assert score(reward(labels=False), renamed, SCENE) == 1
    assert score(reward(), SCENE, [(box, None) for box, _ in SCENE]) == 1
    spelled = [(DOG[0], " DOG\n"), (CAT[0], "Cat"), COW]
    assert score(reward(), spelled, SCENE) == 1
    accents = "caf\u00e9", "cafe\u0301"  # composed and decomposed
    assert score(reward(), [(DOG[0], accents[1])], [(DOG[0], accents[0])]) == 1
    cyrillic = [(DOG[0], "d\u043eg"), CAT, COW]
    assert score(reward(), cyrillic, SCENE) < 1


def test_f1_precision_and_recall_by_hand():
    output = DetectionF1().score([ask([DOG, CAT, AWAY, AWAY], SCENE), ask([OFF], [DOG])])
    assert output.values["detection_precision"].tolist() == [0.5, 1]
    np.testing.assert_allclose(output.values["detection_recall"], [2 / 3, 1])
    np.testing.assert_allclose(output.values["detection_f1"], [4 / 7, 1])
    assert score(DetectionF1(threshold=0.82), [OFF], [DOG]) == 0


def test_weighted_precision_recall_by_hand():
    for weight in (0.2, 0.5, 0.9):
        reward = WeightedPrecisionRecall(precision_weight=weight)
        assert score(reward, [DOG, CAT, AWAY, AWAY], SCENE) == pytest.approx(weight / 2 + (1 - weight) * 2 / 3)
    nearly = WeightedPrecisionRecall(precision_weight=1e-12)
    assert score(nearly, [*SCENE, AWAY], SCENE) < 1  # though it rounds to 1


def test_vision_r1_by_hand():
    """OFF has an IoU of 0.818: above 0.75 it is whole early, between 0.75 and 0.9 it counts as it is late."""
    for progress, precision in [(0.0, 1.0), (0.5, 1.0), (0.51, 90 / 110), (1.0, 90 / 110)]:
        output = VisionR1().score([ask([OFF], [DOG])], RewardContext(progress=progress))
        assert output.values["vision_r1_precision"][0] == pytest.approx(precision)
        assert output.values["vision_r1"][0] == pytest.approx((1 + 1 + precision) / 3)
    far = ([40, 10, 140, 110], "dog")  # IoU 70/130 = 0.538
    assert score(VisionR1(), [far], [DOG], 0.0) == pytest.approx((2 + 70 / 130) / 3)
    assert score(VisionR1(), [far], [DOG], 1.0) == pytest.approx(1 / 3)
    output = VisionR1().score([ask([DOG], SCENE), ask([DOG, CAT], SCENE), ask([(DOG[0], None)], [DOG])])
    np.testing.assert_allclose(output.values["vision_r1_recall"], [0, 2 / 3, 0])  # below one half: 0
    assert output.values["vision_r1_format"].tolist() == [1, 1, 0]
    assert VisionR1(tighten_at=1.0).score([ask([far], [DOG])], RewardContext(progress=1.0)).values["vision_r1"][0] > 0.5


def test_od_length_by_hand():
    assert score(ODLength(), [DOG, DOG], [DOG]) == pytest.approx(0.5 * 0.5)  # precision 1/2, length 1/2
    assert score(ODLength(), [DOG, CAT], SCENE) == pytest.approx(2 / 3)  # too few: mAP alone
    assert score(ODLength(), [*SCENE, *[AWAY] * 3], SCENE) == pytest.approx((1 / 4 + 1 + 1) / 3 / 2)


def test_map_by_hand():
    assert score(DetectionMAP(), [OFF], [DOG]) == pytest.approx(0.7)  # 0.50 to 0.80 of ten thresholds
    assert score(DetectionMAP(), [DOG], [DOG, AWAY]) == pytest.approx(51 / 101)  # recall 0.5 at 51 of 101 places
    assert score(DetectionMAP(), [*SCENE, ([1, 1, 9, 9], "horse")], SCENE) == pytest.approx(3 / 4)


def random_scene(generator, count):
    corner = generator.uniform(0, 700, (count, 2))
    return np.concatenate([corner, corner + generator.uniform(20, 200, (count, 2))], axis=1)


def jittered(generator, boxes):
    side = np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    return boxes + generator.normal(0, 1, boxes.shape) * side * generator.choice([0.005, 0.03, 0.1], (len(boxes), 1))


def test_matching_is_optimal():
    """Against every one-to-one assignment, 600 times: most pairs, and of those the largest sum."""
    generator = np.random.default_rng(0)
    greedy_fails = 0
    for _ in range(600):
        rows, columns = generator.integers(0, 5, 2).tolist()
        overlap = generator.uniform(0, 1, (rows, columns)).round(2)
        threshold = generator.uniform(0.1, 0.9, columns).round(1) if generator.random() < 0.5 else 0.4
        allowed = generator.random((rows, columns)) < 0.8 if generator.random() < 0.5 else None
        fit = (overlap >= threshold) & (True if allowed is None else allowed)
        best = (0, 0.0)
        for way in itertools.permutations(range(columns + rows), rows):
            pairs = [(i, j) for i, j in enumerate(way) if j < columns and fit[i, j]]
            best = max(best, (len(pairs), round(sum(overlap[i, j] for i, j in pairs), 6)))
        found = match(overlap, threshold, allowed)
        assert fit[found.answered, found.true].all()
        assert len(set(found.answered)) == len(set(found.true)) == len(found.overlaps)
        assert (len(found.overlaps), round(found.overlaps.sum(), 6)) == best
        greedy_fails += greedy(overlap, fit) != best
    assert greedy_fails > 30  # the control: what the matching is for


def test_two_pairs_beat_one_of_larger_overlap():
    found = match(np.array([[0.9, 0.3], [0.3, 0.0]]), 0.2)
    assert sorted(zip(found.answered, found.true, strict=True)) == [(0, 1), (1, 0)] and found.f1 == 1


def greedy(overlap, fit):
    free, pairs, total = fit.copy(), 0, 0.0
    while free.any():
        i, j = np.unravel_index(np.where(free, overlap, -1).argmax(), overlap.shape)
        pairs, total = pairs + 1, total + overlap[i, j]
        free[i], free[:, j] = False, False
    return pairs, round(total, 6)


def plain_coco(answered, true, ours, theirs, scores):
    """mAP at 0.50:0.95 as pycocotools computes it, left to itself."""
    categories = {label: number for number, label in enumerate(sorted(set(theirs)), 1)}

    def rows(boxes, labels):
        for box, label in zip(boxes.tolist(), labels, strict=True):
            yield {
                "image_id": 1,
                "category_id": categories[label],
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": (box[2] - box[0]) * (box[3] - box[1]),
                "iscrowd": 0,
            }

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": 1}],
            "categories": [{"id": c} for c in categories.values()],
            "annotations": [row | {"id": i} for i, row in enumerate(rows(true, theirs), 1)],
        }
        coco.createIndex()
        results = [row | {"score": s} for row, s in zip(rows(answered, ours), scores, strict=True)]
        run = COCOeval(coco, coco.loadRes(results), "bbox")
        run.params.areaRng, run.params.areaRngLbl = [[0, 1e10]], ["all"]  # by size is not needed, and slow
        run.params.maxDets = [100]
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"]
    return precision[precision > -1].mean()


@pytest.mark.integration
def test_map_of_scored_boxes_equals_pycocotools():
    """500 pictures of 1 to 6 objects of 3 labels, with misses, spam and scores that all differ."""
    generator = np.random.default_rng(0)
    compared = []
    for _ in range(500):
        true = random_scene(generator, generator.integers(1, 7))
        answered = np.concatenate([jittered(generator, true[generator.random(len(true)) < 0.9]), true[:0]])
        answered = np.concatenate([answered, random_scene(generator, generator.integers(0, 3) + (len(answered) == 0))])
        theirs = generator.choice(["a", "b", "c"], len(true)).tolist()
        ours = generator.choice(theirs, len(answered)).tolist()
        ours[: len(true)] = theirs[: len(ours)]
        scores = generator.permutation(len(answered)) / 10
        value = average_precision(answered, true, ours, theirs, scores.tolist())
        assert value == pytest.approx(plain_coco(answered, true, ours, theirs, scores), abs=1e-9)
        compared.append(value)
    assert np.std(compared) > 0.2 and 0.2 < np.mean(compared) < 0.8


@pytest.mark.integration
def test_map_without_scores_is_precision_times_sampled_recall():
    """500 scenes whose objects stand apart, so that hits can be counted without matching."""
    generator = np.random.default_rng(1)
    differs = 0
    for _ in range(500):
        count = generator.integers(1, 8)
        place = generator.permutation(25)[:count]
        true = np.stack([place % 5, place // 5, place % 5, place // 5], 1) * 200 + [10, 10, 110, 130]
        kept = true[generator.random(count) < 0.8].astype(float)
        spam = random_scene(generator, generator.integers(0, 3)) + 2000
        answered = generator.permutation(np.concatenate([jittered(generator, kept), spam]))
        iou = pairwise_iou(answered, true.astype(float)).max(axis=1) if len(answered) else np.zeros(0)
        expected = []
        for threshold in np.arange(50, 100, 5) / 100:
            hits = (iou >= threshold).sum()
            reached = hits * 100 // count + 1 if hits else 0  # of the recalls 0, 0.01, ... 1
            expected.append(hits / max(1, len(answered)) * reached / 101)
        labels = [None] * len(answered), [None] * count
        value = average_precision(answered, true.astype(float), *labels, [1.0] * len(answered))
        assert value == pytest.approx(np.mean(expected), abs=1e-9)
        if len(answered):
            differs += abs(value - plain_coco(answered, true, ["a"] * len(answered), ["a"] * count, iou * 0 + 1)) > 1e-3
    assert differs > 50  # the control: pycocotools ranks equal scores as they are written


def test_map_ignores_order_where_pycocotools_does_not():
    true = [([0, 0, 100, 100], "dog"), ([0, 40, 100, 140], "dog")]
    answered = [([0, 10, 100, 110], "dog"), ([0, 0, 100, 75], "dog")]  # IoU 0.82, 0.54 and 0.75, 0.25
    assert score(DetectionMAP(), answered, true) == score(DetectionMAP(), answered[::-1], true)
    ours, theirs = (np.array([box for box, _ in side], float) for side in (answered, true))
    written = plain_coco(ours, theirs, ["dog"] * 2, ["dog"] * 2, [1.0] * 2)
    assert written != pytest.approx(plain_coco(ours[::-1], theirs, ["dog"] * 2, ["dog"] * 2, [1.0] * 2))


def test_spurious_boxes_lower_map_where_pycocotools_ignores_them():
    answered = [DOG, AWAY, AWAY]
    boxes = np.array([box for box, _ in answered], float), np.array([DOG[0]], float)
    assert plain_coco(*boxes, ["dog"] * 3, ["dog"], [1.0] * 3) == pytest.approx(1)
    assert score(DetectionMAP(), answered, [DOG]) == pytest.approx(1 / 3)


def test_scores_rank_boxes_on_request_and_are_then_required():
    def text(*scores):
        boxes = zip((DOG, AWAY), scores, strict=True)
        return json.dumps([{"box": box[0], "label": "dog", "score": score} for box, score in boxes])

    scored = DetectionMAP(scored=True)
    assert score(scored, text(0.9, 0.1), [DOG]) == 1  # COCO's rule, which odLength corrects
    assert score(scored, text(0.1, 0.9), [DOG]) == score(scored, text(0.5, 0.5), [DOG]) == pytest.approx(0.5)
    assert score(DetectionMAP(), text(0.9, 0.1), [DOG]) == pytest.approx(0.5)
    assert score(ODLength(scored=True), text(0.9, 0.1), [DOG]) == pytest.approx(0.5)
    output = scored.score([ask([DOG], [DOG])])
    assert output.status["detection_map"] == [Status.INVALID] and "box 1 has no score" in output.detail[0][scored.name]


@pytest.mark.integration
def test_published_map_is_that_of_pycocotools():
    """300 pictures with spam, equal scores in the order of the answer, and a label that the picture lacks."""
    generator = np.random.default_rng(3)
    lower = 0
    for _ in range(300):
        true = random_scene(generator, generator.integers(1, 5))
        answered = np.concatenate([jittered(generator, true), random_scene(generator, 2)])
        theirs = generator.choice(["a", "b"], len(true)).tolist()
        ours = [*theirs, *generator.choice(theirs, 2).tolist()]
        same = [1.0] * len(ours)
        value = average_precision(answered, true, ours, theirs, same, as_written=True)
        assert value == pytest.approx(plain_coco(answered, true, ours, theirs, same), abs=1e-9)
        foreign = np.concatenate([answered, random_scene(generator, 3)])
        labels = [*ours, *["z"] * 3]
        assert average_precision(foreign, true, labels, theirs, [1.0] * len(labels), as_written=True) == value
        lower += average_precision(answered, true, ours, theirs, same) < value - 0.01
    assert lower > 200  # the control: spam at the end costs nothing there


def test_published_od_length_is_what_makes_spam_cost():
    spam = [DOG, *[AWAY] * 3]
    assert score(DetectionMAP(published=True), spam, [DOG]) == pytest.approx(1)
    assert score(ODLength(published=True), spam, [DOG]) == pytest.approx(1 / 4)
    assert score(ODLength(published=True), [(DOG[0], "horse")], [DOG]) == 0
    assert score(ODLength(published=True), [DOG], [DOG, AWAY]) == pytest.approx(51 / 101)  # too few: mAP alone


def test_map_prints_nothing(capsys):
    stop, lines = threading.Event(), 0

    def score_on():
        while not stop.is_set():
            score(DetectionMAP(), SCENE, SCENE)

    thread = threading.Thread(target=score_on)
    thread.start()
    for lines in range(1, 31):  # noqa: B007
        print("line")
        score(DetectionMAP(), SCENE, SCENE)
    stop.set()
    thread.join()
    assert capsys.readouterr().out == "line\n" * lines


def test_invalid_arguments_are_rejected():
    for build, reason in [
        (lambda: DetectionF1(threshold=0.0), "threshold is 0.0"),
        (lambda: DetectionF1(threshold=1.5), "threshold is 1.5"),
        (lambda: WeightedPrecisionRecall(precision_weight=1.0), "precision_weight is 1.0"),
        (lambda: VisionR1(tighten_at=2.0), "tighten_at is 2.0"),
        (lambda: ODLength(space="pixels"), "space is 'pixels'"),
    ]:
        with pytest.raises(RewardError, match=reason):
            build()


def test_scheduled_rewards_are_marked():
    assert [reward.scheduled for reward in ALL] == [reward in SCHEDULED for reward in ALL]


CELLS = st.lists(st.integers(0, 24), unique=True, max_size=6)


def scene_of(cells):
    """Boxes that stand apart, on a grid of 5 by 5, of two labels."""
    return [([c % 5 * 100 + 10, c // 5 * 100 + 10, c % 5 * 100 + 80, c // 5 * 100 + 90], "ab"[c % 2]) for c in cells]


@given(CELLS, CELLS, st.lists(st.integers(-8, 8), min_size=6, max_size=6), st.randoms(), st.sampled_from(ALL))
def test_order_is_ignored_and_duplicates_lower_the_score(true_cells, answered_cells, shifts, random, reward):
    true = scene_of(true_cells)
    answered = [
        ([box[0] + shift, box[1], box[2] + shift, box[3]], label)
        for (box, label), shift in zip(scene_of(answered_cells), shifts, strict=False)
    ]
    ours, progress = reward(), random.random()
    base = score(ours, answered, true, progress)
    assert 0 <= base <= 1
    shuffled = random.sample(answered, len(answered))
    assert score(ours, shuffled, random.sample(true, len(true)), progress) == pytest.approx(base, abs=1e-6)
    for extra in (answered[:1], answered * 2, [([600, 600, 700, 700], "a")], [([600, 600, 700, 700], "z")] * 3):
        more = score(ours, [*answered, *extra], true, progress)
        assert more <= base + 1e-6
        # Once a label that is not there has cost its share of the mean, mAP does not count its boxes.
        if extra and reward not in (DetectionMAP, ODLength):
            assert more < base or base <= (2 / 3 + 1e-6 if reward is VisionR1 else 0)


@given(CELLS, CELLS, st.sampled_from(ALL), st.sampled_from([0.5, 3.0, 7.25]))
def test_detection_is_invariant_to_image_scale(true_cells, answered_cells, reward, scale):
    def scaled(boxes):
        return [([edge * scale for edge in box], label) for box, label in boxes]

    true, answered = scene_of(true_cells), scene_of(answered_cells)
    kind = reward(decimals=2) if reward is ReachableIoU else reward()
    assert score(kind, scaled(answered), scaled(true)) == pytest.approx(score(kind, answered, true), abs=1e-6)
