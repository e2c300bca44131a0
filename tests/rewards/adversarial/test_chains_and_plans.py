"""Texts made to earn rewards of chains, plans, drawings and readings without the chain, the plan or the drawing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status, load

from .test_every_reward import CHAINS_AND_PLANS, NASTY

AXES = {"speed": {"keep": 1, "slow down": 1, "stop": 1}, "path": {"straight": 1, "left": 1, "right": 1}}
TABLE = "\\begin{tabular}{cc}K&T\\\\L&A\\end{tabular}"
RENDERER = "mmrl_shapeworld.worlds.table_renderer:render_image"
LOOK = "<look>[[32, 0, 64, 64]]</look><answer>[[0, 0, 64, 64]]</answer>"
OTHERS = {"uncertain_look": ["<answer>[[0, 0, 32, 64]]</answer>"]}
"""The other answers of the group, where a reward compares them."""
CASES = {
    "path_coverage": (
        load("path_coverage"),
        {"path": ["liver", "portal vein", "spleen"]},
        "liver, portal vein, spleen",
    ),
    "meta_actions": (load("meta_actions", axes=AXES), {"answer": {"speed": "stop", "path": "left"}}, "stop, left"),
    "agent_plan": (
        load("agent_plan", limit=10),
        {"answer": {"agents": ["dog"], "steps": ["walk", "grasp"], "points": [[1, 2]]}},
        "dog; walk, grasp; 1, 2",
    ),
    "rendered_cw_ssim": (load("rendered_cw_ssim", renderer=RENDERER), {"answer": TABLE}, TABLE),
    "uncertain_look": (load("uncertain_look"), {"answer": [[0, 0, 9, 9]], "space": "pixel", "size": [64, 64]}, LOOK),
    "hallucinated_text": (load("hallucinated_text"), {"answer": "KEA", "unreadable": [1]}, "K?A"),
}
"""Each reward with a reference, and a text with the best score, which is the control."""
STUFFED = {
    "path_coverage": ["liver " * 40, "liver portal vein spleen " * 40, "liverportal veinspleen", "l i v e r"],
    "meta_actions": [
        "keep slow down stop straight left right",
        "stop left right",
        "stopleft",
        "st\u043ep left",
        "stop",
    ],
    "agent_plan": [
        "dog, cat, cow; walk, grasp; 1, 2",
        "dog; walk, grasp, walk; 1, 2",
        "dog; walk, grasp; 1, 2, 99, 99",
    ],
    "rendered_cw_ssim": [TABLE * 2, TABLE.replace("A", "K"), TABLE.replace("&", "&&"), TABLE[:-5], "K&T"],
    "uncertain_look": [
        LOOK.replace("[32, 0, 64, 64]", "[0, 0, 64, 64]"),
        LOOK.replace("[32, 0, 64, 64]", "[0, 0, 32, 64]"),
        LOOK.replace("<look>", "<look><look>"),
        LOOK.replace("look>", "Look>"),
        LOOK.partition("</look>")[2],
    ],
    "hallucinated_text": ["KEA", "KEEEEA", "\uff2bEA", "KXA", "K\u200bA"],
}


def best_of(name: str) -> float:
    spec = CASES[name][0].spec
    return spec.range[0] if spec.direction == "lower" else spec.range[1]


def scored(name: str, text: str) -> tuple[float, Status]:
    reward, references, _ = CASES[name]
    texts = [text, *OTHERS.get(name, [])]
    output = reward.score([RewardInput("a", 0, "", text=each, references=references) for each in texts])
    value, status = float(output.values[name][0]), output.status[name][0]
    low, high = reward.spec.range
    assert status in (Status.OK, Status.INVALID), output.detail
    assert math.isfinite(value) and low <= value <= high
    return value, status


def test_each_has_a_case():
    assert CASES.keys() == STUFFED.keys() == CHAINS_AND_PLANS


@pytest.mark.parametrize("name", CASES)
def test_the_control_is_best_and_stuffed_texts_are_not(name):
    assert scored(name, CASES[name][2]) == (best_of(name), Status.OK)
    for text in STUFFED[name]:
        assert scored(name, text)[0] != best_of(name), text


@pytest.mark.parametrize("name", CASES)
def test_hostile_texts_are_scored_or_invalid(name):
    for text in NASTY:
        for wrapped in (text, f"<think>{text}</think>B", f"<answer>{text}</answer>"):
            value, _ = scored(name, wrapped)
            assert value != best_of(name) or name == "hallucinated_text", text[:60]


@pytest.mark.parametrize("name", CASES)
@given(text=st.text(max_size=80))
def test_random_texts_are_scored_or_invalid(name, text):
    scored(name, text)
