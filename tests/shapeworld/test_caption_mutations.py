"""Mutated captions stay in the grammar of ShapeWorld, and never name a held-out kind."""

from __future__ import annotations

import numpy as np

from mmrl.data.proposers import Parent
from mmrl_shapeworld.caption_mutations import CaptionMutations, mutations
from mmrl_shapeworld.captions import Caption, Clause
from mmrl_shapeworld.splits import captions, contains_heldout_kind, samples


def test_mutations_of_one_caption_by_hand():
    found = {str(each) for each in mutations(Caption((Clause(2, "red", "square"),)), deepen=False)}
    colours = {"two green squares", "two blue squares", "two yellow squares"}
    assert found >= {"two red circles", "two red triangles", "a red square", "three red squares"}
    assert found - colours == {"two red circles", "two red triangles", "a red square", "three red squares"}


def test_all_mutations_are_new_and_trainable():
    for caption in dict.fromkeys(captions("train")):
        found = mutations(caption)
        assert found and len(set(map(str, found))) == len(found)
        for each in found:
            assert each != caption and not contains_heldout_kind(each) and each.total <= 4
            assert each.form in {"single", "count", "pair", "relation"}


def test_one_thing_reaches_every_caption_of_training():
    """Evolution from captions of one thing can find all that the training split has, in few generations."""
    known = {str(caption) for caption in captions("one-thing")}
    assert len(known) == len(captions("one-thing")) == 30 and {each.form for each in captions("one-thing")} == {
        "single"
    }
    frontier = captions("one-thing")
    for _ in range(3):
        frontier = [each for caption in frontier for each in mutations(caption) if str(each) not in known]
        frontier = list({str(each): each for each in frontier}.values())
        known |= {str(each) for each in frontier}
    assert known >= {str(caption) for caption in captions("train")}


def test_a_proposal_is_a_sample_of_its_caption():
    parent = Parent(samples("one-thing")[0], 1.0)
    found = [CaptionMutations().propose(parent, np.random.default_rng(seed)) for seed in range(30)]
    for sample in found:
        assert str(Caption.from_dict(sample.answer)) == sample.prompt
        assert sample.source == Caption.from_dict(sample.answer).form and sample.metadata["tags"]
    assert {"pair", "relation"} <= {sample.source for sample in found}
