import math
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import (
    best_of_advantages,
    broadcast_to_decisions,
    constant_baseline_advantages,
    dr_grpo_advantages,
    gdpo_advantages,
    grpo_advantages,
    linear_best_of_advantages,
    max_rl_advantages,
    reinforce_pp_advantages,
    rloo_advantages,
    zero_variance_share,
)
from mmrl.checks import DtypeError, ShapeError

NAN = math.nan


def gdpo_of_one(rewards, group_index, **settings):
    return gdpo_advantages(rewards[:, None], group_index, **settings)


SCALE_FREE = {
    "grpo_group_0": partial(grpo_advantages, std="group", ddof=0, eps=0.0),
    "grpo_group_1": partial(grpo_advantages, std="group", ddof=1, eps=0.0),
    "grpo_batch_0": partial(grpo_advantages, std="batch", ddof=0, eps=0.0),
    "reinforce_pp": partial(reinforce_pp_advantages, baseline="batch", ddof=0, eps=0.0),
    "reinforce_pp_baseline": partial(reinforce_pp_advantages, baseline="group", ddof=1, eps=0.0),
    "linear_best_of": linear_best_of_advantages,
    "gdpo": partial(gdpo_of_one, ddof=1, eps=0.0),
}
LINEAR = {"dr_grpo": dr_grpo_advantages, "rloo": rloo_advantages}
ALL = SCALE_FREE | LINEAR
GROUP_RELATIVE = {name: f for name, f in ALL.items() if name != "reinforce_pp"}


def parametrize(functions):
    return pytest.mark.parametrize("advantages", functions.values(), ids=functions.keys())


@st.composite
def batches(draw):
    """Uneven groups with ids far apart; some rewards could not be scored."""
    reward = st.integers(-9, 9) | st.none()
    rows = draw(st.lists(st.tuples(reward, st.sampled_from([-5, 3, 2**40])), min_size=1, max_size=14))
    return (
        torch.tensor([NAN if value is None else value / 4 for value, _ in rows], dtype=torch.float64),
        torch.tensor([group for _, group in rows]),
    )


def zscore(values, ddof):
    """scipy's z-score, and 0 where it has none to give (no spread, or too few values)."""
    values = np.asarray(values, dtype=np.float64)
    if np.isfinite(values).sum() <= ddof or np.nanmax(values) == np.nanmin(values):
        return np.zeros_like(values)
    return np.nan_to_num(scipy.stats.zscore(values, ddof=ddof, nan_policy="omit"))


def by_group(function, rewards, group_index):
    """`function` of each group's rewards, back in their rows."""
    out = torch.empty_like(rewards)
    for group in group_index.unique():
        out[group_index == group] = torch.from_numpy(function(rewards[group_index == group].numpy()))
    return out


# By hand -------------------------------------------------------------------------------------------------------------

REWARDS = torch.tensor([0.0, 10.0, 4.0, NAN, 12.0, 8.0])
INDEX = torch.tensor([7, 2, 7, 7, 2, 7])  # group 7: 0, 4, 8 (and a failure), mean 4; group 2: 10, 12, mean 11
CENTRED = torch.tensor([-4.0, -1.0, 0.0, 0.0, 1.0, 4.0])


def test_dr_grpo_by_hand():
    torch.testing.assert_close(dr_grpo_advantages(REWARDS, INDEX), CENTRED)


def test_rloo_by_hand():  # 0 - (4 + 8) / 2, 10 - 12, 4 - (0 + 8) / 2, ...
    torch.testing.assert_close(rloo_advantages(REWARDS, INDEX), torch.tensor([-6.0, -2.0, 0.0, 0.0, 2.0, 6.0]))


def test_constant_baseline_by_hand():
    rewards = torch.tensor([0.0, 1.0, math.nan, 1.0])
    found = constant_baseline_advantages(rewards, torch.zeros(4, dtype=torch.long), 0.25)
    torch.testing.assert_close(found, torch.tensor([-0.25, 0.75, 0.0, 0.75]))


