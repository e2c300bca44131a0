"""Words as a reader counts them: what stands between spaces, and each character of Chinese and Japanese."""

from __future__ import annotations

import re

_UNSPACED = (
    r"\u3040-\u30ff"  # hiragana, katakana
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    r"\U00020000-\U000323af"  # Han, rarer
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def split_words(text: str) -> list[str]:
    """The words of a text, in order and as written.

    Chinese and Japanese are written without spaces, so there each character is a word; Korean is written with them.
    """
    return _WORD.findall(text)
