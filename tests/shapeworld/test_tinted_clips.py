"""Clips whose colour tells where they go: a shortcut that training rewards and counter-biased clips punish."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import NUMBERS
from mmrl_shapeworld.worlds.tinted_clips import NAMES, SIZES, WAYS, tinted_clip, tinted_questions


def letter_of(sample) -> str:
    """The letter of the way that the colour in the prompt has."""
    return "ABCD"[list(WAYS.values()).index(WAYS[sample.prompt.split()[4]])]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("split", "low", "high"),
    [
        ("tinted-train", 0.87, 0.92),
        pytest.param("tinted-plain", 1.0, 1.0, marks=pytest.mark.slow),
        pytest.param("tinted-validation", 0.85, 0.93, marks=pytest.mark.slow),
        pytest.param("tinted-counter", 0.0, 0.0, marks=pytest.mark.slow),
        pytest.param("tinted-counter-later", 0.0, 0.0, marks=pytest.mark.slow),
        ("tinted-mostly-train", 0.71, 0.77),
        ("tinted-mostly-plain", 1.0, 1.0),
    ],
)
def test_the_colour_is_right_as_often_as_the_split_says(split, low, high):
    rows = samples(split)
    share = np.mean([letter_of(row) == row.answer for row in rows])
    assert low <= share <= high and share == np.mean([row.metadata["plain"] for row in rows])
    counts = Counter(row.answer for row in rows)
    assert min(counts.values()) > 0.2 * len(rows)  # no way is likelier than the others by itself


def test_the_thing_goes_where_the_answer_says():
    for seed in range(30):
        question = tinted_clip(0.5, np.random.default_rng(seed))
        colour = question.prompt.split()[4]
        if colour in question.metadata["other"]:
            continue  # two things of one colour
        middles = []
        for frame in (question.frames[0], question.frames[-1]):
            rows, columns = np.nonzero(frame == NUMBERS[colour])
            middles.append((columns.mean(), rows.mean()))
        dx, dy = np.subtract(*middles[::-1])
        seen = ("right" if dx > 0 else "left") if abs(dx) > abs(dy) else ("down" if dy > 0 else "up")
        assert question.metadata["choices"]["ABCD".index(question.answer)] == seen


@pytest.mark.slow
def test_splits_share_no_question_but_the_plain_ones_of_training():
    keys = {
        split: {(each.prompt, b"".join(frame.tobytes() for frame in each.frames)) for each in tinted_questions(split)}
        for split in NAMES
    }
    assert [len(keys[split]) for split in SIZES] == list(SIZES.values())
    assert keys["tinted-plain"] < keys["tinted-train"] and keys["tinted-mostly-plain"] < keys["tinted-mostly-train"]
    apart = [keys[split] for split in SIZES]
    assert sum(map(len, apart)) == len(set.union(*apart))
    with pytest.raises(KeyError, match="no split 'tinted-x': choose one of tinted-"):
        tinted_questions("tinted-x")
