"""Some rows of an output, and rows behind it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import Failure, RewardOutput, Status
from mmrl.rewards.core.reward_io import append_rows, select_rows


def output(size):
    return RewardOutput(
        values={"a": np.arange(size, dtype=np.float32), "total": 2 * np.arange(size, dtype=np.float32)},
        status={"a": [Status.OK] * size, "total": [Status.OK] * size},
        detail=[{"row": row} for row in range(size)],
        events=[[(row, 1.0)] for row in range(size)],
        failures=[{"a": Failure(str(row))} for row in range(size)],
    )


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=8))))
def test_rows_are_taken_in_order_with_all_that_belongs_to_them(case):
    size, rows = case
    some = select_rows(output(size), rows)
    assert some.values["total"].tolist() == [2 * row for row in rows]
    assert some.detail == [{"row": row} for row in rows] and some.events == [[(row, 1.0)] for row in rows]
    assert [each["a"].kind for each in some.failures] == [str(row) for row in rows]
    assert len(some.status["a"]) == len(rows)


def test_rows_behind_an_output_have_what_is_known_of_them_and_ask_for_nothing_else():
    more = append_rows(output(2), [{"total": 5.0}, {"total": 6.0, "a": 1.0}])
    np.testing.assert_array_equal(more.values["a"], [0, 1, np.nan, 1])
    assert more.values["total"].tolist() == [0, 2, 5, 6] and more.values["a"].dtype == np.float32
    assert more.status["a"][2:] == [Status.NOT_APPLICABLE, Status.OK] and more.status["total"][2:] == [Status.OK] * 2
    assert [len(column) for column in (more.detail, more.events, more.failures)] == [4, 4, 4]