def test_max_rl_by_hand():  # means 4 and 11 of what is scored
    torch.testing.assert_close(max_rl_advantages(REWARDS, INDEX), CENTRED / torch.tensor([4.0, 11, 4, 4, 11, 4]))
    with pytest.raises(ValueError, match="one is -1"):
        max_rl_advantages(torch.tensor([-1.0, 2.0, math.nan]), torch.tensor([0, 0, 0]))


def test_max_rl_is_the_gradient_of_the_log_of_the_chance_of_success():
    """A coin with p = sigmoid(theta), every group of four flips with its probability: d log p to order 4, exactly."""
    p, n = 0.3, 4
    outcomes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * n)
    gradient = 0.0
    for flips in outcomes:
        score = flips - p  # d log probability of each flip / d theta
        chance = torch.where(flips > 0, p, 1 - p).prod()
        gradient += chance * (max_rl_advantages(flips, torch.zeros(n, dtype=torch.long)) * score).mean()
    harmonic = sum((1 - p) ** (k - 1) for k in range(1, n + 1)) * p * (1 - p)  # of -sum over k of (1 - p)^k / k
    # The row itself is part of the baseline: that takes away the last order, as it takes 1/n from Dr. GRPO.
    assert gradient.item() == pytest.approx(harmonic - p * (1 - p) * (1 - p) ** (n - 1), abs=1e-6)


