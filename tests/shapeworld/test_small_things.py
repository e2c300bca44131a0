"""Pages with clusters of small things, and regions that follow no picture."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.region_proposals import RegionProposals
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import box_answer
from mmrl_shapeworld.worlds.small_things import CLUSTERS, NAMES, REGION, SIZES, FixedRegions

ZOOM = PIXELS / REGION


@pytest.fixture(scope="module")
def small() -> list[Sample]:
    return samples("small-validation")


def scored(reward, sample, text=""):
    references = {"answer": sample.answer, **sample.metadata}
    output = reward.score([RewardInput(sample.id, sample.id, sample.prompt, text=text, references=references)])
    return {name: float(values[0]) for name, values in output.values.items()}


def clusters(sample):
    """Return a region around each cluster: boxes that are near one another, joined greedily."""
    groups: list[list[list[int]]] = []
    for box in (each["box"] for each in sample.answer):
        for group in groups:
            joined = [*group, box]
            sides = [max(b[k + 2] for b in joined) - min(b[k] for b in joined) for k in (0, 1)]
            if max(sides) <= REGION:
                group.append(box)
                break
        else:
            groups.append([box])
    groups.sort(key=len, reverse=True)
    return [
        [f(b[k] for b in group) for f, k in ((min, 0), (min, 1), (max, 2), (max, 3))] for group in groups[:CLUSTERS]
    ]


@pytest.mark.slow
def test_splits_have_their_sizes_and_share_no_page():
    pages = []
    for name in NAMES:
        found = samples(name)
        assert len(found) == SIZES[name.rpartition("-")[2]]
        assert {len(sample.answer) for sample in found} == ({3} if name.startswith("apart") else {6, 7, 8, 9})
        pages.append({sample.images for sample in found})
    assert len(set.union(*pages)) == sum(map(len, pages))


@pytest.mark.slow
def test_three_regions_can_show_nearly_all_things_and_boxes_of_single_things_cannot(small):
    reward = RegionProposals(zoom=ZOOM)
    around = [
        scored(reward, s, json.dumps([{"bbox_2d": [int(e) for e in box]} for box in clusters(s)]))["recall"]
        for s in small[:64]
    ]
    alone = [
        scored(reward, s, json.dumps([{"bbox_2d": each["box"]} for each in s.answer]))["recall"] for s in small[:64]
    ]
    assert np.mean(around) > 0.9 and np.mean(alone) < 0.45
    assert scored(reward, small[0], box_answer((0, 0, PIXELS, PIXELS)))["recall"] == 0.0


@pytest.mark.slow
def test_no_region_shows_two_of_the_things_that_are_apart():
    """Each needs one box, and a grid of nine cells finds a fifth of them."""
    for sample in samples("apart-validation")[:64]:
        boxes = [each["box"] for each in sample.answer]
        for n, one in enumerate(boxes):
            for other in boxes[:n]:
                assert max(max(one[k + 2], other[k + 2]) - min(one[k], other[k]) for k in (0, 1)) > REGION
        assert scored(RegionProposals(zoom=ZOOM), sample, json.dumps([{"bbox_2d": b} for b in boxes]))["recall"] == 1.0
    assert 0.15 < np.mean([scored(FixedRegions("grid"), s)["recall"] for s in samples("apart-validation")[:64]]) < 0.25


@pytest.mark.slow
def test_training_pages_of_things_that_are_apart_show_their_boxes():
    for sample in samples("apart-train")[:20]:
        assert json.loads(sample.demonstration) == [{"bbox_2d": each["box"]} for each in sample.answer]
    assert all(sample.demonstration is None for sample in (*samples("apart-validation"), *samples("small-train")))


@pytest.mark.slow
def test_fixed_regions_follow_no_text(small):
    for kind in ("grid", "random"):
        reward = FixedRegions(kind)
        first = scored(reward, small[0], "")
        assert first == scored(reward, small[0], box_answer((1, 1, 9, 9)))
        mean = np.mean([scored(reward, sample)["recall"] for sample in small[:64]])
        assert 0.15 < mean < 0.4
    assert scored(FixedRegions("grid"), small[0])["valid"] == pytest.approx(1.0)
    with pytest.raises(RewardError, match="grid or random"):
        FixedRegions("best")


def test_unknown_splits_are_named():
    with pytest.raises(KeyError, match="small-ood"):
        samples("small-ood")
