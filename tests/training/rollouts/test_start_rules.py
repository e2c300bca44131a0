"""A start rule decides what rows start with, round after round, and which of them are trained on and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mmrl.config import load_config
from mmrl.config.starts import StartsConfig
from mmrl.config.validation import validation_errors
from mmrl.errors import ConfigError, RunError
from mmrl.policy import Capability
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput, Scope
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, RowStart, row_starts
from mmrl.training.rollouts.start_rules import (
    StartRule,
    by_label,
    rounds_of,
    rows_of_groups,
    selection,
    split_groups,
)
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Exact, collect, source

EASY = RowStart("easy", prompt="s7")


class StartedPolicy(TokenPolicy):
    """A rewritten prompt is the id of another sample, whose row of the table is drawn from."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        read = [replace(r, sample=replace(r.sample, id=r.start.prompt or r.sample.id)) if r.start else r
                for r in requests]  # fmt: skip
        samples = [request.sample for request in requests for _ in range(request.n)]
        return replace(super().rollout(read, seed), samples=samples, starts=row_starts(requests))


class AsBegun(Reward):
    """1 for rows that started with another prompt, and nothing for the others."""

    name, needs, range = "as_begun", ("text",), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        return float("prompt" in item.metadata.get("start", {}))


class FirstOfGroup(Exact):
    """Compares the answers of a group."""

    name, scope = "first_of_group", Scope.GROUP


@dataclass(frozen=True)
class Halves(StartRule):
    """Two of six answers start with an easy prompt; sub-groups are compared in themselves."""

    apart: bool = True

    def first(self, requests, context):
        return split_groups(requests, [replace(each, n=2, start=EASY) for each in requests])

    def select(self, scored, context):
        return selection(scored, compared=by_label(scored) if self.apart else None)


@dataclass(frozen=True)
class HintsOnFailure(StartRule):
    """Groups without a right answer get another round with an easy prompt, which is trained on instead."""

    def more(self, scored, context):
        if len(scored.round_sizes) > 1:
            return []
        groups = rows_of_groups(scored)
        return [
            RolloutRequest(scored.samples[rows[0]], len(rows), group, EASY)
            for group, rows in groups.items()
            if not (scored.total[rows] >= 1).any()
        ]

    def select(self, scored, context):
        hinted = rounds_of(scored) == 1
        replaced = torch.isin(scored.group_index, scored.group_index[hinted])
        return selection(scored, trained=hinted | ~replaced)


def started(rule: StartRule, reward: Reward | None = None, **changes: Any):
    suite = RewardSuite([(reward or Exact(), 1.0)], min_valid_share=0.5)
    return source(StartedPolicy(), suite=suite, starts=rule, **changes)


def test_rewards_know_the_start_and_metrics_are_of_rows_without():
    found = collect(started(Halves(), AsBegun()))
    metrics = found.metrics
    assert metrics["reward/as_begun"] == 0  # of the four rows of each group that started with their sample alone
    assert metrics["starts/reward/easy"] == 1 and metrics["starts/reward/alone"] == 0
    assert metrics["starts/share/easy"] == pytest.approx(1 / 3)
    assert metrics["starts/rows"] == 24 and metrics["starts/rounds"] == 1
    assert [[start and start.label for start in batch.rollout.starts] for batch in found.micro_batches] == [
        ([None] * 4 + ["easy"] * 2) * 2
    ] * 2


def test_sub_groups_are_compared_apart_or_together_as_the_rule_says():
    apart = torch.cat([batch.advantages for batch in collect(started(Halves(), AsBegun())).micro_batches])
    assert not apart.any()  # rewards of a sub-group are equal
    together = collect(started(Halves(apart=False), AsBegun()))
    advantages = torch.cat([batch.advantages for batch in together.micro_batches]).view(4, 6)
    # Rewards 0 0 0 0 1 1: their mean is 1/3 and their spread the root of 2/9.
    expected = (torch.tensor([0.0, 0, 0, 0, 1, 1]) - 1 / 3) / (2 / 9) ** 0.5
    torch.testing.assert_close(advantages, expected.expand(4, 6), atol=1e-3, rtol=0)


