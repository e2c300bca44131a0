"""Edits of a thing that is not named: what is meant, disjoint splits, a careless annotator, and the rewards."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.media.decode import load_image
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld import reasoned_edits
from mmrl_shapeworld.editing import Edit
from mmrl_shapeworld.reasoned_edits import (
    FORMS,
    KNOWN,
    SPLITS,
    TAUGHT,
    TIMES,
    EditChecklist,
    EditConsistency,
    ReasonedEdit,
    careless_thought,
)
from mmrl_shapeworld.scenes import Scene, Thing, draw
from mmrl_shapeworld.splits import samples

BIG, SMALL = Thing("red", "circle", 0.3, 0.3, 0.4), Thing("blue", "square", 0.75, 0.7, 0.25)
SCENE = Scene((BIG, SMALL))
EDIT = Edit(SCENE, 0, "green")


@pytest.mark.integration
def test_the_thing_that_is_meant_has_the_size_the_place_or_the_shape_of_the_instruction():
    for split, (_, _, cue) in SPLITS.items():
        for sample in samples(split):
            edit = Edit.from_dict(sample.answer)
            assert sample.prompt.endswith(edit.becomes)
            assert all(edit.becomes not in (thing.colour, thing.shape) for thing in edit.source.things)
            meant, other = (edit.source.things[number] for number in (edit.which, 1 - edit.which))
            if cue == "shape":
                assert sample.prompt.startswith(f"make the {FORMS[meant.shape]} one") and meant.shape != other.shape
                continue
            if cue == "size":
                more, least, words = meant.side - other.side, 0.08, ("big", "small")
            else:
                more, least, words = meant.x - other.x, 0.25, ("right", "left")
            assert sample.prompt.startswith(f"make the {words[more < 0]} one") and abs(more) >= least


def test_splits_share_no_picture():
    found = {split: {sample.images for sample in samples(split)} for split in SPLITS}
    assert {split: len(each) for split, each in found.items()} == {
        split: size for split, (_, size, _) in SPLITS.items()
    }
    assert len(set().union(*found.values())) == sum(size for _, size, _ in SPLITS.values())
    with pytest.raises(KeyError):
        reasoned_edits.samples("reasoned-unknown")


@pytest.mark.parametrize("split", sorted(TAUGHT))
def test_a_thought_names_one_of_the_things_and_the_right_one_as_often_as_stated(split):
    each = ReasonedEdit(EDIT, "big")
    assert each.instruction == "make the big one green"
    assert each.thought(0) == "the red circle is big; make the red circle green"
    assert ReasonedEdit(EDIT, "round").thought(0) == "the circle is red; make the red circle green"
    rng = np.random.default_rng(0)
    assert {careless_thought(each, rng) for _ in range(50)} == {each.thought(0), each.thought(1)}
    taught = samples(split)
    assert len(taught) == TIMES * SPLITS[TAUGHT[split][0]][1] == len({sample.id for sample in taught})
    right = [sample.demonstration.endswith(str(Edit.from_dict(sample.answer))) for sample in taught]
    assert np.mean(right) == pytest.approx(KNOWN, abs=0.04)


def test_the_checklist_and_what_is_kept_of_edits_by_hand():
    answer = EDIT.as_dict()

    def scores(scene: Scene) -> tuple[float, float]:
        item = RewardInput(id="a", group=0, prompt="", image=draw(scene), references={"answer": answer})
        return EditChecklist().score_one(item), EditConsistency().score_one(item)

    right = scores(EDIT.target)
    assert right == (1.0, pytest.approx(1.0))
    untouched = scores(SCENE)  # the trivial answer keeps all, and does nothing
    assert untouched == (0.0, pytest.approx(1.0))
    other_one = scores(Edit(SCENE, 1, "green").target)
    assert other_one == (0.0, pytest.approx(0.0, abs=0.1))
    smaller = scores(Scene((Thing("green", "circle", 0.3, 0.3, 0.25), SMALL)))
    assert smaller[0] == pytest.approx(2 / 3)
    assert scores(Scene((SMALL,)))[0] == 0.0


def test_a_sample_of_the_world_is_a_picture():
    assert load_image(samples("reasoned-train")[0].images[0]).size == (32, 32)
