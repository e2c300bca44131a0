"""Questions with the advice of specialists: how many are right, and what another department says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.consultations import DEPARTMENTS, KINDS, REQUEST, SPECIALISTS, Referral, advice
from mmrl_shapeworld.vqa.questions import chart, counting


def advised(sample, department: str | None = None) -> list[str]:
    prompt = sample.metadata["advice"][department] if department else sample.prompt
    return prompt[:-1].rpartition(". " if ". " in prompt else "? ")[2].split(", ")


@pytest.mark.integration
def test_the_kind_of_a_question_is_how_many_specialists_are_right():
    rows = samples("consulted-train")
    for row in rows:
        right = sum(each == str(row.answer) for each in advised(row))
        assert right in {"easy": (3,), "middling": (1, 2), "hard": (0,)}[row.source]
    assert Counter(row.source for row in rows) == dict.fromkeys(KINDS, len(rows) // 3)
    hard = [row for row in rows if row.source == "hard"]
    assert 0.6 < np.mean([len(set(advised(row))) == 1 for row in hard]) < 0.8


@pytest.mark.parametrize("draw", [counting, chart])
def test_two_specialists_at_least_agree_on_what_is_wrong(draw):
    rng = np.random.default_rng(0)
    department = "A" if draw is counting else "B"
    for _ in range(50):
        found = advice(department, "hard", draw(rng), rng)
        assert len(found) == SPECIALISTS and max(Counter(found).values()) >= 2


def test_another_department_guesses_in_its_own_words():
    fields = {"A": set("12345"), "C": set("ABCD")}
    rows = [row for row in samples("consulted-train") if row.metadata["department"] == "B"]
    for department, words in fields.items():
        found = [each for row in rows for each in advised(row, department)]
        assert set(found) == words


def test_a_referral_has_the_advice_of_the_department_that_the_triage_names():
    reader = Referral()
    for row in samples("consulted-validation")[:9]:
        request = reader.request(row)
        assert (request.prompt, request.images, request.answer) == (REQUEST, row.images, row.metadata["department"])
        for department in DEPARTMENTS:
            read = reader.read(f" {department} ", row)
            assert read.prompt == row.metadata["advice"][department] and read.answer == row.answer
        assert reader.read(row.metadata["department"], row).prompt == row.prompt
        assert reader.read("D", row) is None and reader.read("", row) is None


def test_parts_share_no_picture_and_kinds_are_those_of_training():
    parts = [{row.images for row in samples(f"consulted-{part}")} for part in ("train", "development", "validation")]
    assert sum(map(len, parts)) == len(set.union(*parts))
    kinds = [row.id for kind in KINDS for row in samples(f"consulted-{kind}")]
    assert sorted(kinds) == sorted(row.id for row in samples("consulted-train"))
    triage = samples("triage-train")
    assert {row.prompt for row in triage} == {REQUEST} and min(Counter(row.answer for row in triage).values()) > 90
    with pytest.raises(KeyError, match="no split 'consulted-x'"):
        from mmrl_shapeworld.vqa import consultations

        consultations.samples("consulted-x")
