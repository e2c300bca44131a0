"""A reward is maximised while another is held above a threshold; Pareto selection on rollouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig, SiblingAdvantage
from mmrl.errors import RunError
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.lagrangian import Constraint, Constraints

THRESHOLD = -0.5


class Constrained(Reward):
    """The first number of an answer."""

    name, needs, range = "held", ("text",), (-100.0, 100.0)

    def score_one(self, item):
        return float(item.text.split()[0])


class Down(Constrained):
    """Best where the first number is -2."""

    name = "down"

    def score_one(self, item):
        return -((super().score_one(item) + 2) ** 2)


def constrained(trainer, at_least: float, start: float = 0.0):
    """The first number is to fall to -2, but its mean is to stay above a threshold."""
    trainer.source.suite = RewardSuite([(Down(), 1.0), (Constrained(), 0.0)], min_valid_share=0.5)
    constraints = Constraints([Constraint("held", at_least, start=start, rate=0.1)])
    trainer.source.advantage_estimator = AdvantageEstimator(
        AdvantageConfig(name="dr_grpo"), trainer.source.suite.weights, constraints
    )
    return trainer


def test_pairs_are_compared_in_the_objective_and_in_the_constraint():
    """By hand: halves of the differences within pairs, over the spread of all, with a multiplier of 1 (MVC-ZigAL)."""
    view, joint = np.float32([1.0, 0.0, 0.5, 0.5]), np.float32([0.0, 0.2, 0.0, 0.6])
    output = RewardOutput(values={"total": view, "held": joint}, status={}, detail={})
    estimator = AdvantageEstimator(
        SiblingAdvantage(std="batch"),
        {"view": 1.0},
        Constraints([Constraint("held", at_least=0.5, start=1.0)]),
    )
    found = estimator.advantages(output, torch.tensor([0, 0, 1, 1]))
    first = torch.tensor([0.5, -0.5, 0.0, 0.0]) / view.std()
    second = torch.tensor([-0.1, 0.1, -0.3, 0.3]) / joint.std()
    torch.testing.assert_close(found, (first + second) / 2, atol=1e-3, rtol=1e-3)


def learnt(trainer, iterations: int) -> dict[str, list[float]]:
    rows = [trainer.iterate()[0] for _ in range(iterations)]
    assert all(row["slack/held"] == pytest.approx(row["reward/held"] - THRESHOLD, abs=1e-6) for row in rows)
    return {name: [row[name] for row in rows] for name in ("multiplier/held", "reward/held")}


@pytest.mark.integration
def test_objective_is_maximised_within_the_constraint(make_trainer):
    """On paper: -(x + 2)² + lambda x is best at x = lambda / 2 - 2, which is the threshold, -0.5, at lambda = 3."""
    trainer = constrained(make_trainer(optimizer={"lr": 0.1}), THRESHOLD, start=2.5)
    numbers = learnt(trainer, 45)
    assert np.mean(numbers["reward/held"][-20:]) == pytest.approx(THRESHOLD, abs=0.3)
    assert np.mean(numbers["multiplier/held"][-20:]) == pytest.approx(3.0, abs=1.0)
    for value, now, then in zip(
        numbers["reward/held"], *(numbers["multiplier/held"][n:] for n in (0, 1)), strict=False
    ):
        assert (then > now) == (value < THRESHOLD), "up as long as it is broken, else down"


@pytest.mark.integration
def test_fixed_multipliers_violate_the_constraint(make_trainer):
    trainer = constrained(make_trainer(optimizer={"lr": 0.1}), THRESHOLD)
    trainer.source.advantage_estimator.constraints.each = [Constraint("held", THRESHOLD, most=0.0)]
    assert learnt(trainer, 30)["reward/held"][-1] < -1.4


def test_multipliers_resume(make_trainer, tmp_path):
    straight = constrained(make_trainer(tmp_path / "a"), 0.5)
    straight.train()
    begun = constrained(make_trainer(tmp_path / "b"), 0.5)
    for _ in range(3):
        begun.iterate()
    begun.save()
    resumed = constrained(make_trainer(tmp_path / "b"), 0.5)
    resumed.resume()
    assert (
        resumed.source.advantage_estimator.constraints.multipliers
        == begun.source.advantage_estimator.constraints.multipliers
    )
    while resumed.step < 6:
        resumed.iterate()
    assert torch.equal(resumed.policy.theta, straight.policy.theta)
    assert (
        resumed.source.advantage_estimator.constraints.multipliers
        == straight.source.advantage_estimator.constraints.multipliers
    )
    with pytest.raises(RunError, match="multipliers are of held, and the constrained rewards are other"):
        Constraints([Constraint("other", 0.0)]).load_state_dict(
            begun.source.advantage_estimator.constraints.state_dict()
        )


def output(**columns: list[float]) -> RewardOutput:
    values = {name: np.array(column, np.float32) for name, column in columns.items()}
    return RewardOutput(values, {}, [{} for _ in next(iter(columns.values()))])


def test_unscored_constraints_are_left_out_of_their_row():
    constraints = Constraints([Constraint("held", 0.0, start=1.0)])
    credit = AdvantageEstimator(AdvantageConfig(name="dr_grpo"), {"up": 1.0, "held": 0.0}, constraints)
    scored = output(up=[1.0, 0.0, 0.5], held=[0.0, 4.0, np.nan], total=[1.0, 0.0, 0.5])
    group = torch.zeros(3, dtype=torch.long)
    torch.testing.assert_close(credit.advantages(scored, group), torch.tensor([-0.75, 0.75, 0.0]))
    assert constraints.update_multipliers(output(held=[np.nan])) == {"multiplier/held": 1.0}, (
        "nothing known, nothing moved"
    )


def test_gdpo_applies_constraints_and_ignores_their_weight():
    constraints = Constraints([Constraint("held", 0.0, start=1.0)])
    scored = output(a=[1.0, 0.0], b=[0.0, 0.0], held=[0.0, 9.0], total=[1.0, 0.0])
    group, config = torch.zeros(2, dtype=torch.long), AdvantageConfig(name="gdpo", ddof=1)
    plain = AdvantageEstimator(config, {"a": 1.0, "b": 1.0, "held": 0.0}).advantages(scored, group)
    value = AdvantageEstimator(config, {"a": 1.0, "b": 1.0, "held": 0.0}, constraints).advantages(scored, group)
    assert plain[0] > 0.5 and value.abs().max() < 0.01, "both are z-scores, and cancel"


def test_pareto_trains_on_the_front_only():
    credit = AdvantageEstimator(AdvantageConfig(name="pareto"), {"a": 1.0, "worse": -2.0, "watched": 0.0})
    scored = output(a=[1.0, 0.0, 0.0], worse=[3.0, 1.0, 3.0], watched=[0.0, 0.0, 9.0], total=[-5.0, -2.0, -6.0])
    got = credit.advantages(scored, torch.zeros(3, dtype=torch.long))
    torch.testing.assert_close(got, torch.tensor([0.5, 1.0, 0.0]))  # places (1, 0) and (0, 1), weighed 1 to 2; 3 / 2


def test_pareto_front_of_the_batch_has_fewer_answers():
    """Both rewards of every answer to the second prompt are lower, so only its group's front has any of them."""
    scored = output(a=[1.0, 0.0, 0.2, 0.0], b=[0.0, 1.0, 0.0, 0.0], total=[1.0, 1.0, 0.2, 0.0])
    group, weights = torch.tensor([0, 0, 1, 1]), {"a": 1.0, "b": 1.0}
    within = AdvantageEstimator(AdvantageConfig(name="pareto"), weights).advantages(scored, group)
    torch.testing.assert_close(within, torch.tensor([0.5, 0.5, 1.0, 0.0]))
    config = AdvantageConfig(name="pareto", front="batch")
    torch.testing.assert_close(
        AdvantageEstimator(config, weights).advantages(scored, group), torch.tensor([1.0, 1.0, 0.0, 0.0])
    )


