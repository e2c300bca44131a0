"""GenEval's verdict is the truth about rendered scenes, by numbers made by hand, and by the original's own rules."""

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, Status
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.images.detector import Detection
from mmrl.rewards.images.geneval import (
    RELATIONS,
    GenEval,
    evaluate_clauses,
    parse_clauses,
    relations,
    top_by_confidence,
)
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.scenes import SHAPES, Scene, draw, place
from tests.rewards.images.shape_detector import PaletteColours, ShapeDetector

PIXELS = 64


def ask(image, include, exclude=None, tag=None):
    references = {"include": include}
    references |= {} if exclude is None else {"exclude": exclude}
    references |= {} if tag is None else {"tag": tag}
    return RewardInput(id="a", group=0, prompt="", image=image, references=references)


def shape_geneval(**settings):
    return GenEval(detector=ShapeDetector(), colours=PaletteColours(), **settings)


def random_scene(rng) -> Scene:
    while True:
        kinds = [KINDS[i] for i in rng.integers(0, len(KINDS), rng.integers(1, 5))]
        # Sides far enough apart that the order of size is the same after rounding to pixels
        sides = rng.permutation([0.22, 0.26, 0.30, 0.34])[: len(kinds)]
        scene = place([(*kind, float(side)) for kind, side in zip(kinds, sides, strict=True)], rng, tries=50)
        if scene is not None:
            return scene


def largest(scene, shape):
    return sorted((thing for thing in scene.things if thing.shape == shape), key=lambda thing: -thing.side)


def direction(a, b):
    """Return the position of `a` relative to `b`, by the angle between centres; None too near a border to decide.

    GenEval asks for an offset, less a tenth of both sides, of more than half the distance.
    """
    dx, dy = a.x - b.x, a.y - b.y
    apart, seen = np.hypot(dx, dy), set()
    for shift, names in ((dx, RELATIONS[:2]), (dy, RELATIONS[2:])):
        share = (abs(shift) - 0.1 * (a.side + b.side)) / apart
        if abs(share - 0.5) < 0.04:
            return None
        if share > 0.5:
            seen.add(names[0] if shift < 0 else names[1])
    return seen


def random_task(rng, scene):
    """Clauses, and what is true of a scene: None where a scene is too near a border to tell."""
    thing = scene.things[int(rng.integers(len(scene.things)))]
    kind, shape = rng.integers(5), thing.shape
    count = len(largest(scene, shape)) if rng.random() < 0.5 else int(rng.integers(1, 4))
    colour = thing.colour if rng.random() < 0.7 else "red"
    other = str(rng.choice([s for s in SHAPES if s != shape]))
    relation = str(rng.choice(RELATIONS))
    if kind == 0:
        return [{"class": shape, "count": count}], [], lambda s: len(largest(s, shape)) >= count
    if kind == 1:
        exclude = [{"class": shape, "count": count + 1}]
        return [{"class": shape, "count": count}], exclude, lambda s: len(largest(s, shape)) == count
    if kind == 2:
        line = {"class": shape, "count": count, "color": colour}
        return [line], [], lambda s: [t.colour for t in largest(s, shape)[:count]] == [colour] * count
    if kind == 3:
        exclude = [{"class": other, "count": 1}]
        return [{"class": shape, "count": 1}], exclude, lambda s: bool(largest(s, shape)) and not largest(s, other)

    def placed(scene):
        if not largest(scene, shape) or not largest(scene, other):
            return False
        seen = direction(largest(scene, other)[0], largest(scene, shape)[0])
        return None if seen is None else relation in seen

    return [{"class": shape, "count": 1}, {"class": other, "count": 1, "position": [relation, 0]}], [], placed


@pytest.mark.integration
def test_geneval_is_right_on_rendered_scenes():
    rng = np.random.default_rng(0)
    reward, items, truths = shape_geneval(), [], []
    while len(items) < 600:
        scene = random_scene(rng)
        picture = draw(scene, PIXELS)
        for include, exclude, holds in (random_task(rng, scene) for _ in range(4)):
            if (truth := holds(scene)) is not None:
                items.append(ask(picture, include, exclude, "counting" if exclude else "single_object"))
                truths.append(float(truth))
    output = reward.score(items)
    assert set(output.status["geneval"]) == {Status.OK}
    assert output.values["geneval"].tolist() == truths
    assert 200 < sum(truths) < 400  # both verdicts occur often
    graded = output.values["geneval/graded"]
    assert np.all((graded >= 0) & (graded <= 1))
    assert np.all(output.values["geneval/strict"][graded == 1] == 1)


def test_wrong_colour_classifiers_lower_the_score():
    """The control of the test above."""

    class Backwards(PaletteColours):
        def colours(self, image, found):
            return ["red"] * len(found)

    rng = np.random.default_rng(0)
    scenes = [random_scene(rng) for _ in range(30)]
    items = [
        ask(draw(s, PIXELS), [{"class": t.shape, "count": 1, "color": t.colour}])
        for s in scenes
        for t in [largest(s, s.things[0].shape)[0]]
    ]
    assert np.all(shape_geneval().score(items).values["geneval"] == 1)
    assert np.mean(GenEval(ShapeDetector(), Backwards()).score(items).values["geneval"]) < 0.5


