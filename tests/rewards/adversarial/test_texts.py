"""Texts read off pictures and open answers made to break a comparison or to cheat it.

Each gives a score or a status, never an exception; none but the true text is perfect; the true text always is.
"""

import time
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status
from mmrl.rewards.rules.text_similarity import OCRCER, OCRNED, OCRWER, Rouge, rouge_words

READ = [OCRNED(), OCRCER(), OCRWER(), OCRNED(fold_case=True, fold_space=True, unicode="NFKC")]
ROUGE = [Rouge("1"), Rouge("2"), Rouge("L")]
TRUTH = "The dog's \u201cLe\u00f3n\u201d {costs} 5,00 \u20ac"


def run(reward, texts, truth=TRUTH):
    """Scores, 1 being perfect, and statuses; the truth stands at the end, as the control."""
    items = [RewardInput("0", 0, "?", text=text, references={"answer": truth}) for text in [*texts, truth]]
    output = reward.score(items)
    values, status = output.values[reward.name], output.status[reward.name]
    assert set(status) <= {Status.OK, Status.INVALID}, output.detail
    values = 1 - values if reward.direction == "lower" else values
    assert ((values >= 0) & (values <= 1)).all()
    assert values[-1] == 1 and status[-1] is Status.OK
    return values[:-1], status[:-1]


@pytest.mark.parametrize("reward", READ + ROUGE)
def test_several_truncated_and_empty_answer_blocks(reward):
    two = f"<answer>{TRUTH}</answer>"
    values, status = run(reward, [two + two, two[:-9], two[8:], f"<think>{TRUTH}", f"</answer>{TRUTH}<answer>"])
    assert (values == 0).all() and set(status) == {Status.INVALID}
    values, _ = run(
        reward, ["", " ", "<answer></answer>", "<think></think>", TRUTH[:-1] + "x", TRUTH + " x", TRUTH * 2]
    )
    assert (values < 1).all()
    values, _ = run(reward, [two, f"<think>no</think>\n{TRUTH}\n", f"<think>{TRUTH}</think><answer> {TRUTH} </answer>"])
    assert (values == 1).all()


@pytest.mark.parametrize("reward", READ + ROUGE)
def test_look_alikes_are_other_letters(reward):
    replaced = [("T", "\u03a4"), ("e", "\u0435"), ("o", "\u043e"), ("c", "\u0441"), ("s", "\u0455"), ("5", "\u0665")]
    values, status = run(reward, [TRUTH.replace(*pair) for pair in replaced])
    assert (values < 1).all() and set(status) == {Status.OK}
    values, _ = run(reward, [unicodedata.normalize("NFD", TRUTH)])
    assert values == 1  # the same text to Unicode


def test_full_width_letters_are_folded_on_request_only():
    wide = TRUTH.replace("T", "\uff34")
    assert [run(reward, [wide])[0][0] == 1 for reward in READ] == [False, False, False, True]


@pytest.mark.parametrize("reward", READ + ROUGE)
def test_stuffed_answers_are_not_perfect(reward):
    words = TRUTH.split()
    stuffed = [
        TRUTH + " " + " ".join(reversed(words)),
        " ".join(word for word in words for _ in range(2)),
        f"{TRUTH} {TRUTH}",
    ]
    values, _ = run(reward, [*stuffed, " ".join(sorted(words)) + " x", "".join(map(chr, range(32, 2000)))])
    assert (values < 1).all()


@pytest.mark.parametrize("reward", READ + ROUGE)
def test_huge_and_unusual_texts_are_scored_quickly(reward):
    started = time.process_time()
    odd = ["a" * 100_000, "a " * 50_000, "e\u0301" * 50_000, "\u202e" * 90_000, "\x00", "\ud83d", "\u0301" * 50_000]
    values, _ = run(reward, [*odd, "a" * 100_001, "\ufdfa" * 100_000, "x" * 1_000_001])
    assert (values < 1).all()
    assert time.process_time() - started < 60


@pytest.mark.parametrize("reward", READ)
@given(text=st.text(max_size=40), truth=st.text(min_size=1, max_size=40))
def test_only_the_text_itself_is_perfect_for_ocr(reward, text, truth):
    assume("answer>" not in truth and "think>" not in truth)
    (value,), (status,) = run(reward, [text], truth)
    same = reward._folded(text) == reward._folded(truth)
    same |= reward.name == "ocr_wer" and reward._folded(text).split() == reward._folded(truth).split()
    assert (value == 1 and status is Status.OK) == same or "answer>" in text or "think>" in text


@given(text=st.text("ab ", max_size=20), truth=st.text("ab ", min_size=1, max_size=20))
def test_only_equal_words_in_order_are_perfect_for_rouge_l(text, truth):
    assume(truth.strip())
    (value,), _ = run(Rouge(), [text], truth)
    assert (value == 1) == (rouge_words(text) == rouge_words(truth))


@given(st.text(max_size=60))
def test_any_text_is_scored_or_invalid(text):
    for reward in READ + ROUGE:
        run(reward, [text, f"<answer>{text}</answer>"])
