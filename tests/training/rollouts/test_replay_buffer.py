"""Past answers fill silent places, past successes mend failed groups, and both outlive a checkpoint."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data.prompts import PromptSampler
from mmrl.errors import RunError
from mmrl.rollout_request import RowStart
from mmrl.training.rollouts.collect import FixedGroupSampler
from mmrl.training.rollouts.online import interleaved
from mmrl.training.rollouts.replay_buffer import ReplayReader, SelectiveReplay, SuccessReplay, Transcript
from mmrl.training.run.timers import Phases
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, Right, collect, source


class Never(Right):
    """No answer is right."""

    def score_one(self, item):
        return 0.0


def answer(advantage=1.0, sample="s0", text="1 2", version=0, **values):
    tokens = (*map(int, text.split()), 0)
    return Transcript(sample, text, tokens, (-1.0,) * len(tokens), version, values or {"total": 1.0}, advantage)


def after_an_update(policy, moved=0.3):
    """The policy has learnt something since."""
    policy.logits.data += moved * torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(1))
    policy.version += 1


def of_past(experience, policy):
    return [batch for batch in experience.micro_batches if batch.rollout.policy_version < policy.version]


@pytest.mark.parametrize(("alpha", "share"), [(0.0, 0.5), (1.0, 0.75), (2.0, 0.9)])
def test_replay_probability_is_a_power_of_the_advantage(alpha, share):
    replay = SelectiveReplay(8, alpha, seed=0)
    replay.keep([answer(-3.0, text="3"), answer(1.0, text="1"), answer(0.0, text="2")])
    drawn = Counter(replay.draw(1)[0].text for _ in range(800))
    assert set(drawn) == {"1", "3"} and drawn["3"] / 800 == pytest.approx(share, abs=0.055)  # 3 standard errors


@settings(max_examples=40)
@given(st.lists(st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3), max_size=12), st.integers(1, 8), st.integers(0, 14))
def test_buffer_holds_the_newest_and_samples_without_replacement(advantages, capacity, count):
    replay = SelectiveReplay(capacity, 1.0, seed=0)
    replay.keep([answer(advantage, text=str(n)) for n, advantage in enumerate(advantages)])
    newest = [str(n) for n in range(len(advantages))][-capacity:]
    drawn = [each.text for each in replay.draw(count)]
    assert len(replay) == len(newest) and len(drawn) == len(set(drawn)) == min(count, len(newest))
    assert set(drawn) <= set(newest)


def test_selective_replay_replaces_uninformative_groups():
    policy = TokenPolicy(spread=3.0)
    filled = source(policy, replay=SelectiveReplay(256, 1.0, seed=0))
    plain = source(policy)
    for iteration in range(6):
        found, without = collect(filled, iteration), collect(plain, iteration)
        gained = torch.cat([batch.advantages for batch in found.micro_batches])
        assert len(gained) == 24
        silent = int((torch.cat([batch.advantages for batch in without.micro_batches]) == 0).sum())
        assert found.metrics["replay/places"] == silent
        assert int((gained == 0).sum()) == silent - found.metrics["replay/rows"]
        after_an_update(policy, 0.0)
    assert silent > 0 and not (gained == 0).any()  # the last iteration is full, and would not have been


def test_replayed_rows_keep_their_original_log_probs():
    policy = TokenPolicy()
    replay = SelectiveReplay(256, 1.0, seed=0)
    filled = source(policy, Exact(), replay=replay)
    written = {}
    for iteration in range(6):
        for batch in (found := collect(filled, iteration)).micro_batches:
            for row, (ids, log_probs) in enumerate(zip(batch.rollout.token_ids, batch.rollout.log_probs, strict=True)):
                key = (batch.rollout.samples[row].id, tuple(ids))
                if batch.rollout.policy_version == policy.version:
                    written.setdefault(key, []).append(log_probs.tolist())
                else:
                    assert log_probs.tolist() in written[key]
        after_an_update(policy)
    assert of_past(found, policy) and found.metrics["replay/age"] > 0
    stale = of_past(found, policy)[-1].rollout
    assert policy.replay_gap(stale) > 0.01  # of another policy: no gauge may look at it


def test_replayed_answers_keep_their_tokens_if_truncated():
    policy = TokenPolicy(vocabulary=3)
    cut_off = answer(text="1 2 1")
    cut_off = replace(cut_off, tokens=(1, 2, 1), log_probs=(-0.1, -0.2, -0.3), version=4)
    recall = ReplayReader(policy, lambda id: next(s for s in questions() if s.id == id), rows=2)
    ((rollout, part),) = recall([cut_off], [7])
    assert rollout.token_ids == [[1, 2, 1]] and part == [cut_off] and rollout.group_index.tolist() == [7]
    assert rollout.log_probs.tolist() == [pytest.approx([-0.1, -0.2, -0.3])] and rollout.policy_version == -1
    with pytest.raises(RunError, match="sampled with 2 decisions and is read as 3"):
        recall([replace(cut_off, log_probs=(-0.1, -0.2))], [7])
    assert [r.rows for r, _ in recall([cut_off] * 5, range(5))] == [2, 2, 1]


def test_replayed_answers_keep_their_start_and_share_rollouts_by_temperature():
    """A prefix is read again, so that the log-probabilities are of the same tokens."""

    class Listener(TokenPolicy):
        def score_targets(self, targets):
            calls.append([each.start for each in targets])
            return super().score_targets(targets)

    calls = []
    hint, hot = RowStart("hint", prefix="1 "), RowStart("hot", temperature=1.5)
    kept = [replace(answer(), start=start) for start in (None, hint, hot, hot, hot, hint)]
    assert [Transcript.from_dict(json.loads(json.dumps(each.as_dict()))) for each in kept] == kept
    recall = ReplayReader(Listener(), lambda id: questions()[0], rows=2)
    found = recall(kept, range(6))
    assert calls == [[None, hint], [hot, hot], [hot], [hint]]
    assert [each for _, part in found for each in part] == kept


@pytest.mark.integration
@settings(max_examples=15)
@given(st.integers(0, 500))
def test_success_replay_fills_failed_groups_of_its_prompt(seed):
    policy = TokenPolicy(seed=seed)
    mending = source(policy, Exact(), replay=SuccessReplay(1.0, per_prompt=2, seed=0), seed=seed)
    known: set[str] = set()
    for iteration in range(4):
        found = collect(mending, iteration)
        rows: dict[int, list[tuple[str, str, str, bool, float]]] = {}
        for batch in found.micro_batches:
            past = batch.rollout.policy_version < policy.version
            for row, group in enumerate(batch.rollout.group_index.tolist()):
                sample = batch.rollout.samples[row]
                gained = batch.advantages[row].item()
                rows.setdefault(group, []).append((sample.id, sample.answer, batch.rollout.media[row], past, gained))
        assert all(len(group) == 6 and len({id for id, *_ in group}) == 1 for group in rows.values())
        for group in rows.values():
            right = [text == expected for _, expected, text, _, _ in group]
            replayed = [text == expected and gained > 0 for _, expected, text, past, gained in group if past]
            own = [fine for fine, (*_, past, _) in zip(right, group, strict=True) if not past]
            assert all(replayed) and len(replayed) == (not any(own) and group[0][0] in known)
        known |= {group[0][0] for group in rows.values() if any(text == expected for _, expected, text, _, _ in group)}
        assert found.metrics["replay/rows"] == sum(past for group in rows.values() for *_, past, _ in group)
        policy.version += 1


def test_a_success_that_breaks_down_when_played_again_replaces_nothing():
    """Answers that came back belong to the groups they were drawn for, and the other group keeps its own."""
    mending = source(reward=Never())
    sampled = mending.collector(0, 0.0, Phases(), 3).collect(FixedGroupSampler(6), mending.prompts)
    groups = sampled.scored.group_index
    sampled = replace(sampled, compared=groups + 100, credit=groups.float())
    replay = SuccessReplay(1.0, per_prompt=1, seed=0)
    broken = sampled.scored.samples[0].id
    replay.keep([answer(sample=id, right=1.0, total=1.0) for id in {each.id for each in sampled.scored.samples}])
    recall = mending._replay_reader()

    def read(transcripts, numbers):
        kept = [place for place, each in enumerate(transcripts) if each.sample != broken]
        return recall([transcripts[place] for place in kept], [numbers[place] for place in kept])

    found, metrics = replay.replace_failures(sampled, read)
    added = found.scored.group_index[len(groups) :]
    assert metrics["replay/rows"] == len(added) == 3 and int(groups[0]) not in added.tolist()
    assert (found.compared == found.scored.group_index + 100).all() and (found.credit == found.compared - 100).all()
    assert Counter(groups[~found.trained[: len(groups)]].tolist()) == Counter(added.tolist())


def test_success_replay_without_a_success_changes_nothing():
    mending = source(reward=Never(), replay=SuccessReplay(1.0, 4, seed=0))
    for iteration in range(3):
        found = collect(mending, iteration)
        assert found.metrics["replay/rows"] == found.metrics["replay/kept"] == 0
        assert not any(batch.advantages.any() for batch in found.micro_batches)


def test_buffer_keeps_a_number_of_good_answers_per_prompt():
    replay = SuccessReplay(1.0, per_prompt=2, seed=0)
    replay.keep([answer(text=text, sample=sample) for sample in ("s0", "s1") for text in ("1", "2", "3")])
    total, groups = torch.tensor([0.0, 0.0, 0.0, 0.5, float("nan")]), torch.tensor([0, 0, 1, 1, 2])
    ids = ["s0", "s0", "s1", "s1", "s0"]
    found = [replay.draw(ids, total, groups, torch.ones(5, dtype=torch.bool)) for _ in range(40)]
    assert {len(each) for each in found} == {2}  # the group that could not be scored did not fail
    assert {each[0][0] for each in found} == {0, 1} and {each[0][1].text for each in found} == {"2", "3"}
    assert len(replay) == 4


def test_replay_records_round_trip_through_json():
    log_probs = tuple(torch.randn(50).tolist())
    one = replace(answer(advantage=float(np.float32(0.1))), log_probs=log_probs)
    back = Transcript.from_dict(json.loads(json.dumps(one.as_dict())))
    assert back == one and torch.equal(torch.tensor(back.log_probs), torch.tensor(log_probs))


@pytest.mark.parametrize("kind", ["selective", "success"])
def test_buffer_resumes_exactly(kind):
    def made():
        replay = SelectiveReplay(64, 1.0, seed=0) if kind == "selective" else SuccessReplay(1.0, 4, seed=0)
        return source(TokenPolicy(), Exact(), replay=replay)

    straight = made()
    for iteration in range(5):
        collect(straight, iteration)
    resumed = made()
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    for iteration in range(5, 9):
        one, other = collect(straight, iteration), collect(resumed, iteration)
        assert one.metrics == other.metrics
        for left, right in zip(one.micro_batches, other.micro_batches, strict=True):
            assert left.rollout.media == right.rollout.media
            assert torch.equal(left.advantages, right.advantages)
            assert torch.equal(left.rollout.log_probs, right.rollout.log_probs)


def test_replays_are_distributed_over_updates():
    past, fresh = object(), object()
    assert interleaved([fresh] * 4, [past] * 2) == [fresh, past, fresh, fresh, past, fresh]
    assert interleaved([fresh] * 3, []) == [fresh] * 3


def test_replays_need_an_existing_sample():
    kept = source(replay=SelectiveReplay(8, 1.0, 0), prompts=PromptSampler(questions(), 4, seed=0))
    kept.replay.keep([answer(sample="s99")])
    with pytest.raises(ValueError, match="no sample 's99'"):
        ReplayReader(kept.policy, kept.prompts.sample, 2)(kept.replay.draw(1), [0])
