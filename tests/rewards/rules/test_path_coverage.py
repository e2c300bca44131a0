"""A chain is rewarded for the entities of the true path that it names, by hand and against stuffing."""

from __future__ import annotations

import pytest

from mmrl.rewards import Status, load
from mmrl.rewards.rules.path_coverage import chain_of

from .single_answer import outcome, value

PATH = ["liver", "portal vein", "spleen"]
REWARD = load("path_coverage")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("<think>Spleen, then the portal vein, then the LIVER</think>B", 1.0),
        ("<think>from the liver to the spleen</think>B", 0.8 * 2 / 3 + 0.2),
        ("<think>the liver</think>B", 0.8 / 3),
        ("<think>a vein of the livers, portal to spleens</think>B", 0.0),
        ("<think></think>liver, portal vein, spleen", 0.0),
        ("liver, portal vein, spleen<answer>B</answer>", 1.0),
        ("the liver and the portal vein", 0.8 * 2 / 3 + 0.2),
    ],
)
def test_the_share_of_entities_that_the_chain_names(text, expected):
    assert value(REWARD, text, path=PATH) == pytest.approx(expected)


def test_naming_an_entity_again_and_again_costs():
    six = "liver portal vein spleen " * 2
    assert value(REWARD, f"<think>{six}</think>B", path=PATH) == 1
    assert value(REWARD, f"<think>{six * 2}</think>B", path=PATH) == pytest.approx(0.5)
    assert value(REWARD, "<think>" + "liver " * 60 + "</think>B", path=PATH) == pytest.approx(0.8 / 3 * 0.1)


def test_a_path_of_one_entity_can_be_covered_and_a_repeated_one_counts_once():
    assert value(REWARD, "<think>8</think>8", path=["8"]) == 1
    assert value(REWARD, "<think>3+5=8;8-5=3;</think>3", path=["3", "8", "3"]) == 1


def test_an_entity_inside_a_longer_one_is_no_mention_of_its_own():
    both = ["vein", "portal vein"]
    assert value(REWARD, "<think>the portal vein</think>", path=both) == pytest.approx(0.4)
    assert value(REWARD, "<think>the portal vein, a vein</think>", path=both) == 1


@pytest.mark.parametrize("path", ["liver", [], ["liver", 3], ["--"], None])
def test_a_path_that_is_none_is_a_failure_of_the_scorer(path):
    assert outcome(REWARD, "<think>liver</think>B", path=path)[1] is Status.ERROR


def test_the_chain_ends_where_the_last_thought_does():
    assert chain_of("<think>a</think>b</think>c") == "<think>a</think>b"
