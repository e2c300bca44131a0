"""Added prompts come from good parents, the worst are dropped, and a resume goes on exactly."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data.growing_prompts import SCORES, GrowingSampler, depth_of
from mmrl.data.jsonl import read_samples
from mmrl.data.prompts import Outcome
from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample
from mmrl.data.sources import load_source
from mmrl.errors import DataError
from mmrl.training.run.trackers import ADDED_PROMPTS, AddedPromptsTracker

SAMPLES = [Sample(str(number), prompt=f"p{number}") for number in range(6)]


class LongerPrompt(Proposer):
    """A proposer of the parent's prompt with a random letter more."""

    def propose(self, parent, rng):
        return replace(parent.sample, prompt=parent.sample.prompt + "abcdefgh"[int(rng.integers(8))])


class Same(Proposer):
    """A proposer of nothing new."""

    def propose(self, parent, rng):
        return parent.sample


class Continued(Proposer):
    """A proposer of the answer of its parent."""

    reads_answers = True

    def propose(self, parent, rng):
        return replace(parent.sample, prompt=parent.answer)


def outcome(sample, totals, answer=None):
    return Outcome(sample, totals, (), answer)


def regret_of(sample):
    """Prompts of the samples 0 and 1 and what comes from them have a regret of a half, the others of 0."""
    return [0.0, 1.0] if sample.prompt[1] in "01" else [1.0, 1.0]


def run(sampler, iterations):
    batches = []
    for _ in range(iterations):
        batch = sampler.next()
        sampler.learn([outcome(each, regret_of(each)) for each in batch])
        batches.append([(each.id, each.prompt) for each in batch])
    return batches


def test_scores_by_hand():
    totals = [0.0, 0.5, 0.5, 1.0]
    assert {name: score(totals) for name, score in SCORES.items()} == {
        "regret": pytest.approx(0.5), "range": 1.0, "variance": pytest.approx(0.125)}  # fmt: skip


def test_added_prompts_come_from_parents_with_a_score():
    sampler = GrowingSampler(SAMPLES, 6, 0, LongerPrompt(), add=2)
    run(sampler, 12)
    assert len(sampler.added) == 24
    assert {each.sample.prompt[1] for each in sampler.added.values()} == {"0", "1"}
    prompts = [each.sample.prompt for each in sampler.added.values()]
    assert len(set(prompts)) == len(prompts)
    depths = Counter(depth_of(each.sample) for each in sampler.added.values())
    assert depths[1] and max(depths) > 1  # added samples become parents, too
    for each in sampler.added.values():
        assert len(each.sample.prompt) == 2 + depth_of(each.sample)


def test_uniform_parents_are_the_control():
    sampler = GrowingSampler(SAMPLES, 4, 0, LongerPrompt(), add=2, parents="uniform")
    run(sampler, 12)
    assert len({each.sample.prompt[1] for each in sampler.added.values()}) == 6


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.floats(0, 1), st.integers(1, 3), st.integers(0, 5), st.integers(0, 6))
def test_batches_have_distinct_prompts_and_are_full(groups, share, every, add, extra):
    sampler = GrowingSampler(SAMPLES, groups, 3, LongerPrompt(), every=every, add=add, share=share)
    for _ in range(5):
        batch = [*sampler.next(), *sampler.more(extra)]
        assert len({each.id for each in batch}) == len(batch) >= min(groups + extra, 6)
        sampler.learn([outcome(each, regret_of(each)) for each in batch])


def test_a_share_of_a_batch_is_added_and_drawn_by_score():
    sampler = GrowingSampler(SAMPLES, 4, 0, LongerPrompt(), every=3, add=6, share=0.5)
    run(sampler, 3)
    added = list(sampler.added.values())
    for number, each in enumerate(added):
        each.score = 1.0 if number < 2 else 0.0
    for _ in range(2):
        assert {each.id for each in sampler.next()} >= {added[0].sample.id, added[1].sample.id}
    added[5].score = None  # as good as the best, until it has answers
    drawn = Counter(each.id for _ in range(60) for each in sampler.next())
    assert 60 * 2 / 3 * 0.6 < drawn[added[5].sample.id] < 60 * 2 / 3 * 1.4
    assert sampler.metrics()["prompts/added_in_batch"] == 2.0


def test_the_lowest_scores_are_dropped_and_stay_readable():
    sampler = GrowingSampler(SAMPLES, 6, 0, LongerPrompt(), add=3, capacity=4, share=0.0)
    run(sampler, 1)
    first = list(sampler.added.values())
    for each, score in zip(first, (0.1, 0.3, 0.2), strict=True):
        each.score = score
    sampler.learn([])
    assert [each.dropped for each in first] == [2, None, 2]  # three more came, unscored, and stay
    assert sampler.metrics()["prompts/added"] == 4.0 and sampler.metrics()["prompts/dropped"] == 2.0
    assert sampler.sample(first[0].sample.id) is first[0].sample
    sampler = GrowingSampler(SAMPLES, 2, 0, LongerPrompt(), add=3, share=1.0)
    run(sampler, 9)
    gone = next(iter(sampler.added.values()))
    gone.dropped = 9
    assert gone.sample.id not in {each.id for _ in range(40) for each in sampler.next()}


