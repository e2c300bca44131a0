"""Captions that are drawn and measured apart from those that are learnt from, and what a picture of one is worth."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl_shapeworld import composed_captions
from mmrl_shapeworld.captions import Caption, Clause
from mmrl_shapeworld.checker import read
from mmrl_shapeworld.composed_captions import Composition, bound, samples, split_of
from mmrl_shapeworld.scenes import Scene, Thing, draw

RED, BLUE = Clause(1, "red", "circle"), Clause(1, "blue", "square")
PAIR = Caption((RED, BLUE), "left of")


def scene(*things: tuple[str, str, float]) -> Scene:
    """Return things of one size in a row, each a colour, a shape and where it is from left to right, in [0, 1]."""
    return Scene(tuple(Thing(colour, shape, x, 0.5, 0.25) for colour, shape, x in things))


def test_no_split_names_the_same_things_as_another():
    named = {split: {frozenset(map(str, Caption.from_dict(each.answer).clauses)) for each in samples(split)}
             for split in composed_captions.NAMES}  # fmt: skip
    train, development, validation = named.values()
    assert not (train & development or train & validation or development & validation)
    assert split_of(PAIR) == split_of(Caption((BLUE, RED))) == split_of(Caption((BLUE, RED), "above"))
    with pytest.raises(KeyError):
        samples("composed-later")


def test_each_split_has_every_form_and_questions_about_the_whole_caption_and_each_thing():
    for split in composed_captions.NAMES:
        found = samples(split)
        assert {each.source for each in found} == {f"draw-{form}" for form in ("single", "count", "pair", "relation")}
        for each in found:
            kinds = [question["kind"] for question in each.metadata["questions"]]
            assert kinds.count("whole") == 1
            assert kinds.count("thing") == len(Caption.from_dict(each.answer).clauses)


@pytest.mark.parametrize(
    ("things", "share"),
    [
        ([("red", "circle", 0.2), ("blue", "square", 0.7)], 1.0),
        ([("blue", "square", 0.2), ("red", "circle", 0.7)], 1.0),  # a relation binds nothing
        ([("red", "square", 0.2), ("blue", "circle", 0.7)], 0.0),  # the right colours and shapes, bound wrongly
        ([("red", "circle", 0.5)], 0.5),
        ([("red", "circle", 0.15), ("red", "circle", 0.5), ("blue", "square", 0.85)], 2 / 3),
        ([], 0.0),
    ],
)
def test_things_are_bound_where_colour_and_shape_are_those_of_one_clause(things, share):
    assert bound(read(draw(scene(*things))), PAIR) == pytest.approx(share)


class OneScene:
    """A painter that draws one scene of every caption."""

    def __init__(self, drawn: Scene) -> None:
        self.drawn = drawn

    def pictures(self, wanted, seed, draws=1):
        return [[draw(self.drawn)] for _ in wanted]


@pytest.mark.parametrize(
    ("things", "right", "counted", "share"),
    [
        ([("red", "circle", 0.2), ("blue", "square", 0.7)], 1, 1, 1.0),
        ([("blue", "square", 0.2), ("red", "circle", 0.7)], 0, 1, 1.0),
        ([("red", "square", 0.2), ("blue", "circle", 0.7)], 0, 1, 0.0),
        ([("red", "circle", 0.2)], 0, 0, 0.5),
    ],
)
def test_composition_tells_what_is_wrong_with_a_picture(things, right, counted, share):
    sample = samples("composed-development")[0]
    item = reward_input(sample, "", 0, "a")
    item.references["answer"] = PAIR.as_dict()
    found = Composition().score([item], RewardContext(models={"painter": OneScene(scene(*things))}))
    values = {name: values.tolist() for name, values in found.values.items()}
    assert values["right"] == [right] and values["counted"] == [counted]
    np.testing.assert_allclose(values["bound"], [share])


def test_a_run_without_a_painter_measures_nothing():
    found = Composition().score([reward_input(samples("composed-development")[0], "", 0, "a")], RewardContext())
    assert np.isnan(found.values["right"]).all()
