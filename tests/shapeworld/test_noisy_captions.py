"""Captions of mixed quality for the pictures of the world `caption`."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl_shapeworld import splits
from mmrl_shapeworld.worlds.noisy_captions import CAPTIONS, ERRORS, NAMES, SIZES, facts_score, noisy_caption

THINGS = [
    {"colour": "red", "shape": "circle", "size": "small", "place": "top left"},
    {"colour": "blue", "shape": "square", "size": "large", "place": "bottom right"},
]


@pytest.mark.integration
def test_the_share_of_true_facts_follows_from_the_errors():
    rng = np.random.default_rng(1)
    assert all(facts_score(noisy_caption(THINGS, 0.0, rng), THINGS) == 1 for _ in range(20))
    means = [np.mean([facts_score(noisy_caption(THINGS, e, rng), THINGS) for _ in range(300)]) for e in ERRORS]
    # attributes that are drawn anew have 2 to 6 values, so a third is right by chance, and clauses match the best way
    assert means == pytest.approx([1 - e * 0.62 for e in ERRORS], abs=0.06)


@pytest.mark.integration
def test_training_has_captions_of_mixed_quality_and_a_pair():
    found = splits.samples("noisy-captions-train")
    scores = [[facts_score(text, each.metadata["facts"]) for text in each.demonstration] for each in found]
    assert all(len(row) == CAPTIONS and min(row) < max(row) for row in scores)
    assert 0.65 < np.mean(scores) < 0.71 and np.mean(np.array(scores) < 0.7) > 0.4
    for each, row in zip(found, scores, strict=True):
        pair = [facts_score(text, each.metadata["facts"]) for text in (each.chosen, each.rejected)]
        assert pair == [max(row), min(row)] and {each.chosen, each.rejected} <= set(each.demonstration)


@pytest.mark.integration
def test_splits_share_no_picture_and_only_training_has_captions():
    found = {name: splits.samples(name) for name in NAMES}
    assert {name.rpartition("-")[2]: len(each) for name, each in found.items()} == SIZES
    pictures = [sample.images for each in found.values() for sample in each]
    assert len(set(pictures)) == len(pictures)
    for name in NAMES[1:]:
        assert all(each.demonstration is None and each.chosen is None for each in found[name])
    assert [s.id for s in splits.samples("noisy-captions-validation-second")] == [s.id for s in found[NAMES[2]][256:]]


def test_an_unknown_split_is_an_error():
    with pytest.raises(KeyError, match="noisy-captions-train"):
        splits.samples("noisy-captions-heldout")
