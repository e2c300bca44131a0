"""Calculations in other words: the same values on the way, and no prompt of another split."""

from __future__ import annotations

import pytest

from mmrl_shapeworld.reasoning import rephrased_calculations
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.calculations import Calculation
from mmrl_shapeworld.reasoning.rephrased_calculations import rephrased


def test_sums_become_differences_and_all_values_stay():
    plain = Calculation(10, 3, "-*+", (9, 7, 2))  # 3 - 9 is 4, 4 * 7 is 8, 8 + 2 is 0
    other = rephrased(plain)
    assert str(other) == "3+1*7-8=" and plain.values == other.values == (4, 8, 0)
    assert rephrased(other) == plain
    for each in calculations("sums-development")[:300]:
        assert rephrased(each).values == each.values and rephrased(rephrased(each)) == each


@pytest.mark.integration
def test_both_phrasings_are_of_training():
    found = rephrased_calculations.samples("sums-rephrased")
    training, unseen = ({str(each) for each in calculations(f"sums-{part}")} for part in ("train", "validation"))
    assert 1000 < len(found) < 3000 and len({each.id for each in found}) == len(found)
    for sample in found:
        other = sample.metadata["rephrased"]
        assert sample.prompt in training and other != sample.prompt
        assert other not in unseen and other.count("*") == sample.prompt.count("*")


def test_what_is_no_such_split_or_modulus_is_named():
    with pytest.raises(KeyError, match="choose one of sums-rephrased"):
        rephrased_calculations.samples("sums-none")
    with pytest.raises(ValueError, match="not modulo 97"):
        rephrased(Calculation(97, 3, "+", (2,)))