@given(batch=batches(), seed=st.integers(0, 99))
def test_linear_best_of_is_the_best_value_of_a_linear_fit(batch, seed):
    rewards, index = batch
    score = torch.rand(len(rewards), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    advantages = linear_best_of_advantages(rewards, index)
    for group in index.unique():
        rows = (index == group) & rewards.isfinite()
        r, s = rewards[rows].numpy(), score[rows].numpy()
        if not len(r) or r.max() == r.min():
            assert not advantages[rows].any()
            continue
        line = scipy.stats.linregress(r, s)
        expected = line.intercept + line.slope * r.max() - s.mean()
        assert (advantages[rows] * score[rows]).mean().item() == pytest.approx(expected, abs=1e-9)


def test_linear_best_of_is_max_rl_where_rewards_are_right_or_wrong():
    rewards, index = torch.tensor([0.0, 1.0, NAN, 0.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 0, 3, 3, 3])
    torch.testing.assert_close(linear_best_of_advantages(rewards, index), max_rl_advantages(rewards, index))


def test_grpo_by_hand():
    std = torch.tensor([4.0, math.sqrt(2), 4, 4, math.sqrt(2), 4])  # ddof = 1
    torch.testing.assert_close(grpo_advantages(REWARDS, INDEX, std="group", ddof=1, eps=0.5), CENTRED / (std + 0.5))
    raw = torch.tensor([0.0, 10, 4, 12, 8]).std(correction=0)
    torch.testing.assert_close(grpo_advantages(REWARDS, INDEX, std="batch", ddof=0, eps=0.5), CENTRED / (raw + 0.5))


def test_reinforce_pp_by_hand():
    raw = torch.tensor([0.0, 10, 4, NAN, 12, 8])  # mean 6.8
    std = torch.tensor([0.0, 10, 4, 12, 8]).std()
    got = reinforce_pp_advantages(REWARDS, INDEX, baseline="batch", ddof=1, eps=0.0)
    torch.testing.assert_close(got, ((raw - 6.8) / std).nan_to_num(0))
    got = reinforce_pp_advantages(REWARDS, INDEX, baseline="group", ddof=0, eps=0.0)
    torch.testing.assert_close(got, CENTRED / math.sqrt(34 / 5))  # of -4, -1, 0, 1, 4: five of them were scored


def test_grpo_batch_and_reinforce_pp_baseline_use_different_standard_deviations():
    """Groups of unlike difficulty: the raw spread is dominated by the distance between groups."""
    rewards, index = torch.tensor([0.0, 1.0, 100.0, 101.0]), torch.tensor([0, 0, 1, 1])
    assert grpo_advantages(rewards, index, std="batch", ddof=0).abs().max() < 0.02
    assert reinforce_pp_advantages(rewards, index, baseline="group", ddof=0).abs().min() > 0.99


# Against other libraries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1])
@given(batch=batches())
def test_against_scipy(ddof, batch):
    rewards, index = batch
    truth = by_group(partial(zscore, ddof=ddof), rewards, index)
    torch.testing.assert_close(grpo_advantages(rewards, index, std="group", ddof=ddof, eps=0.0), truth)
    torch.testing.assert_close(
        reinforce_pp_advantages(rewards, index, baseline="batch", ddof=ddof, eps=0.0),
        torch.from_numpy(zscore(rewards, ddof)),
    )


@given(batch=batches())
def test_rloo_leaves_one_out(batch):
    rewards, index = batch
    for row, (reward, group) in enumerate(zip(rewards.tolist(), index.tolist(), strict=True)):
        others = [r for i, r in enumerate(rewards.tolist()) if i != row and index[i] == group and r == r]
        expected = reward - np.mean(others) if others and reward == reward else 0.0
        assert rloo_advantages(rewards, index)[row].item() == pytest.approx(expected)


@given(batch=batches(), seed=st.integers(0, 99))
def test_gdpo_against_scipy(batch, seed):
    first, index = batch
    second = torch.randn(first.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    second, weights = second.where(first.isfinite(), NAN), [0.3, 2.0]
    scores = [by_group(partial(zscore, ddof=1), column, index) for column in (first, second)]
    total = (weights[0] * scores[0] + weights[1] * scores[1]).where(first.isfinite(), NAN)
    got = gdpo_advantages(torch.stack([first, second], 1), index, weights, ddof=1, eps=0.0)
    torch.testing.assert_close(got, torch.from_numpy(zscore(total, 1)))


# What must not matter ------------------------------------------------------------------------------------------------


@parametrize(ALL)
@given(batch=batches(), shift=st.integers(-9, 9), scale=st.integers(1, 9), random=st.randoms())
def test_advantages_are_invariant_to_shift_order_labels_and_scale(advantages, batch, shift, scale, random):
    rewards, index = batch
    base = advantages(rewards, index)
    order = torch.tensor(random.sample(range(len(rewards)), len(rewards)))
    torch.testing.assert_close(advantages(rewards + shift, index), base)
    torch.testing.assert_close(advantages(rewards[order], index[order]), base[order])
    torch.testing.assert_close(advantages(rewards, 17 - index), base)
    factor = 1 if advantages in SCALE_FREE.values() else scale
    torch.testing.assert_close(advantages(rewards * scale, index), base * factor)


@parametrize(ALL)
@given(batch=batches())
def test_failed_scores_equal_removed_rows(advantages, batch):
    rewards, index = batch
    scored = rewards.isfinite()
    got = advantages(rewards, index)
    assert (got[~scored] == 0).all() and got.isfinite().all()
    torch.testing.assert_close(got[scored], advantages(rewards[scored], index[scored]))


@parametrize(ALL)
def test_failed_scores_are_not_zero_rewards(advantages):
    rewards, index = torch.tensor([1.0, 2.0, 3.0, NAN]), torch.zeros(4, dtype=torch.int64)
    assert not torch.allclose(advantages(rewards, index), advantages(rewards.nan_to_num(0), index), atol=0.1)


@parametrize(GROUP_RELATIVE)
@given(batch=batches())
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(advantages, batch):
    rewards, index = batch
    got = advantages(rewards, index)
    for group in index.unique():
        mine = (index == group) & rewards.isfinite()
        assert got[mine].sum().item() == pytest.approx(0, abs=1e-9)
        order = rewards[mine].argsort()
        assert (got[mine][order].diff() >= -1e-12).all()  # a flipped sign is found here


@parametrize(GROUP_RELATIVE)
@pytest.mark.parametrize("group_size", [1, 3, 7])
def test_constant_groups_have_zero_advantages(advantages, group_size):
    """0.1 is no binary fraction: the mean of three is off by one unit of rounding, and eps is 0."""
    rewards = torch.cat([torch.full((group_size,), 0.1), torch.tensor([0.0, 1.0])])
    index = torch.cat([torch.zeros(group_size), torch.ones(2)]).long()
    got = advantages(rewards, index)
    assert got[:group_size].abs().max() <= (1e-6 if advantages is ALL["gdpo"] else 0)  # it whitens over the batch
    assert got[-1] > 0.1


@parametrize(GROUP_RELATIVE)
def test_swapped_group_indices_change_advantages(advantages):
    rewards, index = torch.tensor([0.0, 1.0, 5.0, 9.0]), torch.tensor([0, 0, 1, 1])
    assert not torch.allclose(advantages(rewards, index), advantages(rewards, torch.tensor([0, 1, 0, 1])), atol=0.1)


@parametrize(ALL)
def test_unscored_batches_and_single_rows_have_zero_advantages(advantages):
    assert advantages(torch.tensor([NAN, NAN]), torch.tensor([0, 0])).tolist() == [0, 0]
    assert advantages(torch.tensor([3.0]), torch.tensor([0])).tolist() == [0]


# GDPO ----------------------------------------------------------------------------------------------------------------


def test_gdpo_distinguishes_rewards_with_equal_sums():
    """Two rewards: one group wins on one of them, the other on both. GRPO on the sum cannot tell."""
    rewards, index = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 0, 1, 1])
    merged = grpo_advantages(rewards.sum(1), index, std="group", ddof=1, eps=0.0)
    assert merged[1] == pytest.approx(merged[3].item())
    apart = gdpo_advantages(rewards, index, ddof=1)
    assert apart[3] == pytest.approx(2 * apart[1].item(), rel=1e-3)


