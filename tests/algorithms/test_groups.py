import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import group_counts, group_mean, group_spread, group_std, group_sum
from mmrl.checks import DtypeError, ShapeError

NAN = math.nan
STATISTICS = [
    group_counts,
    group_sum,
    group_mean,
    group_spread,
    lambda values, index: group_std(values, index, 0),
    lambda values, index: group_std(values, index, 1),
]
# Few distinct ids, far apart and negative too: groups are uneven, and some of them merge in float32.
IDS = [-(2**40), -1, 0, 2**24, 2**24 + 1, 2**62]


@st.composite
def batches(draw):
    rows = draw(st.lists(st.tuples(st.integers(-9, 9) | st.none(), st.sampled_from(IDS)), min_size=1, max_size=14))
    return (
        torch.tensor([NAN if value is None else value / 4 for value, _ in rows], dtype=torch.float64),
        torch.tensor([group for _, group in rows]),
    )


def test_group_statistics_by_hand():
    values = torch.tensor([1.0, 10.0, 3.0, NAN, 5.0, NAN])
    index = torch.tensor([4, -7, 4, 4, 4, 900])
    assert group_counts(values, index).tolist() == [3, 1, 3, 3, 3, 0]
    assert group_sum(values, index).tolist() == [9, 10, 9, 9, 9, 0]
    assert group_spread(values, index).tolist() == [4, 0, 4, 4, 4, 0]
    torch.testing.assert_close(group_mean(values, index), torch.tensor([3.0, 10, 3, 3, 3, NAN]), equal_nan=True)
    torch.testing.assert_close(group_std(values, index, 1), torch.tensor([2.0, NAN, 2, 2, 2, NAN]), equal_nan=True)
    root = math.sqrt(8 / 3)
    expected = torch.tensor([root, 0, root, root, root, NAN])
    torch.testing.assert_close(group_std(values, index, 0), expected, equal_nan=True)


@pytest.mark.integration
@given(batches())
def test_group_statistics_equal_numpy(batch):
    values, index = batch
    for row, group in enumerate(index.tolist()):
        scored = np.array([v for v, g in zip(values.tolist(), index.tolist(), strict=True) if g == group and v == v])
        assert group_counts(values, index)[row] == len(scored)
        assert group_sum(values, index)[row] == pytest.approx(scored.sum())
        for ddof in (0, 1):
            expected = scored.std(ddof=ddof) if len(scored) > ddof else NAN
            assert group_std(values, index, ddof)[row].item() == pytest.approx(expected, nan_ok=True)
        expected = scored.mean() if len(scored) else NAN
        assert group_mean(values, index)[row].item() == pytest.approx(expected, nan_ok=True)
        assert group_spread(values, index)[row].item() == (np.ptp(scored) if len(scored) else 0)


@pytest.mark.integration
@given(batches(), st.randoms())
def test_group_statistics_ignore_order_and_labels(batch, random):
    values, index = batch
    order = torch.tensor(random.sample(range(len(values)), len(values)))
    relabelled = torch.tensor([IDS.index(i) for i in index.tolist()]) * -3 + 1
    for statistic in STATISTICS:
        base = statistic(values, index)
        torch.testing.assert_close(statistic(values[order], index[order]), base[order], equal_nan=True)
        torch.testing.assert_close(statistic(values, relabelled), base, equal_nan=True)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_swapped_group_indices_change_statistics(statistic):
    values, index = torch.tensor([0.0, 1.0, 2.0, 7.0, 9.0]), torch.tensor([0, 0, 0, 1, 1])
    swapped = torch.tensor([0, 0, 1, 1, 1])
    assert not torch.allclose(statistic(values, index).double(), statistic(values, swapped).double())


def test_group_indices_beyond_float32_stay_distinct():
    index = torch.tensor([2**24, 2**24 + 1])
    assert len(index.float().unique()) == 1  # the trap
    assert group_mean(torch.tensor([1.0, 3.0]), index).tolist() == [1, 3]


def test_group_std_is_stable_for_a_large_mean():
    values, index = 1000 + torch.arange(8) / 16, torch.zeros(8, dtype=torch.int64)
    assert values.dtype == torch.float32
    torch.testing.assert_close(group_std(values, index, 1)[0], (torch.arange(8) / 16).std())


def test_group_std_of_equal_values_is_exactly_zero():
    values, index = torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int64)
    assert group_spread(values, index).tolist() == [0, 0, 0]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_group_statistics_reject_wrong_shapes_and_dtypes(statistic):
    with pytest.raises(ShapeError, match="group_index"):
        statistic(torch.ones(3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DtypeError, match="group_index: expected int, got float32"):
        statistic(torch.ones(3), torch.zeros(3))
    with pytest.raises(DtypeError, match="values: expected float32 or float64, got bfloat16"):
        statistic(torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.int64))


def test_group_std_rejects_other_ddof_than_0_and_1():
    with pytest.raises(ValueError, match="ddof: expected 0 or 1, got 2"):
        group_std(torch.ones(3), torch.zeros(3, dtype=torch.int64), 2)