def test_centred_pareto_advantages_sum_to_zero_over_scored_answers():
    scored = output(a=[1.0, 0.0, 0.0, float("nan")], b=[0.0, 1.0, 0.0, 0.0], total=[1.0, 1.0, 0.0, float("nan")])
    config = AdvantageConfig(name="pareto", centred=True)
    got = AdvantageEstimator(config, {"a": 1.0, "b": 1.0}).advantages(scored, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(got, torch.tensor([0.25, 0.25, -0.5, 0.0]))


def test_chains_order_answers_by_the_signs_of_weights_and_a_reward_of_weight_0_has_no_part():
    scored = output(a=[0.0, 1.0, 2.0, 3.0], cost=[5.0, 4.0, 4.5, 0.0], watched=[9.0, 0.0, 5.0, 1.0], total=[0.0] * 4)
    credit = AdvantageEstimator(AdvantageConfig(name="chains"), {"a": 0.1, "cost": -7.0, "watched": 0.0})
    got = credit.advantages(scored, torch.zeros(4, dtype=torch.long))
    ranks = torch.tensor([-1.2247, 0.0, 0.0, 1.2247])  # answers 1 and 2 disagree; of two chains the later one is taken
    torch.testing.assert_close(got, ranks, atol=1e-4, rtol=0)


def test_channels_compare_their_rewards_apart_from_the_total():
    """Right answers differ by their calls, and wrong answers are equal."""
    channels = [{"rewards": ["right"]}, {"rewards": ["calls"], "among": {"right": 1.0}, "weight": 0.5}]
    config = AdvantageConfig(name="dr_grpo", channels=channels)
    scored = output(right=[1, 1, 0, 0], calls=[1, 0, 1, 0], watched=[9, 9, 9, 9], total=[0, 1, -1, 0])
    credit = AdvantageEstimator(config, {"right": 1.0, "calls": -2.0, "watched": 0.0})
    got = credit.advantages(scored, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(got, torch.tensor([0.5 - 0.5, 0.5 + 0.5, -0.5, -0.5]))