def test_detector_is_called_once_for_all_classes():
    detector = ShapeDetector()
    reward = GenEval(detector, PaletteColours())
    include = [{"class": "square", "count": 1}, {"class": "circle", "count": 1}]
    reward.score([ask(Image.new("RGB", (32, 32), "white"), include, [{"class": "triangle", "count": 1}])])
    assert detector.requested == [["circle", "square", "triangle"]]


def found(*things):
    """Detections of (label, score, box)."""
    return [Detection(label, score, box) for label, score, box in things]


BOX = (0.0, 0.0, 10.0, 10.0)


def test_detections_are_filtered_by_threshold_number_and_overlap():
    things = found(("a", 0.3, BOX), ("a", 0.5, BOX), ("b", 0.31, BOX), ("a", 0.9, (5.0, 0.0, 15.0, 10.0)))
    kept = top_by_confidence(things, 0.3, 16, 1.0)
    assert {label: [thing.score for thing in group] for label, group in kept.items()} == {"a": [0.9, 0.5], "b": [0.31]}
    assert [thing.score for thing in top_by_confidence(things, 0.3, 1, 1.0)["a"]] == [0.9]
    # 6 x 11 of 2 x 121 - 66 pixels are shared: 0.375
    assert len(top_by_confidence(things, 0.3, 16, 0.38)["a"]) == 2
    assert len(top_by_confidence(things, 0.3, 16, 0.37)["a"]) == 1


@pytest.mark.parametrize(
    "centre, expected",
    [
        ((60, 0), {"right of"}),
        ((-60, 0), {"left of"}),
        ((0, 60), {"below"}),
        ((0, -60), {"above"}),
        ((60, 60), {"right of", "below"}),
        ((-60, -60), {"left of", "above"}),
        ((4, 0), set()),  # no further than a tenth of both sides
        ((4.001, 0), set()),  # a thousandth of a pixel
        ((7.9, 0), set()),  # (7.9 - 4) / 7.9 < 0.5
        ((8.1, 0), {"right of"}),
        ((0, 0), set()),
    ],
)
def test_relative_positions_by_hand(centre, expected):
    (x, y), half = centre, 10
    assert relations((x - half, y - half, x + half, y + half), (-half, -half, half, half)) == expected


