"""Texts of different lengths in one batch, against loops and exhaustive search."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.tokens import length_buckets, pad_right


def test_texts_are_right_padded_to_the_longest():
    tokens, mask = pad_right([[3, 4], [], [5]], padding=9)
    assert tokens.tolist() == [[3, 4], [9, 9], [5, 9]]
    assert mask.tolist() == [[True, True], [False, False], [True, False]]
    assert [list(each.shape) for each in pad_right([[], []], padding=0)] == [[2, 1], [2, 1]]
    assert [list(each.shape) for each in pad_right([], padding=0)] == [[0, 1], [0, 1]]


def cost(buckets: list[list[int]], lengths: list[int], overhead: int) -> int:
    return sum(len(rows) * max(lengths[row] for row in rows) + overhead for rows in buckets)


def partitions(rows: list[int]):
    """Every way to put rows into buckets."""
    if not rows:
        yield []
        return
    first, *others = rows
    for parts in partitions(others):
        yield [[first], *parts]
        for place, part in enumerate(parts):
            yield [*parts[:place], [first, *part], *parts[place + 1 :]]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([0, 1, 8, 64]))
def test_buckets_hold_each_row_once_at_minimal_cost(lengths, overhead):
    buckets = length_buckets(lengths, overhead)
    assert sorted(row for rows in buckets for row in rows) == list(range(len(lengths)))
    best = min(cost(parts, lengths, overhead) for parts in partitions(list(range(len(lengths)))))
    assert cost(buckets, lengths, overhead) == best


def test_empty_batches_have_no_buckets():
    assert length_buckets([]) == []
