"""Mean average precision over pictures, against pycocotools from end to end."""

import contextlib
import io
import json

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmrl.benchmarks.metrics import Row, build_metric, measure
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.data.sample import RewardChoice, Sample

LABELS = ("cat", "dog", "bird")
SIZE = (200, 100)


def metric(**args):
    return build_metric(MetricConfig(name="coco_map", label="mAP", args=args))


def boxes(rng, count):
    corner = rng.uniform(0, (SIZE[0] - 70, SIZE[1] - 40), (count, 2))
    sides = rng.uniform(15, (70, 40), (count, 2))
    return np.concatenate([corner, corner + sides], axis=1).tolist()


def scene(rng, number, crowds=False, scores=True):
    """A picture with things, and an answer that moves, mislabels, misses and invents some."""
    true = [{"box": box, "label": str(rng.choice(LABELS))} for box in boxes(rng, int(rng.integers(0, 5)))]
    message = []
    for thing in true:
        if rng.random() < 0.8:
            moved = np.array(thing["box"]) + rng.normal(0, 2.5, 4)
            moved = np.clip(moved, 0, [*SIZE, *SIZE]).tolist()
            message.append({"bbox_2d": moved, "label": thing["label"] if rng.random() < 0.9 else "dog"})
    message += [{"bbox_2d": box, "label": str(rng.choice(LABELS))} for box in boxes(rng, int(rng.integers(0, 3)))]
    if scores:
        message = [each | {"score": float(rng.random())} for each in message]
    crowd = boxes(rng, 1) if crowds else []
    shares = [[x1 / SIZE[0], y1 / SIZE[1], x2 / SIZE[0], y2 / SIZE[1]] for x1, y1, x2, y2 in crowd]
    known = {"space": "pixel", "size": list(SIZE), "crowd": [{"box": box, "label": "cat"} for box in shares]}
    sample = Sample(id=str(number), answer=true, metadata=known)
    return Row(sample, json.dumps(message)), crowd


def by_pycocotools(scenes, threshold=None):
    """COCO's AP, of a data set and results as pycocotools itself reads them."""
    truth, results = [], []
    for picture, (row, crowd) in enumerate(scenes):
        things = [(t["box"], t["label"], 0) for t in row.sample.answer] + [(box, "cat", 1) for box in crowd]
        for (x1, y1, x2, y2), label, iscrowd in things:
            truth.append(
                {
                    "id": len(truth) + 1,
                    "image_id": picture,
                    "category_id": LABELS.index(label) + 1,
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": iscrowd,
                }
            )
        for box in json.loads(row.text):
            x1, y1, x2, y2 = box["bbox_2d"]
            result = {"image_id": picture, "category_id": LABELS.index(box["label"]) + 1, "score": box["score"]}
            results.append(result | {"bbox": [x1, y1, x2 - x1, y2 - y1]})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "info": {},
            "images": [{"id": picture, "width": SIZE[0], "height": SIZE[1]} for picture in range(len(scenes))],
            "categories": [{"id": n, "name": name} for n, name in enumerate(LABELS, start=1)],
            "annotations": truth,
        }
        coco.createIndex()
        run = COCOeval(coco, coco.loadRes(results), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return run.stats[{None: 0, 0.5: 1, 0.75: 2}[threshold]]


@pytest.mark.parametrize("crowds", [False, True])
@pytest.mark.parametrize("threshold", [None, 0.5, 0.75])
def test_map_equals_pycocotools_for_distinct_scores(threshold, crowds):
    rng = np.random.default_rng(1)
    scenes = [scene(rng, number, crowds) for number in range(25)]
    expected = by_pycocotools(scenes, threshold)
    found = measure(metric(iou=threshold), [row for row, _ in scenes])
    assert 0.1 < expected < 0.95
    assert found == pytest.approx(expected, abs=1e-9)


def test_map_counts_repeated_images():
    rng = np.random.default_rng(2)
    scenes = [scene(rng, number) for number in range(12)]
    rows, drawn = [row for row, _ in scenes], np.array([0, 3, 3, 3, 7, 11, 5, 5])
    over = metric().prepare(rows)
    assert over(drawn) == pytest.approx(measure(metric(), [rows[n] for n in drawn]), abs=1e-12)
    assert over(drawn) != pytest.approx(over(np.arange(12)), abs=1e-3)


def test_map_without_scores_is_precision_times_recall():
    """Two things, of which one is found; three boxes in all: precision 1/3, recall 1/2, of 101 levels 51."""
    known = {"space": "pixel", "size": [100, 100]}
    sample = Sample(id="a", answer=[{"box": [0, 0, 10, 10], "label": "cat"}], metadata=known)
    hit = Row(sample, '[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}]')
    miss = Row(sample, '[{"bbox_2d": [50, 50, 60, 60], "label": "cat"}, {"bbox_2d": [20, 50, 30, 60], "label": "cat"}]')
    assert measure(metric(), [hit, miss]) == measure(metric(), [miss, hit]) == pytest.approx(51 / 101 / 3)


def test_map_reads_thousandths_and_takes_malformed_answers_for_no_boxes():
    known = {"space": "pixel", "size": [200, 100]}
    sample = Sample(id="a", answer=[{"box": [20, 10, 60, 50], "label": "cat"}], metadata=known)
    message = RewardChoice("detection_f1", args={"space": "norm_1000"})
    requested = Sample(id="b", answer=sample.answer, metadata=known, rewards=(message,))
    assert measure(metric(), [Row(sample, '[{"bbox_2d": [20, 10, 60, 50], "label": "cat"}]')]) == 1
    assert measure(metric(), [Row(requested, '[{"bbox_2d": [100, 100, 300, 500], "label": "cat"}]')]) == 1
    assert measure(metric(), [Row(sample, "a cat at 20, 10")]) == 0
    assert np.isnan(measure(metric(), [Row(Sample(id="c", answer=[], metadata=known), "[]")]))


@pytest.mark.parametrize(("label", "expected"), [("traffic  Light", 1), ("bus", 0)])
def test_labels_are_compared_without_case_and_white_space(label, expected):
    sample = Sample(
        id="0",
        answer=[{"box": [10, 10, 50, 50], "label": "Traffic light"}],
        metadata={"space": "pixel", "size": list(SIZE)},
    )
    answer = json.dumps([{"bbox_2d": [10, 10, 50, 50], "label": label}])
    assert measure(metric(), [Row(sample, answer)]) == expected
