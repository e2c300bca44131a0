"""Short right and long wrong answers are learnt from at once, and the others later, once each."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.errors import RunError
from mmrl.training.rollouts.collect import Origin, ScoredRollouts
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay, answer_lengths, priority_rows
from tests.training.rollouts.test_replay_buffer import after_an_update, of_past
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import collect, source

WHOLE = 1.0, 1.0


def chosen(total, lengths, groups=None, among=None, share=0.5, success=1.0):
    count = len(total)
    return priority_rows(
        torch.tensor(total),
        torch.tensor(lengths),
        torch.tensor(groups or [0] * count),
        torch.tensor(among or [True] * count),
        share,
        success,
    ).tolist()


def test_the_shortest_right_and_the_longest_wrong_rows_of_each_group_are_chosen():
    total = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.2, 1.0]
    lengths = [9, 3, 6, 2, 8, 5, 4, 7]
    groups = [0, 0, 0, 0, 0, 0, 1, 1]
    assert chosen(total, lengths, groups) == [False, True, True, False, True, True, True, True]
    assert chosen(total, lengths, groups, share=0.3) == [False, True, False, False, True, False, True, True]
    assert chosen(total, lengths, groups, share=1.0) == [True] * 8
    assert chosen(total, lengths, groups, success=0.1, share=0.3)[6:] == [True, False]  # both are right
    assert chosen([1.0, 1.0, 0.0], [4, 4, 4], share=0.5) == [True, False, True]  # the first of equal ones


def test_rows_that_are_not_chosen_from_take_no_place():
    assert chosen([1.0, 1.0, 1.0], [1, 2, 3], among=[False, True, True]) == [False, True, False]
    assert chosen([1.0], [1], among=[False]) == [False]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=16),
    st.floats(0.05, 1.0),
)
def test_no_row_left_out_is_a_better_teacher_of_brevity_than_one_that_was_chosen(rows, share):
    right, lengths, groups = map(list, zip(*rows, strict=True))
    found = chosen([float(each) for each in right], lengths, groups, share=share)
    for group in set(groups):
        for kind, sign in ((True, 1), (False, -1)):
            mine = [n for n in range(len(rows)) if groups[n] == group and right[n] is kind]
            kept = [sign * lengths[n] for n in mine if found[n]]
            left = [sign * lengths[n] for n in mine if not found[n]]
            assert bool(mine) == bool(kept) and (not left or max(kept) <= min(left))


def test_an_iteration_learns_from_the_priority_rows_and_later_ones_from_the_others_once():
    policy = TokenPolicy(spread=1.5)
    replay = RecomposedReplay(256, 0.5, 0.5, WHOLE, seed=0)
    recomposed, plain = source(policy, replay=replay), source(policy)
    waiting: Counter[tuple[str, str]] = Counter()
    returned: list[float] = []
    for iteration in range(8):
        found, whole = collect(recomposed, iteration), collect(plain, iteration)
        past = of_past(found, policy)
        for batch in past:
            for sample, text in zip(batch.rollout.samples, batch.rollout.media, strict=True):
                waiting[sample.id, text] -= 1
        assert not waiting or min(waiting.values()) >= 0  # nothing that did not wait, and nothing twice
        fresh = [batch for batch in found.micro_batches if all(batch is not each for each in past)]
        learnt = Counter(
            (s.id, t) for b in fresh for s, t in zip(b.rollout.samples, b.rollout.media, strict=True)
        )  # fmt: skip
        left = Counter()
        for batch in whole.micro_batches:
            for row, sample in enumerate(batch.rollout.samples):
                if batch.advantages[row] != 0:
                    left[sample.id, batch.rollout.media[row]] += 1
        for key, count in learnt.items():
            left[key] -= count
        waiting += Counter({key: count for key, count in left.items() if count > 0})
        assert found.metrics["replay/priority"] == sum(learnt.values())
        assert found.metrics["replay/priority"] + found.metrics["replay/left_out"] == 24
        assert found.metrics["replay/rows"] <= found.metrics["replay/left_out"]
        assert found.metrics["replay/kept"] == len(replay) == sum(waiting.values())
        returned += [found.metrics["replay/age"] for _ in range(int(found.metrics["replay/rows"]))]
        after_an_update(policy, 0.0)
    assert len(returned) > 8 and min(returned) >= 1  # updates


def test_without_compensation_nothing_returns():
    policy = TokenPolicy(spread=1.5)
    never = source(policy, replay=RecomposedReplay(256, 0.5, 0.5, (0.0, 0.0), seed=0))
    for iteration in range(4):
        found = collect(never, iteration)
        assert found.metrics["replay/rows"] == 0 and not of_past(found, policy)
        assert 0 < found.metrics["replay/priority"] < 24
        after_an_update(policy, 0.0)


def test_the_whole_share_is_plain_training():
    policy = TokenPolicy(spread=1.5)
    whole = collect(source(policy, replay=RecomposedReplay(256, 1.0, 0.5, WHOLE, seed=0)))
    plain = collect(source(policy))
    for one, other in zip(whole.micro_batches, plain.micro_batches, strict=True):
        assert torch.equal(one.advantages, other.advantages) and one.rollout.media == other.rollout.media


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.9), (0.5, 0.5), (1.0, 0.1)])
def test_the_probability_of_compensation_falls_along_a_cosine(progress, share):
    replay = RecomposedReplay(8, 0.5, 1.0, (0.9, 0.1), seed=0)
    drawn = sum(replay._compensates(progress) for _ in range(1500)) / 1500
    assert drawn == pytest.approx(share, abs=0.04)  # 3 standard errors


def test_the_buffer_resumes_exactly():
    def made():
        return source(TokenPolicy(spread=1.5), replay=RecomposedReplay(64, 0.5, 0.5, (0.8, 0.4), seed=0))

    straight, resumed = made(), made()
    for iteration in range(4):
        collect(straight, iteration, iteration / 8)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for iteration in range(4, 8):
        one, other = collect(straight, iteration, iteration / 8), collect(resumed, iteration, iteration / 8)
        assert one.metrics == other.metrics
        for left, right in zip(one.micro_batches, other.micro_batches, strict=True):
            assert left.rollout.media == right.rollout.media and torch.equal(left.advantages, right.advantages)


def test_answers_without_tokens_have_no_length():
    rollout = next(iter(collect(source()).micro_batches)).rollout
    scored = ScoredRollouts([rollout], [Origin.POLICY], None)
    assert answer_lengths(scored).tolist() == [len(ids) for ids in rollout.token_ids]
    rollout.token_ids = None
    with pytest.raises(RunError, match=r"data\.replay: recomposed compares the lengths of answers in tokens"):
        answer_lengths(scored)