def test_gdpo_renormalises_missing_rewards():
    rewards = torch.tensor([[0.0, 4.0], [2.0, NAN], [0.0, 0.0], [2.0, 8.0]])
    index = torch.zeros(4, dtype=torch.int64)
    strict = gdpo_advantages(rewards, index, [1.0, 3.0], ddof=0, eps=0.0)
    assert strict[1] == 0
    torch.testing.assert_close(strict[[0, 2, 3]], gdpo_advantages(rewards[[0, 2, 3]], index[:3], [1, 3], ddof=0, eps=0))
    # z-scores of the first: -1, 1, -1, 1; of the second: 0, none, -root(3/2), root(3/2)
    root = math.sqrt(1.5)
    total = torch.tensor([-1.0, 1 * (1 + 3) / 1, -1 - 3 * root, 1 + 3 * root])
    got = gdpo_advantages(rewards, index, [1.0, 3.0], ddof=0, eps=0.0, renormalise=True)
    torch.testing.assert_close(got, (total - total.mean()) / total.std(correction=0))


def test_gdpo_ignores_rewards_of_weight_zero():
    rewards, index = torch.tensor([[0.0, NAN], [1.0, 5.0], [3.0, NAN]]), torch.zeros(3, dtype=torch.int64)
    torch.testing.assert_close(
        gdpo_advantages(rewards, index, [2.0, 0.0], ddof=1), gdpo_advantages(rewards[:, :1], index, [2.0], ddof=1)
    )


@pytest.mark.parametrize("column", [0, 1])
def test_gdpo_depends_on_every_reward(column):
    rewards, index = torch.tensor([[0.0, 1.0], [1.0, 5.0], [3.0, 2.0]]), torch.zeros(3, dtype=torch.int64)
    changed = rewards.clone()
    changed[0, column] += 10
    assert not torch.allclose(
        gdpo_advantages(rewards, index, ddof=1), gdpo_advantages(changed, index, ddof=1), atol=0.01
    )
    swapped = gdpo_advantages(rewards, index, [1.0, 4.0], ddof=1), gdpo_advantages(rewards, index, [4.0, 1.0], ddof=1)
    assert not torch.allclose(*swapped, atol=0.01)


