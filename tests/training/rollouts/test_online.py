"""Online rollouts: metrics by source, rewards by sample, and exact resumption with every sampler."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mmrl.data.prompts import PromptSampler, VarianceAwareSampler
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import RunError
from mmrl.rewards import GroupReward, RewardInput, ScoringFailed, WeightedReward
from mmrl.rewards.core.routing import RoutedRewards, distinct_choices
from mmrl.training.rollouts.advantage_estimator import DifficultyWeighting
from mmrl.training.rollouts.collect import complete_groups
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.group_sampling import AdaptiveGroupSampler, DynamicGroupSampler
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay
from mmrl.training.rollouts.replay_buffer import SelectiveReplay, SuccessReplay
from tests.training.growing_prompts import growing
from tests.training.rollouts.test_offline import paired_samples
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, Right, collect, source, trainer

SAMPLERS = {
    "plain": dict,
    "dynamic": lambda: {"group_sampler": DynamicGroupSampler(4, 6, 4)},
    "adaptive": lambda: {"group_sampler": AdaptiveGroupSampler(6, 3, 4, 1.0, 2, 2, 0)},
    "selective": lambda: {"replay": SelectiveReplay(40, 1.0, 0)},
    "success": lambda: {"replay": SuccessReplay(1.0, 2, 0)},
    "recomposed": lambda: {"replay": RecomposedReplay(40, 0.5, 1.0, (1.0, 0.5), 0)},
    "difficulty": lambda: {"weighting": DifficultyWeighting(("easy", "hard"), 1.0)},
    "variance_aware": lambda: {"prompts": VarianceAwareSampler(paired_samples(), 4, 0)},
    "growing": lambda: {"prompts": growing(paired_samples())},
    "mixed": lambda: {"demonstrations": MixedDemonstrations(0.5, 0.1, 0)},
    "all": lambda: {
        "prompts": VarianceAwareSampler(paired_samples(), 4, 0),
        "group_sampler": DynamicGroupSampler(4, 6, 2),
        "replay": SelectiveReplay(40, 1.0, 0),
        "weighting": DifficultyWeighting(("easy", "hard"), 1.0),
        "demonstrations": MixedDemonstrations(0.5, None, 0),
    },
}


def run(folder, kind):
    return trainer(
        folder,
        source(TokenPolicy(), Right(), **({"prompts": PromptSampler(paired_samples(), 4, 0)} | SAMPLERS[kind]())),
    )


def mastery(policy):
    """The mean probability of an answer's first token: what `right` pays half for."""
    return policy.logits.detach().softmax(-1)[range(8), 0, [int(s.answer[0]) for s in questions()]].mean().item()


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_sampler_learns_and_resumes_exactly(kind, tmp_path):
    straight, begun = run(tmp_path / "a", kind), run(tmp_path / "b", kind)
    metrics = [straight.iterate()[0] for _ in range(5)]
    for _ in range(3):
        begun.iterate()
    begun.save()
    resumed = run(tmp_path / "b", kind)
    resumed.resume()
    for _ in range(2):
        resumed.iterate()
    assert resumed.step == straight.step == 5
    assert torch.equal(resumed.policy.logits, straight.policy.logits)
    assert json.dumps(resumed.source.state_dict()) == json.dumps(straight.source.state_dict())
    assert mastery(straight.policy) > mastery(TokenPolicy())
    assert max(row["replay_gap"] for row in metrics) < 1e-6  # rows of the past are no part of it


def test_metrics_by_source_use_their_own_rows():
    class Half(Right):
        def score_one(self, item: RewardInput) -> float:
            if item.metadata["source"] == "odd" and item.text == "":
                raise ScoringFailed("no verdict")
            return super().score_one(item)

    found = collect(source(reward=Half()), 1)
    rows = [
        (sample.source, group, text, len(ids))
        for batch in found.micro_batches
        for sample, group, text, ids in zip(
            batch.rollout.samples,
            batch.rollout.group_index.tolist(),
            batch.rollout.media,
            batch.rollout.token_ids,
            strict=True,
        )
    ]
    for name in ("even", "odd"):
        mine = [row for row in rows if row[0] == name]
        failed = sum(text == "" for *_, text, _ in mine) if name == "odd" else 0
        assert found.metrics[f"valid_share_by_source/{name}"] == 1 - failed / len(mine)
        assert found.metrics[f"length_by_source/{name}"] == pytest.approx(np.mean([n for *_, n in mine]))
    assert found.metrics["length"] == pytest.approx(np.mean([n for *_, n in rows]))
    shares = [found.metrics[f"zero_variance_share_by_source/{name}"] for name in ("even", "odd")]
    groups = [len({group for source, group, *_ in rows if source == name}) for name in ("even", "odd")]
    whole = sum(share * n for share, n in zip(shares, groups, strict=True)) / sum(groups)
    assert found.metrics["zero_variance_share"] == pytest.approx(whole)


