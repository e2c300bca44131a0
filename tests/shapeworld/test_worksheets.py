"""Tables that answers fill in: values by hand, the tables of splits, and what the next answer reads."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.data.proposers import Parent
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning.worksheets import FilledSheets, WorksheetShare, entered, right_share

TABLE = "*7:4?;2?;0 0;3 2;"


@pytest.mark.parametrize(
    ("answer", "after", "share"),
    [
        ("", TABLE, 0.25),
        ("2*7=4;", "*7:4?;2 4;0 0;3 2;", 0.5),
        ("3*7=1;3*7=5;", "*7:4?;2?;0 0;3 5;", 0.25),  # of several values for a row the last one counts
        ("3*7=1;0*7=7;", "*7:4?;2?;0 7;3 1;", 0.25),  # a right value may become wrong
        ("5*7=5;2+7=9;2*8=6;", TABLE, 0.25),  # no rows of this table
        ("2*7=14;4*7=;4*7", TABLE, 0.25),  # no calculations
        ("2*7=4;4*7=8", "*7:4?;2 4;0 0;3 2;", 0.5),  # cut off
        ("4*7=?;0*7=?;", TABLE, 0.25),  # a blank is no value
    ],
)
def test_an_answer_is_entered_and_counted_as_by_hand(answer, after, share):
    assert entered(TABLE, answer) == after and right_share(after) == share
    scored = WorksheetShare().score([reward_input(Sample("a", TABLE), answer, 0, "a")])
    assert scored.values["worksheet_share"][0] == share


def test_the_next_answer_reads_the_table_with_the_values_of_the_last():
    sample, rng = Sample("a", TABLE, source="worksheets"), np.random.default_rng(0)
    proposed = FilledSheets().propose(Parent(sample, 1.0, "2*7=4;4*7=0;"), rng)
    assert proposed.prompt == "*7:4 0;2 4;0 0;3 2;" and proposed.source == "worksheets"
    wanted = [FilledSheets(max_depth=2).wanted_answer(sample, depth, [0.1, 0.2], rng) for depth in range(4)]
    assert {*wanted[:2]} <= {0, 1} and wanted[2:] == [None, None]
    with pytest.raises(ValueError, match="max_depth is 0"):
        FilledSheets(max_depth=0)


@pytest.mark.integration
def test_tables_are_blank_and_demonstrations_careless():
    parts = {part: splits.samples(f"worksheets-{part}") for part in ("train", "development", "validation")}
    prompts = [each.prompt for samples in parts.values() for each in samples]
    assert len(set(prompts)) == len(prompts) == 2048 + 512 + 512
    assert all(each.demonstration is None for each in parts["validation"])
    assert {right_share(each.prompt) for each in parts["train"]} == {0.0}
    filled = [entered(each.prompt, each.demonstration) for each in parts["train"]]
    assert {each.count("?") for each in filled} == {8}
    assert 0.16 < np.mean([right_share(each) for each in filled]) < 0.19  # two tenths, 0.9 of them less the habit
