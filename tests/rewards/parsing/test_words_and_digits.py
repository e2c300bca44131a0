"""Splitting texts into words, and recognising digits."""

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.numbers import MAX_CHARACTERS, require_ascii_digits
from mmrl.rewards.rules.lengths import split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t", []),
        ("a  red\ncircle", ["a", "red", "circle"]),
        ("It's 3.", ["It's", "3."]),
        ("两个红圆", ["两", "个", "红", "圆"]),
        ("VLM很强", ["VLM", "很", "强"]),
        ("ひらカタ", ["ひ", "ら", "カ", "タ"]),
        ("𠮷野", ["𠮷", "野"]),
        ("빨간 원", ["빨간", "원"]),
    ],
)
def test_words_are_split_at_spaces_and_cjk_characters(text, words):
    assert split_words(text) == words


@pytest.mark.parametrize("text", ["", "12.5", "三个 3", "twelve", "x" * MAX_CHARACTERS])
def test_plain_text_is_unchanged(text):
    assert require_ascii_digits(text) == text


@pytest.mark.parametrize("text", ["３", "٣", "४", "³", "½", "Ⅳ", "⑤", "x" * (MAX_CHARACTERS + 1)])  # noqa: RUF001
def test_look_alike_digits_and_long_texts_are_rejected(text):
    with pytest.raises(InvalidAnswer):
        require_ascii_digits(text)