@pytest.mark.parametrize("at", [1, 4, 9])
def test_it_resumes_to_the_bit(at):
    settings = {"every": 2, "add": 3, "capacity": 5}
    straight = GrowingSampler(SAMPLES, 4, 7, LongerPrompt(), **settings)
    run(straight, at)
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = GrowingSampler(SAMPLES, 4, 99, LongerPrompt(), **settings)
    resumed.load_state_dict(state)
    assert run(resumed, 8) == run(straight, 8)
    assert resumed.lines() == straight.lines() and resumed.state_dict() == straight.state_dict()
    other = GrowingSampler(SAMPLES, 4, 7, LongerPrompt(), **settings)  # the control: without the state
    run(other, at)
    other.added.clear()
    assert at == 1 or run(other, 8) != run(straight, 8)


def test_state_of_another_data_set_is_an_error():
    state = GrowingSampler(SAMPLES, 4, 0, LongerPrompt()).state_dict()
    with pytest.raises(DataError, match="not the one that the run began with"):
        GrowingSampler(SAMPLES[1:], 4, 0, LongerPrompt()).load_state_dict(state)


def test_nothing_new_adds_nothing():
    sampler = GrowingSampler(SAMPLES, 4, 0, Same())
    run(sampler, 3)
    assert not sampler.added and sampler.metrics()["prompts/added"] == 0.0


def test_answers_are_wanted_only_where_samples_are_added():
    sampler = GrowingSampler(SAMPLES, 4, 0, Continued(), every=2, add=9, score="variance")
    batch = sampler.next()
    outcomes = [outcome(each, [0.0, 1.0]) for each in batch]
    assert sampler.wanted_answers(outcomes) == [None] * 4
    sampler.learn(outcomes)
    wanted = sampler.wanted_answers(outcomes)
    assert all(place in (0, 1) for place in wanted)
    sampler.learn([replace(each, answer=f"after {each.sample.prompt}") for each in outcomes[:3]] + outcomes[3:])
    assert [each.sample.prompt for each in sampler.added.values()] != []
    assert {each.sample.prompt for each in sampler.added.values()} == {f"after {each.prompt}" for each in batch[:3]}


def test_file_is_a_data_set(tmp_path):
    sampler = GrowingSampler(SAMPLES, 6, 0, LongerPrompt(), add=3, capacity=4)
    tracker = AddedPromptsTracker(tmp_path, [sampler])
    tracker.log("train", 0, {})
    assert not (tmp_path / ADDED_PROMPTS).exists()
    run(sampler, 3)
    tracker.log("train", 3, {})
    found = read_samples(tmp_path / ADDED_PROMPTS)
    assert [each.prompt for each in found] == [each.sample.prompt for each in sampler.added.values()]
    growth = [each.metadata["growth"] for each in found]
    assert [each["iteration"] for each in growth] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert sum(each["dropped"] is not None for each in growth) == 5
    run(sampler, 1)
    earlier = GrowingSampler(SAMPLES, 6, 0, LongerPrompt(), add=3, capacity=4)
    run(earlier, 2)
    AddedPromptsTracker(tmp_path, [earlier]).truncate_after(2)  # a run that goes on from iteration 2
    assert len(read_samples(tmp_path / ADDED_PROMPTS)) == 6
    AddedPromptsTracker(tmp_path, [GrowingSampler(SAMPLES, 6, 0, LongerPrompt())]).truncate_after(0)
    assert not (tmp_path / ADDED_PROMPTS).exists()


def test_file_leads_to_the_media_of_the_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pictured = [replace(each, images=(f"data/{each.id}.png",)) for each in SAMPLES]
    sampler = GrowingSampler(pictured, 6, 0, LongerPrompt(), add=3)
    run(sampler, 2)
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    AddedPromptsTracker(folder, [sampler]).log("train", 2, {})
    found = [each.images for each in load_source(str(folder / ADDED_PROMPTS))]
    parents = [each.sample.images for each in sampler.added.values()]
    assert len(found) == 6 and [[Path(path).resolve() for path in each] for each in found] == [
        [(tmp_path / path).resolve() for path in each] for each in parents
    ]


def test_files_of_stages_have_names_that_differ(tmp_path):
    samplers = [GrowingSampler(SAMPLES, 6, seed, LongerPrompt()) for seed in range(2)]
    for sampler in samplers:
        run(sampler, 1)
    AddedPromptsTracker(tmp_path, samplers).log("train", 1, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["added_prompts-stage-0.jsonl", "added_prompts.jsonl"]


def test_ids_of_the_data_set_are_not_taken():
    samples = [replace(each, id=f"added-0000{number}") for number, each in enumerate(SAMPLES)]
    sampler = GrowingSampler(samples, 4, 0, LongerPrompt(), add=2)
    run(sampler, 2)
    assert not set(sampler.added) & {each.id for each in samples}


def test_parent_by_default_has_any_answer():
    rng = np.random.default_rng(0)
    places = {Continued().wanted_answer(SAMPLES[0], 0, [0.0, 1.0, 2.0], rng) for _ in range(50)}
    assert places == {0, 1, 2} and Continued().wanted_answer(SAMPLES[0], 0, [], rng) is None
    assert Parent(SAMPLES[0], 1.0).depth == 0


def test_groups_of_equal_rewards_whose_mean_is_rounded_up_are_drawn():
    assert max([0.1] * 3) < np.mean([0.1] * 3)
    sampler = GrowingSampler(SAMPLES, 4, 0, LongerPrompt(), parents="uniform", add=2)
    for _ in range(4):
        sampler.learn([Outcome(each, [0.1] * 3, []) for each in sampler.next()])
    assert len(sampler.added) == 8