def test_samples_are_scored_by_their_requested_rewards():
    def asking(sample: Sample) -> Sample:
        chosen = () if sample.source == "even" else (RewardChoice("exact", 2.0), RewardChoice("right", 0.5))
        return Sample(**{**vars(sample), "rewards": chosen})

    samples = [asking(sample) for sample in questions()]
    kinds = {"exact": Exact, "right": Right}
    rewards = RoutedRewards(
        [WeightedReward(Right())], distinct_choices(samples), load=lambda name: kinds[name](), min_valid_share=1.0
    )
    mixed = source(suite=rewards, prompts=PromptSampler(samples, 4, seed=0))
    found = collect(mixed)
    plain = collect(source())  # the same answers, by `right` alone
    assert found.metrics["reward_by_source/even"] == plain.metrics["reward_by_source/even"]
    exact = collect(source(reward=Exact()))
    expected = 2 * exact.metrics["reward_by_source/odd"] + 0.5 * plain.metrics["reward_by_source/odd"]
    assert found.metrics["reward_by_source/odd"] == pytest.approx(expected)
    assert found.metrics["reward/exact"] == exact.metrics["reward_by_source/odd"]  # of the samples that requested it
    assert not [name for name in found.metrics if name.startswith(("status/", "failure/"))]
    assert all(math.isfinite(a) for batch in found.micro_batches for a in batch.advantages.tolist())
    rewards.close()


def item(group):
    return RewardInput(id="", group=group, prompt="")


def test_group_rewards_wait_for_whole_groups():
    sizes = {0: 2, 1: 3, 2: 1}
    assert [complete_groups([item(g) for g in (0, 1, 0, 1, 1, 2)[:n]], sizes) for n in range(7)] == [
        0,
        0,
        0,
        0,
        0,
        5,
        6,
    ]
    assert [complete_groups([item(g) for g in (0, 0, 1)[:n]], sizes) for n in range(4)] == [0, 0, 2, 2]
    calls = []

    class Rank(GroupReward):
        """The share of a group's answers that are shorter."""

        name, needs, range = "rank", ("text",), (0.0, 1.0)

        def score_group(self, items):
            calls.append(len(items))
            return [sum(len(other.text) < len(each.text) for other in items) / len(items) for each in items]

    collect(source(reward=Rank(), micro_batch=4))
    assert calls == [6] * 4


def test_tokens_and_prompt_media_reach_the_reward():
    seen = []

    class Looking(Exact):
        def score_one(self, item: RewardInput) -> float:
            seen.append(item)
            return super().score_one(item)

    samples = [Sample(**{**vars(s), "images": ("a.png",), "videos": ("b.mp4",)}) for s in questions()]
    found = collect(source(reward=Looking(), prompts=PromptSampler(samples, 4, 0)))
    tokens = [ids for batch in found.micro_batches for ids in batch.rollout.token_ids]
    assert [item.metadata["tokens"] for item in seen] == tokens
    assert {(*item.references["images"], *item.references["videos"]) for item in seen} == {("a.png", "b.mp4")}


def test_failed_scores_of_a_small_round_do_not_stop_the_run():
    calls = []

    class Flaky(Right):
        def score_one(self, item: RewardInput) -> float:
            calls.append(item.group)
            if item.group >= 4 and len(calls) <= 48:
                raise ScoringFailed("down")
            return 0.0 if item.group < 3 else super().score_one(item)

    found = collect(source(reward=Flaky(), group_sampler=DynamicGroupSampler(4, 6, 2)))
    assert found.metrics["draws/rounds"] == 2 and found.metrics["valid_share_by_source/even"] < 1


def test_failed_scorers_stop_the_run():
    class Down(Right):
        def score_one(self, item: RewardInput) -> float:
            raise ScoringFailed("down")

    with pytest.raises(RunError, match=r"only 0% of the answers could be scored .*training\.min_valid_share"):
        collect(source(reward=Down()))