def test_relative_positions_equal_the_original_formula():
    """djghosh13/geneval evaluation/evaluate_images.py, said with arrays as there."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        a, b = rng.uniform(0, 100, (2, 2, 2))
        offset = a.mean(0) - b.mean(0)
        reach = np.abs(a[1] - a[0]) + np.abs(b[1] - b[0])
        share = np.maximum(np.abs(offset) - 0.1 * reach, 0) * np.sign(offset) / np.linalg.norm(offset)
        names = (
            ("left of", share[0] < -0.5),
            ("right of", share[0] > 0.5),
            ("above", share[1] < -0.5),
            ("below", share[1] > 0.5),
        )
        assert relations(tuple(a.ravel()), tuple(b.ravel())) == {name for name, holds in names if holds}


def graded(include, things, colours=(), exclude=()):
    seen = top_by_confidence(found(*things), 0.3, 16, 1.0)
    verdict = evaluate_clauses(
        parse_clauses(include, "include"), parse_clauses(list(exclude), "exclude"), seen, lambda _: list(colours)
    )
    return verdict.correct, verdict.graded


RIGHT = (100.0, 0.0, 110.0, 10.0)


@pytest.mark.parametrize(
    "include, things, colours, expected",
    [
        # Flow-GRPO's credits by hand: how near the count is, 0 for a colour or place that cannot be looked at
        ([("dog", 2)], [("dog", 1.0, BOX)], [], (False, 0.5)),
        ([("dog", 2)], [("dog", 1.0, BOX)] * 2, [], (True, 1.0)),
        ([("dog", 2)], [("dog", 1.0, BOX)] * 3, [], (True, 0.5)),
        ([("dog", 1)], [("dog", 1.0, BOX)] * 4, [], (True, 0.0)),
        ([("dog", 2, "red")], [("dog", 1.0, BOX)] * 2, ["red", "blue"], (False, 0.75)),
        ([("dog", 2, "red")], [("dog", 1.0, BOX)] * 2, ["red", "red"], (True, 1.0)),
        ([("dog", 2, "red")], [("dog", 1.0, BOX)], [], (False, 0.25)),
        ([("dog", 1), ("cat", 1)], [("dog", 1.0, BOX)], [], (False, 0.5)),
        ([("dog", 1), ("cat", 1, None, ["right of", 0])], [("dog", 1.0, BOX), ("cat", 1.0, RIGHT)], [], (True, 1.0)),
        ([("dog", 1), ("cat", 1, None, ["left of", 0])], [("dog", 1.0, BOX), ("cat", 1.0, RIGHT)], [], (False, 2 / 3)),
        ([("dog", 1), ("cat", 1, None, ["left of", 0])], [("dog", 1.0, BOX)], [], (False, 1 / 3)),
        ([("dog", 1), ("cat", 1, None, ["right of", 0])], [("cat", 1.0, RIGHT)], [], (False, 1 / 3)),
    ],
)  # fmt: skip
def test_strict_and_graded_scores_by_hand(include, things, colours, expected):
    keys = ("class", "count", "color", "position")
    lines = [dict(zip(keys, line, strict=False)) for line in include]
    right, grade = graded(lines, things, colours)
    assert (right, pytest.approx(grade)) == expected


def test_excluded_objects_count_once():
    dog, cat = ("dog", 1.0, BOX), ("cat", 1.0, BOX)
    lines, cats, dogs = [{"class": "dog", "count": 2}], [{"class": "cat", "count": 1}], [{"class": "dog", "count": 3}]
    assert graded(lines, [dog, dog], exclude=cats) == (True, 1.0)
    assert graded(lines, [dog, dog, cat], exclude=cats) == (False, 0.5)
    assert graded(lines, [dog] * 3, exclude=dogs) == (False, 0.5)  # as without: the count tells it already
    assert graded(lines, [dog] * 2, exclude=[{"class": "dog", "count": 2}]) == (False, 0.5)  # can never be right


def test_counting_has_a_separate_threshold():
    class Unsure(ShapeDetector):
        def detect(self, image, classes):
            return [Detection("dog", 0.6, BOX)]

    item = [{"class": "dog", "count": 1}]
    picture = Image.new("RGB", (20, 20))
    reward = GenEval(Unsure(), None)
    output = reward.score([ask(picture, item, tag=tag) for tag in (None, "single_object", "counting")])
    assert output.values["geneval"].tolist() == [1, 1, 0]
    assert (
        GenEval(Unsure(), None, counting_threshold=0.5).score([ask(picture, item, tag="counting")]).values["geneval"]
        == 1
    )


def test_geneval_is_strict_or_graded():
    scene = draw(place([("red", "circle", 0.3)], np.random.default_rng(0)), PIXELS)
    item = ask(scene, [{"class": "circle", "count": 2}])
    strict, graded = (shape_geneval(graded=graded).score([item]).values for graded in (False, True))
    assert [strict[name][0] for name in ("geneval", "geneval/strict", "geneval/graded")] == [0, 0, 0.5]
    assert [graded[name][0] for name in ("geneval", "geneval/strict", "geneval/graded")] == [0.5, 0, 0.5]


@pytest.mark.parametrize(
    "include, says",
    [
        ([], "expected a list of clauses"),
        ("dog", "expected a list of clauses"),
        ([["dog", 1]], r'include\'\]\[0\]: .*expected {"class": ..., "count": ...}'),
        ([{"class": "", "count": 1}], "class is ''; expected a word"),
        ([{"class": "dog", "count": 0}], "count is 0; expected a number from 1 up"),
        ([{"class": "dog", "count": True}], "count is True"),
        ([{"class": "dog"}], "count is None"),
        ([{"class": "dog", "count": 1, "color": "redish"}], "color is 'redish'; expected one of red, orange"),
        ([{"class": "dog", "count": 1, "position": ["left of", 0]}], "expected the index of an earlier clause"),
        ([{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["beside", 0]}], "position is"),
        ([{"class": "dog", "count": 1}, {"class": "cat", "count": 1, "position": ["above", -1]}], "clause -1"),
    ],
)
def test_malformed_clauses_are_scorer_failures(include, says):
    with pytest.raises(ScoringFailed, match=says):
        parse_clauses(include, "include")
    output = shape_geneval().score([ask(Image.new("RGB", (32, 32)), include)])
    assert output.status["geneval"] == [Status.ERROR]
    assert np.isnan(output.values["geneval"][0])
    assert output.failures[0]["geneval"].kind == "reference"


def test_colours_without_a_classifier_are_scorer_failures():
    item = ask(Image.new("RGB", (32, 32)), [{"class": "circle", "count": 1, "color": "red"}])
    output = GenEval(ShapeDetector(), None).score([item])
    assert output.failures[0]["geneval"].kind == "no_colours"


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"threshold": 1.5}, "threshold is 1.5; it must be in"),
        ({"max_overlap": -0.1}, "max_overlap is -0.1"),
        ({"counting_threshold": float("nan")}, "counting_threshold is nan"),
        ({"max_objects": 0}, "max_objects is 0"),
        ({"position_threshold": float("inf")}, "position_threshold is inf"),
    ],
)
def test_invalid_settings_are_rejected(settings, says):
    with pytest.raises(RewardError, match=says):
        GenEval(**({"detector": ShapeDetector(), "colours": None} | settings))