# Best of a group -----------------------------------------------------------------------------------------------------


def test_best_of_by_hand():
    rewards, index = torch.tensor([0.2, 0.9, NAN, 0.5, 0.1, 0.1]), torch.tensor([7, 7, 7, 7, 2, 2])
    assert best_of_advantages(rewards, index, 1).tolist() == [0, 1, 0, 0, 1, 0]  # of equals, the first
    assert best_of_advantages(rewards, index, 2).tolist() == [0, 1, 0, 1, 1, 1]
    assert best_of_advantages(rewards, index, 9).tolist() == [1, 1, 0, 1, 1, 1]  # never the one without a score
    assert best_of_advantages(rewards, index, 9, at_least=0.5).tolist() == [0, 1, 0, 1, 0, 0]
    assert best_of_advantages(rewards, index, 1, at_least=2.0).sum() == 0


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.integers(1, 5), st.randoms())
def test_best_of_keeps_the_highest_rewards(values, keep, random):
    rewards, index = torch.tensor(values).float(), torch.tensor([random.randrange(3) for _ in values])
    kept = best_of_advantages(rewards, index, keep).bool()
    for group in index.unique():
        inside, outside = rewards[(index == group) & kept], rewards[(index == group) & ~kept]
        assert len(inside) == min(keep, len(inside) + len(outside))
        assert not len(outside) or inside.min() >= outside.max()
    torch.testing.assert_close(best_of_advantages(2 * rewards + 5, index, keep), kept.float())


def test_best_of_rejects_keeping_zero_rows():
    with pytest.raises(ValueError, match="keep: expected a number >= 1, got 0"):
        best_of_advantages(torch.ones(2), torch.zeros(2, dtype=torch.int64), 0)


# The rest ------------------------------------------------------------------------------------------------------------


def test_zero_variance_share_by_hand():
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0, NAN, 2.0, NAN])
    index = torch.tensor([9, 9, 9, -4, -4, 5, 5, 6])  # equal; apart; one scored; none scored
    assert zero_variance_share(rewards, index) == 0.75
    assert isinstance(zero_variance_share(rewards, index), float)
    assert zero_variance_share(rewards[3:5], index[3:5]) == 0


def test_broadcast_assigns_one_advantage_per_row_in_square_batches():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
    got = broadcast_to_decisions(torch.tensor([1.0, 2.0, 3.0]), mask)
    assert got.tolist() == [[1, 1, 0], [2, 0, 0], [3, 3, 3]]
    with pytest.raises(ShapeError, match="advantages"):
        broadcast_to_decisions(torch.ones(2), mask)
    with pytest.raises(DtypeError, match="mask: expected bool"):
        broadcast_to_decisions(torch.ones(3), mask.float())


@parametrize(ALL)
def test_advantages_reject_wrong_shapes_and_dtypes(advantages):
    with pytest.raises(ShapeError):
        advantages(torch.ones(3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(DtypeError, match="expected int"):
        advantages(torch.ones(3), torch.zeros(3))


def test_advantages_reject_unknown_names():
    rewards, index = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="std: expected 'group' or 'batch', got 'prompt'"):
        grpo_advantages(rewards, index, std="prompt", ddof=0)
    with pytest.raises(ValueError, match="baseline: expected 'batch' or 'group', got 'none'"):
        reinforce_pp_advantages(rewards, index, baseline="none", ddof=0)
    with pytest.raises(ShapeError, match=r"weights: expected \[R\] with R=1, got \[2\]"):
        gdpo_advantages(rewards[:, None], index, [1.0, 2.0], ddof=0)
    with pytest.raises(ValueError, match="at least one must differ from 0"):
        gdpo_advantages(rewards[:, None], index, [0.0], ddof=0)
