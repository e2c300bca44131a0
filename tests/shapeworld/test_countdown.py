"""Puzzles with many solutions: what solves them, and how different solutions are counted."""

from __future__ import annotations

import pytest
import torch

from mmrl.build.policies import build_policy
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_io import RewardInput, reward_input
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.reasoning.countdown import PARTS, Puzzle, calculations, puzzles, samples, solves
from mmrl_shapeworld.reasoning.countdown_rewards import CountdownSolved, DistinctSolutions
from mmrl_shapeworld.reasoning.traces import steps_of
from tools.shapeworld_pretrain import taught_sums

PUZZLE = Puzzle((3, 5, 8), 4)


@pytest.mark.parametrize(
    "text",
    [
        "5+3=8;8*8=4",  # no last sign
        "5+3=8;8*8=5;",  # a wrong value
        "5+3=9;9*8=2;",  # a wrong step, and another target
        "5+3=8;3*8=4;",  # does not go on from the value before it
        "8+6=4;",  # a number that is not there
        "8*8=4;",  # a number used twice, others not at all
        "3+5=8;8+8=6;",  # another target
        "so 5+3=8;8*8=4;",
        "",
    ],
)
def test_what_is_no_solution(text):
    assert not solves(text, PUZZLE)


def test_solutions_are_those_of_all_calculations_that_end_with_the_target():
    found = ["".join(steps_of(each)) for each in calculations(PUZZLE.numbers)]
    assert [solves(text, PUZZLE) for text in found] == [text.endswith("=4;") for text in found]
    assert sum(solves(text, PUZZLE) for text in found) > 2 and len(set(found)) == 54


@pytest.mark.integration
def test_no_puzzle_is_in_two_splits_and_each_can_be_solved():
    sets = [{(tuple(sorted(each.numbers)), each.target) for each in puzzles(part)} for part in PARTS]
    assert all(not one & other for place, one in enumerate(sets) for other in sets[place + 1 :])
    assert [len(each) for each in sets] == [512, 192, 192, 192]
    assert len(samples("countdown-few")) == 48 == len({*puzzles("few"), *puzzles("others")} & set(puzzles("train"))) / 2
    assert all(any(found.answer == each.target for found in calculations(each.numbers)) for each in puzzles("later"))
    with pytest.raises(KeyError, match="countdown-train"):
        samples("countdown-longer")


def test_demonstrations_have_the_form_and_seldom_the_target():
    found = samples("countdown-train")
    solved = [solves(each.demonstration, Puzzle(tuple(each.metadata["numbers"]), each.answer)) for each in found]
    assert 0.15 < sum(solved) / len(found) < 0.32
    for each in found[:50]:
        assert solves(each.demonstration, Puzzle(tuple(each.metadata["numbers"]), int(each.demonstration[-2])))
    assert samples("countdown-validation")[0].demonstration is None


def answers(*texts: str) -> list[RewardInput]:
    sample = Sample(id="one", prompt=str(PUZZLE), answer=PUZZLE.target, metadata={"numbers": list(PUZZLE.numbers)})
    return [reward_input(sample, text, 0, f"one/{number}") for number, text in enumerate(texts)]


def test_different_solutions_are_counted_once():
    items = answers("5+3=8;8*8=4;", "5+3=8;8*8=4;", "3+5=8;8*8=4;", "3+5=8;8+8=6;")
    found = DistinctSolutions().score(items).values["distinct"].tolist()
    assert found == [0.5, 0.5, 1.0, 0.0]
    assert CountdownSolved().score(items).values["solved"].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert DistinctSolutions().score(items[3:]).values["distinct"].tolist() == [0.0]


def test_the_shipped_model_writes_the_form_and_is_seldom_right():
    policy = build_policy(VLMConfig(model="shapeworld:countdown", train="full"), TokenSamplingConfig(max_new_tokens=14))
    chosen = samples("countdown-development")[:48]
    with torch.no_grad():
        texts = policy.rollout([RolloutRequest(each, 4, n) for n, each in enumerate(chosen)], seed=0).media
    wanted = [Puzzle(tuple(each.metadata["numbers"]), each.answer) for each in chosen for _ in range(4)]
    ended = [each.rpartition("=")[2].removesuffix(";") for each in texts]
    formed = [
        end.isdigit() and solves(text, Puzzle(puzzle.numbers, int(end)))
        for text, end, puzzle in zip(texts, ended, wanted, strict=True)
    ]
    solved = [solves(text, puzzle) for text, puzzle in zip(texts, wanted, strict=True)]
    assert sum(formed) / len(formed) > 0.7 > 0.25 > sum(solved) / len(solved) > 0.05


@pytest.mark.integration
def test_it_is_taught_by_its_recipe(tmp_path):
    taught_sums.train(tmp_path / "taught", "countdown", iterations=1)
    assert (tmp_path / "taught" / "model.safetensors").is_file() and not (tmp_path / "taught" / "trainer").exists()
