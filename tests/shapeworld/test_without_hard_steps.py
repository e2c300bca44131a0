"""Calculations without hard steps, and the measure of right chains."""

from __future__ import annotations

import pytest

from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import without_hard_steps
from mmrl_shapeworld.reasoning.calculation_splits import calculations
from mmrl_shapeworld.reasoning.right_chain import RightChain
from mmrl_shapeworld.reasoning.without_hard_steps import hard_steps


def solved(text: str, path: list[str]) -> float:
    item = RewardInput(id="0", group=0, prompt="3+5*7=", text=text, references={"path": path})
    return RightChain().score_one(item)


@pytest.mark.integration
def test_no_prompt_has_a_hard_step_and_one_in_four_of_validation_has():
    found = splits.samples("sums-without-hard")
    by_prompt = {str(each): each for each in calculations("sums-train")}
    assert not any(hard_steps(by_prompt[each.prompt]) for each in found) and len(found) > 2500
    assert len({each.id for each in found}) == len(found)
    assert all(solved(each.demonstration, each.metadata["path"]) for each in found)
    validation = [hard_steps(each) > 0 for each in calculations("sums-validation")]
    assert 0.15 < sum(validation) / len(validation) < 0.35
    with pytest.raises(KeyError, match="without hard steps 'sums-easy': choose one of sums-without-hard"):
        without_hard_steps.samples("sums-easy")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<think>3+5=8;8*7=56;</think>56", 1),
        ("<think>8 56</think>56", 1),
        ("<think>3+5=9;wait3+5=8;8*7=56;</think>56", 1),  # taken back
        ("<think>3+5=9;9*7=63;</think>56", 0),  # lucky
        ("<think>3+5=8;8*7=56;</think>55", 0),
        ("<think>56 8</think>56", 0),  # not in order
        ("<think>8 56 57</think>56", 0),  # another value is last
        ("<think></think>56", 0),
        ("56", 0),
    ],
)
def test_a_right_chain_has_the_value_after_each_step_and_ends_with_the_answer(text, value):
    assert solved(text, ["3", "8", "56"]) == value
