"""Edit distances of texts, against a plain table of distances and torchmetrics."""

import math
import random
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.text import CharErrorRate, WordErrorRate

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.text_similarity import MAX_CHARACTERS, OCRCER, OCRNED, OCRWER

from .single_answer import ask, outcome, value


def distance(first, second):
    """Levenshtein's distance, row by row."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        left = [i]
        for j, b in enumerate(second, start=1):
            left.append(min(left[-1] + 1, row[j] + 1, row[j - 1] + (a != b)))
        row = left
    return row[-1]


def texts(count, seed=0):
    rng = random.Random(seed)
    for _ in range(count):
        truth = "".join(rng.choices("abc \u00e9", k=rng.randint(1, 12))).strip() or "a"
        changed = [c if rng.random() < 0.7 else rng.choice(["", "b", "xy", " "]) for c in truth]
        yield ("".join(changed) if rng.random() < 0.8 else truth).strip(), truth


@pytest.mark.integration
def test_600_random_texts_equal_an_edit_distance_table():
    for read, truth in texts(600):
        edit_distance, words = distance(read, truth), distance(read.split(), truth.split())
        assert value(OCRNED(), read, truth) == pytest.approx(1 - edit_distance / max(len(read), len(truth)))
        assert value(OCRCER(), read, truth) == pytest.approx(min(1, edit_distance / len(truth)))
        assert value(OCRWER(), read, truth) == pytest.approx(min(1, words / len(truth.split())))


@pytest.mark.integration
def test_500_random_texts_equal_torchmetrics():
    cer, wer = CharErrorRate(), WordErrorRate()
    pairs = list(texts(500, seed=1))
    items = [ask(read, truth) for read, truth in pairs]
    expected = np.array([[float(metric(read, truth)) for read, truth in pairs] for metric in (cer, wer)]).clip(max=1)
    np.testing.assert_allclose(OCRCER().score(items).values["ocr_cer"], expected[0], atol=1e-6)
    np.testing.assert_allclose(OCRWER().score(items).values["ocr_wer"], expected[1], atol=1e-6)


@given(st.text(max_size=20), st.text(max_size=20))
def test_only_the_text_itself_is_perfect_and_ned_is_symmetric(read, truth):
    same = unicodedata.normalize("NFC", read.strip()) == unicodedata.normalize("NFC", truth.strip())
    if "<answer>" in read + truth or "<think>" in read + truth:
        return
    there, back = value(OCRNED(), read, truth), value(OCRNED(), truth, read)
    assert (there == 1) == same and there == back
    assert (value(OCRCER(), read, truth) == 0) == same


def test_folding_options_define_equal_texts():
    assert value(OCRNED(), "Stop", "STOP") < 1 and value(OCRNED(fold_case=True), "Stop", "STOP") == 1
    assert value(OCRNED(), "a  b", "a b") < 1 and value(OCRNED(fold_space=True), "a\n b", "a b") == 1
    assert value(OCRNED(), " stop\n", "stop") == 1
    assert value(OCRNED(), "e\u0301", "\u00e9") == 1  # one text to Unicode
    assert value(OCRNED(), "\uff33top", "Stop") < 1 and value(OCRNED(unicode="NFKC"), "\uff33top", "Stop") == 1
    assert value(OCRNED(True, True, "NFKC"), "\u0410", "A") < 1  # a Cyrillic letter is another one
    assert value(OCRWER(), "a \n b", "a b") == 0


def test_empty_texts():
    assert value(OCRNED(), "", "") == 1 and value(OCRCER(), "", "") == value(OCRWER(), "", "") == 0
    assert value(OCRNED(), "x", "") == 0 and value(OCRCER(), "x", "") == value(OCRWER(), "x", "") == 1
    assert value(OCRNED(), "", "x") == 0 and value(OCRCER(), "", "x") == value(OCRWER(), "", "x") == 1


def test_invalid_answers_score_worst_in_either_direction():
    twice = "<answer>a</answer><answer>a</answer>"
    assert outcome(OCRNED(), twice, "a") == (0, Status.INVALID)
    assert outcome(OCRCER(), twice, "a") == outcome(OCRWER(), twice, "a") == (1, Status.INVALID)
    assert outcome(OCRNED(), "a" * (MAX_CHARACTERS + 1), "a") == (0, Status.INVALID)


def test_references_may_be_numbers_but_not_lists():
    assert value(OCRNED(), "42", 42) == 1
    for wrong in (["a"], True, "a" * (MAX_CHARACTERS + 1)):
        number, status = outcome(OCRNED(), "a", wrong)
        assert math.isnan(number) and status is Status.ERROR


def test_unknown_unicode_forms_are_rejected():
    with pytest.raises(RewardError, match="ocr_cer: unicode is 'utf-8'; expected one of NFC, NFKC"):
        OCRCER(unicode="utf-8")
