"""Direct answers win more and lose more than those after thoughts, and a batch is held in balance."""

from __future__ import annotations

import pytest

from mmrl.rewards import RewardInput, load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.rules.thinking_modes import thinks

RIGHT, WRONG, DIRECT, GUESS = "<think>3+4</think>7", "<think>3+4</think>8", "<think></think>7", "<think></think>8"


def scores(*texts: str, **args: object) -> list[float]:
    items = [RewardInput(str(n), n, "3+4=", text=text, references={"answer": 7}) for n, text in enumerate(texts)]
    return load("thinking_mode", of="numeric", **args).score(items).values["thinking_mode"].tolist()


def test_a_direct_answer_wins_more_and_loses_more():
    assert scores(RIGHT, WRONG, DIRECT, GUESS) == [1, 0, 2, -1]
    assert scores(RIGHT) == [1]


def test_the_mode_that_is_too_common_loses_and_the_other_one_does_not():
    assert scores(RIGHT, RIGHT, WRONG, DIRECT, balance=2) == pytest.approx([0.5, 0.5, -0.5, 2])
    assert scores(GUESS, DIRECT, DIRECT, RIGHT, balance=2) == pytest.approx([-1, 1.5, 1.5, 1])
    assert scores(RIGHT, DIRECT, balance=9) == [1, 2]
    assert scores(RIGHT, RIGHT, RIGHT, DIRECT, balance=2, target=0.75) == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "text, expected",
    [
        (RIGHT, True),
        (DIRECT, False),
        ("<think>\n...\n</think>7", False),
        ("<think>\n...\nWell,</think>7", True),
        ("3+4</think>7", True),
        ("<think>cut off", True),
        ("<think></think><think>3+4</think>7", True),
        ("<think></think>3+4</think>7", True),
        ("3+4<think></think>7", True),
        ("<think></think><think>3+", True),
        ("7", False),
    ],
)
def test_thoughts_are_all_that_precedes_the_last_closing_tag(text, expected):
    assert thinks(text) is expected
    assert load("thinks").score([RewardInput("0", 0, "?", text=text)]).values["thinks"].tolist() == [expected]


def test_what_cannot_be_judged_or_kept_is_named():
    with pytest.raises(RewardError, match="target 1"):
        load("thinking_mode", target=1)
    with pytest.raises(RewardError, match="cannot tell right from wrong"):
        load("thinking_mode", of="ocr_cer")
    with pytest.raises(RewardError, match="depends on the batch"):
        load("thinking_mode", of="numeric", balance=1).fingerprint()
    assert load("thinking_mode", of="numeric").fingerprint() != load("thinking_mode", of="count_exact").fingerprint()
