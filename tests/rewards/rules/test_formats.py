"""The form of answers, against trl and a pattern."""

import random
import re

import pytest
from trl.rewards import think_format_reward

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.formats import Format, LeadingTag, has_tags

from .single_answer import outcome, value

GOOD = "<think>two and one</think><answer>3</answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1),
        (f"\n {GOOD}\n", 1),
        ("<think>\na\n</think>\n\n<answer>\nb\n</answer>", 1),
        ("", 0),
        ("3", 0),
        ("<think>a</think>3", 0),
        ("<answer>3</answer>", 0),
        (f"Sure! {GOOD}", 0),
        (f"{GOOD}.", 0),
        ("<think>a</think>so<answer>3</answer>", 0),
        ("<answer>3</answer><think>a</think>", 0),
        ("<think><answer>3</answer></think>", 0),
        ("<think>a<answer></think>3</answer>", 0),
        ("<think></think><answer>3</answer>", 0),
        ("<think>a</think><answer> \n</answer>", 0),
        ("<think>a</think><answer>\u200b\u2060\u3164</answer>", 0),
        (f"{GOOD}<answer>4</answer>", 0),
        (f"<think>a</think>{GOOD}", 0),
        ("<think>a<answer>3</answer>", 0),
        ("<think>a</think><answer>3", 0),
        ("<Think>a</Think><Answer>3</Answer>", 0),
        ("< think >a</ think ><answer>3</answer>", 0),
        ("<thіnk>a</thіnk><answer>3</answer>", 0),  # noqa: RUF001
        ("＜think＞a＜/think＞<answer>3</answer>", 0),  # noqa: RUF001
        ("<think>" * 100_000, 0),
    ],
)
def test_format_by_hand(text, score):
    assert value(Format(), text) == score


def test_text_outside_tags_is_allowed_unless_strict():
    assert value(Format(strict=False), f"Sure! {GOOD} Bye.") == 1
    assert value(Format(strict=False), f"{GOOD}<answer>4</answer>") == 0


def test_template_may_open_the_first_tag():
    assert value(Format(opened=True), "two and one</think><answer>3</answer>") == 1
    assert value(Format(opened=True), GOOD) == 0
    assert value(Format(), "two and one</think><answer>3</answer>") == 0


def test_custom_tags_in_any_number():
    assert value(Format(["plan", "code_2", "end-note"]), "<plan>a</plan><code_2>b</code_2><end-note>c</end-note>") == 1
    assert value(Format(["answer"]), "<answer>3</answer>") == 1


def test_malformed_formats_are_scored_not_invalid():
    assert outcome(Format(), "") == (0, Status.OK)
    assert outcome(Format(), None)[1] is Status.ERROR  # no text at all


PIECES = ["<think>", "</think>", "<answer>", "</answer>", "a", " ", "\n"]


def test_random_texts_equal_a_regular_expression():
    """Short texts, so that a pattern with a look-ahead at each character is fast enough."""
    within = r"(?!</?(?:think|answer)>)"
    inner = rf"(?:{within}[\s\S])*{within}\S(?:{within}[\s\S])*"
    pattern = re.compile(rf"\s*<think>{inner}</think>\s*<answer>{inner}</answer>\s*")
    rng = random.Random(0)
    found = 0
    for _ in range(5000):
        text = "".join(rng.choices(PIECES, k=rng.randrange(3)))
        for piece in ("<think>", "a", "</think>", "<answer>", "a", "</answer>"):
            text += piece if rng.random() < 0.9 else rng.choice(PIECES)
        expected = bool(pattern.fullmatch(text))
        assert has_tags(text, ("think", "answer")) == expected, text
        found += expected
    assert 500 < found < 4500


def test_format_equals_trl_where_rules_coincide():
    """Those texts that begin with <think>, close it once and have something in it; trl is laxer about the rest."""
    rng = random.Random(0)
    agreed = [0, 0]
    for _ in range(3000):
        text = "<think>" + "".join(rng.choices(["</think>", "<think>", "a", " b\n", "<answer>3</answer>"], k=4))
        content = text.partition("</think>")[0].replace("<think>", "")
        if text.count("</think>") > 1 or not content.strip():
            continue
        ours = value(Format(["think"], strict=False), text)
        assert ours == think_format_reward([[{"content": text}]])[0], text
        agreed[int(ours)] += 1
    assert min(agreed) > 250


@pytest.mark.parametrize("tags", [[], ["think", "think"], "think", ["<think>"], [""], ["a b"]])
def test_invalid_tags_are_rejected(tags):
    with pytest.raises(RewardError, match="format"):
        Format(tags)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (f"<CT>{GOOD}", 1),
        (f"\n <ct> {GOOD}", 1),
        (GOOD, 0),
        (f"{GOOD}<CT>", 0),
        (f"<MRI>{GOOD}", 0),
        (f"<CT><MRI>{GOOD}", 1),  # it begins with the right one; a second tag is for `format` to refuse
        (f"<CT>{GOOD}<CT>", 0),
        ("CT", 0),
        ("", 0),
    ],
)
def test_the_leading_tag_is_the_samples(text, score):
    assert value(LeadingTag(), text, modality="CT") == score == value(LeadingTag("CT"), text)


def test_without_a_tag_nothing_is_scored():
    assert outcome(LeadingTag(), f"<CT>{GOOD}")[1] is Status.ERROR
