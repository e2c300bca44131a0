"""Worlds that careless demonstrations teach: right answers are perfect, careless ones often not, and splits apart."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from mmrl.rewards import RewardInput, load
from mmrl_shapeworld.captions import HELDOUT_KINDS
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import LINE
from mmrl_shapeworld.worlds import drives, moments, movers
from mmrl_shapeworld.worlds.taught_worlds import SIZES, WORLDS, taught_questions

AXES = {"speed": {"on": 1, "down": 1, "up": 1}, "path": {"way": 1, "left": 1, "right": 1}}
REWARDS = {
    "drive": [load("meta_actions", axes=AXES)],
    "blot": [load("legible_text")],
    "movers": [load("agent_plan", limit=10)],
    "grasp": [load("box_iou"), load("path_coverage")],
    "hidden": [load("weighted_pr"), load("mmrl_shapeworld.worlds.hidden_things:HiddenFound")],
    "moments": [load("temporal_iou")],
}
CARELESS = {
    "drive": (0.9, 1.0),
    "blot": (0.05, 0.7),
    "movers": (0.6, 0.9),
    "grasp": (0.3, 0.8),
    "hidden": (0.6, 0.8),
    "moments": (0.8, 0.9),
}
"""The mean reward of demonstrations lies between these."""
EVERY_DAY = [
    pytest.param(world, marks=[pytest.mark.slow] * (world in ("hidden", "drive", "moments"))) for world in WORLDS
]
"""The largest three take longer than all others."""


def scores(world: str, texts: list[str], rows: list) -> np.ndarray:
    references = [{**row.metadata, "answer": row.answer} for row in rows]
    items = [
        RewardInput(str(n), n, row.prompt, text=text, references=each)
        for n, (row, text, each) in enumerate(zip(rows, texts, references, strict=True))
    ]
    return np.mean([reward.score(items).values[reward.name] for reward in REWARDS[world]], axis=0)


@pytest.mark.integration
@pytest.mark.parametrize("world", EVERY_DAY)
def test_right_answers_are_perfect_and_demonstrations_careless(world):
    for part in ("train", "validation"):
        rows = samples(f"{world}-{part}")[:200]
        assert (scores(world, [row.metadata["right"] for row in rows], rows) == 1).all()
    rows = samples(f"{world}-train")[:200]
    low, high = CARELESS[world]
    assert low < scores(world, [row.demonstration for row in rows], rows).mean() < high
    answered = samples(f"{world}-right-train")
    assert [row.videos + row.images for row in answered] == [
        row.videos + row.images for row in samples(f"{world}-train")
    ]
    assert all(row.demonstration == row.metadata["right"] for row in answered)


@pytest.mark.integration
@pytest.mark.parametrize("world", EVERY_DAY)
def test_no_two_splits_share_a_question(world):
    keys = [
        {
            (each.prompt, b"".join(frame.tobytes() for frame in each.frames))
            for _, each in taught_questions(f"{world}-{part}")
        }
        for part in SIZES
    ]
    assert [len(each) for each in keys] == list(SIZES.values())
    assert len(set().union(*keys)) == sum(SIZES.values())


def test_events_are_rare_in_training_and_even_in_tests():
    trained = Counter(row.source for row in samples("drive-train"))
    assert 0.66 < trained["drive-keep"] / 1200 < 0.74
    tested = Counter(row.source for row in samples("drive-validation"))
    assert min(tested.values()) > 90 and tested.keys() == trained.keys()


def test_a_thing_moves_as_the_event_says():
    rng = np.random.default_rng(0)
    for _ in range(60):
        clip = drives.eventful_drive(rng)
        (first,), (last,) = clip.regions[0], clip.regions[-1]
        dx, dy = last[1][0] - first[1][0], last[1][1] - first[1][1]
        way = {"keep": (0, 0), "brake": (0, 1), "left": (1, 0), "right": (-1, 0)}[clip.metadata["event"]]
        assert abs(dx - 3 * way[0]) <= 2 + 9 * abs(way[0]) and abs(dy - 3 * way[1]) <= 2 + 9 * abs(way[1])
        assert any((a != b).any() for a, b in zip(clip.frames, clip.frames[1:], strict=False))


def test_a_letter_that_cannot_be_read_is_covered_as_a_whole():
    for source, each in taught_questions("blot-train")[:60]:
        hidden = each.metadata["unreadable"]
        assert bool(hidden) == (source == "blot-some") and each.right.count("?") == len(hidden)
        for place, (_, (x1, y1, x2, y2)) in enumerate(each.regions[0]):
            assert (each.frames[0][y1:y2, x1:x2] == LINE).all() == (place in hidden)


def test_movers_are_the_circles_from_left_to_right_and_go_to_the_side_of_the_box():
    rng = np.random.default_rng(1)
    for _ in range(60):
        each = movers.movers(rng)
        circles = sorted((box, name.split()[0]) for name, box in each.regions[0] if name.endswith("circle"))
        assert [colour for _, colour in circles] == each.answer["agents"] and len(circles) == 2
        ((x, _),) = each.answer["points"]
        sides = ["right" if x > (box[0] + box[2]) / 2 else "left" for box, _ in circles]
        assert each.answer["steps"] == sides


def test_moments_are_seen_in_the_frames_and_pressed_late_at_most():
    for source, each in taught_questions("moments-train")[:90]:
        without = {frame.tobytes() for frame in each.frames}
        assert len(without) == len(each.frames) == moments.FRAMES  # what is joined in a GIF would change all times
        if source == "moment-never":
            assert each.answer == [] and each.right == each.annotated == "[]"
            continue
        begin, end = (round(2 * at) for at in each.answer)
        assert (begin, end) == (0, moments.FRAMES) if source == "moment-whole" else 0 < end - begin < moments.FRAMES
        areas = [int((frame > 0).sum()) for frame in each.frames]
        there = [area > min(areas) + 40 or source == "moment-whole" for area in areas]
        assert there == [begin <= number < end for number in range(moments.FRAMES)]
        pressed = [round(2 * at) for at in json.loads(each.annotated)]
        assert pressed[0] >= begin - 1 and end <= pressed[1] <= end + 2 and pressed[0] < pressed[1]


def test_heldout_kinds_are_in_tests_alone():
    unseen = {f"{colour} {shape}" for colour, shape in HELDOUT_KINDS}
    trained = {name for _, each in taught_questions("grasp-train") for name, _ in each.regions[0]}
    assert not trained & unseen
    tested = {
        each.regions[0][0][0] for source, each in taught_questions("grasp-validation") if source == "grasp-unseen"
    }
    assert tested == unseen
