"""Rows of online rollouts that are learnt from alone: which, how they are pack_units, and what becomes of them."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image

from mmrl.config.algorithms.preference import DPOConfig, OnlineDPOConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.offline import Demonstrations, PreferencePairs, check_answers
from mmrl.training.rollouts.row_selection import (
    BestAndWorst,
    EveryPair,
    RowSelection,
    pack_units,
    positive_advantage_rows,
)
from tests.training.conftest import samples
from tests.training.gaussian_flow import GaussianFlow
from tests.training.objectives.scored_batches import gradient_of
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect

ADVANTAGES = torch.tensor([0.5, -1.0, 2.0, math.nan, 1.0, 1.0, 3.0, 0.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 7, 7])


class Prepared:
    """Rollouts of four rows a group in two micro-batches, with advantages that are given."""

    def __init__(self, policy, group_samples, advantages):
        self.policy, self.group_samples, self.advantages = policy, group_samples, advantages

    def collect(self, iteration, progress, phases):
        batches = []
        for g, sample in enumerate(self.group_samples):
            rollout = self.policy.rollout([RolloutRequest(sample, 4, g)], seed=g)
            worth = torch.tensor(self.advantages[4 * g : 4 * g + 4])
            gained = worth.nan_to_num(0.0)
            batches.append(MicroBatch(rollout, gained, worth.isfinite(), gained[:, None].where(rollout.mask, 0.0)))
        return Experience(batches, {"reward/total": 0.0})

    def state_dict(self):
        return {"prompts": 3}

    def load_state_dict(self, state):
        self.state = state


def test_row_selection_by_hand():
    assert positive_advantage_rows(ADVANTAGES, GROUPS) == [[0], [2], [4], [5], [6]]
    assert BestAndWorst()(ADVANTAGES, GROUPS) == [[2, 1], [6, 7]]  # equal rewards say nothing
    assert BestAndWorst(margin=3.0)(ADVANTAGES, GROUPS) == []
    assert EveryPair()(ADVANTAGES, GROUPS) == [[0, 1, 2], [6, 7]]
    assert EveryPair(margin=1.6)(ADVANTAGES, GROUPS) == [[1, 2], [6, 7]]
    assert EveryPair(split=True)(ADVANTAGES, GROUPS) == [[0, 1], [2, 0], [2, 1], [6, 7]]


def test_packs_hold_whole_units_and_balance_updates():
    plain = [Sample(str(n)) for n in range(8)]
    units = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert pack_units(units, plain, most=8) == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert pack_units(units, plain, most=5) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert pack_units(units, plain, most=8, parts=4) == units
    assert pack_units([[0, 1, 2]], plain, most=2) == [[0, 1, 2]]
    one, other = Sample("a", conditions={"image": "a.png"}), Sample("b", conditions={"image": "b.png"})
    assert pack_units(units, [one] * 4 + [other] * 4, most=8) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("policy", [GaussianFlow(), TokenPolicy()], ids=["pictures", "texts"])
def test_selected_rows_are_independent_of_their_batch(policy):
    group_samples = samples(2) if isinstance(policy, GaussianFlow) else questions(2)
    before = Prepared(policy, group_samples, [1.0, 0.0, -1.0, math.nan, 0.5, 2.0, 0.0, 0.0])
    source = RowSelection(before, policy, BestAndWorst(), micro_batch=8)
    found, rollouts = collect(source), [each.rollout for each in collect(before).micro_batches]
    (batch,) = found.micro_batches
    assert found.metrics == {"reward/total": 0.0, "chosen_rows": 4.0}
    assert batch.advantages.tolist() == [1.0, -1.0, 2.0, 0.0] and batch.scored.all()
    assert batch.rollout.group_index.tolist() == [0, 0, 1, 1]
    places = [(0, 0), (0, 2), (1, 1), (1, 2)]
    assert batch.rollout.media == [rollouts[call].media[row] for call, row in places]
    assert batch.rollout.samples == [group_samples[0]] * 2 + [group_samples[1]] * 2
    if batch.rollout.clean is not None:
        assert torch.equal(batch.rollout.clean, torch.stack([rollouts[c].clean[r] for c, r in places]))
    objective = (VelocityRegression if isinstance(policy, GaussianFlow) else PreferenceLearning)(
        policy, OnlineDPOConfig(beta=1.0)
    )
    assert objective.loss_normalizer(batch) == 2
    if isinstance(policy, TokenPolicy):
        assert gradient_of(objective, policy, [batch])[0].norm() > 0
    source.load_state_dict(source.state_dict())
    assert before.state == {"prompts": 3}


def test_empty_selections_have_no_gradient():
    policy = GaussianFlow()
    source = RowSelection(Prepared(policy, samples(2), [0.0] * 8), policy, BestAndWorst(), 8)
    found = collect(source)
    assert len(found.micro_batches) == 2 and found.metrics["chosen_rows"] == 0
    assert VelocityRegression(policy, OnlineDPOConfig()).loss_normalizer(found.micro_batches[0]) == 0


# Pictures that stand in the data set ----------------------------------------------------------------------------------


def preference_samples(folder):
    """Samples that prefer a bright picture over a dark one."""
    for name, value in (("bright", 192), ("dark", 64)):
        Image.new("RGB", (4, 4), (value,) * 3).save(folder / f"{name}.png")
    bright, dark = ({"image": str(folder / f"{name}.png")} for name in ("bright", "dark"))
    return [Sample(f"s{n}", prompt="p", chosen=bright, rejected=dark, demonstration=[bright]) for n in range(4)]


def test_images_are_encoded_for_imitation_or_preferences(tmp_path):
    policy, found = GaussianFlow(), preference_samples(tmp_path)
    check_answers(found, "pairs", policy)
    (first, second) = collect(PreferencePairs(policy, PromptSampler(found, 4, seed=0), 4)).micro_batches
    assert first.rollout.clean[:, 0].tolist() == [1.0, -1.0, 1.0, -1.0] and second.advantages.tolist() == [1, -1, 1, -1]
    (batch,) = collect(Demonstrations(policy, PromptSampler(found, 4, seed=0), 4, seed=0)).micro_batches
    assert batch.rollout.clean[:, 0].tolist() == [1.0] * 4 and batch.rollout.media[0].size == (4, 4)
    objective = VelocityRegression(policy, DPOConfig(num_noise_levels=1))
    assert objective.loss_normalizer(first) == 2


def test_outputs_of_another_modality_raise(tmp_path):
    texts = [Sample("s0", prompt="p", chosen="a", rejected="b", demonstration="c")]
    for kind, expected in (("pairs", "a picture under 'chosen'"), ("demonstrations", "a picture as 'demonstration'")):
        with pytest.raises(DataError, match=f"1 of 1 samples lack {expected}"):
            check_answers(texts, kind, GaussianFlow())
    with pytest.raises(DataError, match="lack a text under 'chosen'"):
        check_answers(preference_samples(tmp_path), "pairs", TokenPolicy())


def test_texts_of_equal_reward_are_no_pairs():
    policy = TokenPolicy()
    source = RowSelection(Prepared(policy, questions(2), [0.0] * 8), policy, BestAndWorst(), micro_batch=4)
    found = source.collect(0, 0.0, None)
    assert found.metrics["chosen_rows"] == 0 and sum(batch.scored_rows for batch in found.micro_batches) == 0
    objective = PreferenceLearning(policy, OnlineDPOConfig())
    objective.accumulate(found.micro_batches, 1.0, [0, 1], MetricAccumulator())
    assert policy.logits.grad is None