def test_a_second_round_replaces_groups_that_failed():
    found = collect(started(HintsOnFailure()))
    starts = [start for batch in found.micro_batches for start in batch.rollout.starts or [None] * batch.rollout.rows]
    hinted = sum(start is not None for start in starts)
    assert len(starts) == 24 and 0 < hinted < 24 and hinted % 6 == 0
    assert found.metrics["starts/rows"] == 24 + hinted
    assert found.metrics["starts/trained_rows"] == 24
    plain = collect(source(StartedPolicy(), suite=RewardSuite([(Exact(), 1.0)], min_valid_share=0.5)))
    assert found.metrics["reward/exact"] == plain.metrics["reward/exact"]  # of the first round
    assert found.metrics["zero_variance_share"] == plain.metrics["zero_variance_share"]


def test_rules_draw_by_iteration_alone():
    @dataclass(frozen=True)
    class Some(StartRule):
        def first(self, requests, context):
            drawn = [each for each in requests if context.rng.random() < 0.5]
            return split_groups(requests, [replace(each, n=3, start=EASY) for each in drawn])

    def shares(iterations):
        made = started(Some())
        return {n: collect(made, n).metrics["starts/share/alone"] for n in iterations}

    once = shares(range(4))
    assert len(set(once.values())) > 1
    assert shares([2])[2] == once[2]


def test_a_reward_of_groups_and_rounds_exclude_each_other():
    with pytest.raises(RunError, match="sampled in several rounds"):
        collect(started(HintsOnFailure(), FirstOfGroup()))


def test_trained_rows_need_a_baseline():
    class Wrong(StartRule):
        def select(self, scored, context):
            rows = torch.arange(len(scored.samples))
            return selection(scored, trained=rows < 4, in_baseline=rows > 2)

    with pytest.raises(ValueError, match="must be in the baseline"):
        collect(started(Wrong()))


def test_policies_that_cannot_are_named():
    with pytest.raises(ConfigError, match="the rows of TokenPolicy cannot start differently"):
        source(TokenPolicy(), starts=Halves())


PLUG_IN = """
from dataclasses import dataclass, replace
from mmrl.rollout_request import RowStart
from mmrl.training.rollouts.start_rules import StartRule, by_label, selection, split_groups


@dataclass(frozen=True)
class HintedHalf(StartRule):
    hint: str

    def first(self, requests, context):
        start = RowStart("hinted", prefix=self.hint)
        return split_groups(requests, [replace(each, n=each.n // 2, start=start) for each in requests])

    def select(self, scored, context):
        return selection(scored, compared=by_label(scored))
"""


def test_a_rule_of_ones_own(tmp_path):
    (tmp_path / "my_rules.py").write_text(PLUG_IN)
    name = f"{tmp_path}/my_rules.py:HintedHalf"
    rule = StartsConfig(name=name, args={"hint": "1"}).rule()
    found = collect(started(rule))
    assert found.metrics["starts/share/hinted"] == 0.5
    with pytest.raises(ConfigError, match=r"HintedHalf\(hint: str\): missing a required argument: 'hint'"):
        StartsConfig(name=name).rule()


def test_settings_that_cannot_work_are_named_before_a_model_is_loaded(tmp_path):
    (tmp_path / "my_rules.py").write_text(PLUG_IN)
    starts = f"data.starts={{name: '{tmp_path}/my_rules.py:HintedHalf'"
    (error,) = validation_errors(load_config("shapes-reasoning", [f"{starts}}}"]))
    assert "missing a required argument" in error
    words = [f"{starts}, args: {{hint: a}}}}", "data.group_sampling.name=dynamic"]
    (error,) = validation_errors(load_config("shapes-reasoning", words))
    assert "dynamic and data.starts both request" in error
    with pytest.raises(ConfigError, match=r"data\.starts\.name"):
        load_config("shapes-reasoning", ["data.starts.name=no_such_rule"])
    (error,) = validation_errors(load_config("shapes-reasoning", [words[0]]), capabilities={"teacher_force"})
    assert "capability row_starts" in error
