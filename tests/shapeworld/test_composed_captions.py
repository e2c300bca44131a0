"""Captions that are drawn and measured apart from those that are learnt from, and what a picture of one is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmrl.rewards.core.reward_errors import RewardError
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
        assert len({each.prompt for each in found}) == len(found)
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


class Scenes:
    """A painter that draws the same scenes of every caption."""

    def __init__(self, *drawn: Scene) -> None:
        self.drawn = drawn

    def pictures(self, wanted, seed, draws=1):
        return [[draw(self.drawn[n % len(self.drawn)]) for n in range(draws)] for _ in wanted]


def composition(*drawn: Scene, draws: int) -> dict[str, list[float]]:
    """Return the values of one sample, a red circle left of a blue square, with its scenes drawn in turn."""
    sample = replace(samples("composed-development")[0], answer=PAIR.as_dict())
    context = RewardContext(models={"painter": Scenes(*drawn)})
    found = Composition(draws).score([reward_input(sample, "", 0, "a")], context)
    return {name: values.tolist() for name, values in found.values.items()}


RIGHT = scene(("red", "circle", 0.2), ("blue", "square", 0.7))
TURNED = scene(("blue", "square", 0.2), ("red", "circle", 0.7))
SWAPPED = scene(("red", "square", 0.2), ("blue", "circle", 0.7))
LACKING = scene(("red", "circle", 0.2))


@pytest.mark.parametrize(
    ("drawn", "right", "share", "counted"),
    [(RIGHT, 1, 1, 1), (TURNED, 0, 1, 1), (SWAPPED, 0, 0, 1), (LACKING, 0, 0.5, 0)],
)
def test_composition_tells_what_is_wrong_with_a_picture(drawn, right, share, counted):
    values = composition(drawn, draws=1)
    assert (values["right"], values["bound"], values["counted"]) == ([right], [share], [counted])
    assert 0 < values["credit"][0] <= 1


def test_composition_is_the_mean_over_the_pictures_of_a_caption():
    values = composition(RIGHT, TURNED, SWAPPED, LACKING, draws=4)
    assert (values["right"], values["bound"], values["counted"]) == ([0.25], [2.5 / 4], [0.75])
    with pytest.raises(RewardError, match="draws is 0"):
        Composition(0)


def test_a_run_without_a_painter_measures_nothing():
    found = Composition().score([reward_input(samples("composed-development")[0], "", 0, "a")], RewardContext())
    assert np.isnan(found.values["right"]).all()
