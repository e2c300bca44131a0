"""What stands beside a number and makes it another one: not 3, √3, 3!, up to 3, 3 dozen, 3 and a half."""

from __future__ import annotations

import re

from mmrl.rewards.base import InvalidAnswer
from mmrl.rewards.parsing.digits import DASHES

_REACH = 80
"""Characters on either side that are looked at."""

_LATEX_BEFORE = r"\\(?!boxed|text|math|mbox|q?quad|to\b|implies|therefore|[nt]\b|[a-zA-Z]{0,9}arrow)[A-Za-z]{1,20}"
_CONTEXT_BEFORE = re.compile(
    r"""
    (?: [√∛∜≥≤±∓≠≈~≲≳¬][ ]?
      | \|
      | [<>!]=[ ]?
      | <[ ]?
      | (?<![-=])>[ ]?
      | \w\(
      | {LATEX}\s{0,3}\{?
      | \b(?: (?:half|third|quarter|root|square|cube|multiple|double|triple|power|log|factorial|percent)\s(?:of|from)
            | up\sto | close\sto
            | half | twice | thrice | double | triple | plus | minus | negative | times | (?<!,[ ])or
            | nor | than | least | most | under | over | below | above | beyond | except
            | sqrt | root | log | ln | exp | sin | cos | tan | abs )
        \s{0,3}[({]?
    )$
    """.replace("{LATEX}", _LATEX_BEFORE),
    re.VERBOSE | re.IGNORECASE,
)
_TAG = re.compile(r"<[A-Za-z][^<>]{0,40}>\s?$")
_CLAUSE = re.compile(r"[,.;:?!\n]|\bbut\b", re.IGNORECASE)
_DENIAL = re.compile(r"not|never|neither|nor|cannot|\w{1,10}n['\u2019]t", re.IGNORECASE)
_WORDS_HEARD = 3
"""How many words before a number a denial reaches over: "is not equal to 3"."""

_PART = r"(?:half|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth)"
_SMALL = r"(?:an?|one|two|three|four|five|six|seven|eight|nine|ten|[0-9])"
_CONTEXT_AFTER = re.compile(
    r"""
      [ ]?[!%‰√±×÷·⋅^+≠≥≤≈²³]
    | [ ]?/[ ]?\w | [ ]\*[ ] | [ ]?\*[0-9(] | [ ]?[<>][ ]?[0-9=] | [ ]?[{DASHES}][ ]?[0-9] | [ ]?x[ ]?[0-9]
    | [ ]?\\(?:times|cdot|div|pm|mp|approx|sim|sqrt|geq?|leq?|neq?|equiv|[bp]?mod|to|d?frac|pi|ast)\b
    | [ ](?:[eijxyz]|pi|π)(?=[ ]?[-+*/]|[\s.$]{0,9}$)
    | [\s{DASHES}]{1,3}(?i:
          (?:dozen|hundred|thousand|million|billion|trillion|lakh|crore)s?\b
        | (?:k|bn|mn|squared|cubed|factorial|halves|percent|per\scent|plus|minus|or|mod|modulo|divided|multiplied)\b
        | (?:{PART}s|quarters?)\b | {PART}(?=\s(?:of|an?)\b|[\s.]{0,9}$)
        | (?:and|&)\s(?:an?\s|one\s)?{PART}\b | (?:and|&)\s{SMALL}\s{PART}s\b
        | (?:times|point|by)\s{SMALL}\b
        | (?:is|are|was|were)\s(?:not|never|wrong|incorrect|false)\b | (?:is|are|was|were)n['\u2019]t\b
      )
    """.replace("{PART}", _PART)
    .replace("{SMALL}", _SMALL)
    .replace("{DASHES}", re.escape(DASHES)),
    re.VERBOSE,
)
_WORD_AFTER = re.compile(r"\s{0,3}[^\W\d_]")


def refuse_changed(text: str, start: int, end: int) -> None:
    """Refuse the number at text[start:end] if what stands beside it says that it is not the one meant.

    A dash in front of it, with or without a space, is a minus; but at the beginning of a line, with a space and with a
    word behind the number, it is a bullet: "- 3 circles".

    Raises:
        InvalidAnswer: it is denied, compared, scaled, a part of a formula or of a fraction.
    """
    before, after = text[max(start - _REACH, 0) : start], text[end : end + _REACH]
    changed = _CONTEXT_BEFORE.search(before)
    if changed and changed.group().lstrip().startswith(">") and _TAG.search(before):
        changed = None  # <b>3</b>
    if changed or _is_denied(before) or _has_minus(before, after) or _CONTEXT_AFTER.match(after):
        raise InvalidAnswer(f"{(before[-24:] + text[start:end] + after[:24]).strip()[:90]!r} says another number")


def _is_denied(before: str) -> bool:
    words = _CLAUSE.split(before)[-1].split()[-_WORDS_HEARD:]
    return any(_DENIAL.fullmatch(word) for word in words)


def _has_minus(before: str, after: str) -> bool:
    signed = before.rstrip(" ")
    if not signed or signed[-1] not in DASHES:
        return False
    if signed == before:
        return not signed[-2:-1].isalnum()  # 2-3 is a range
    ahead = signed[:-1].rstrip(" ")
    if ahead and not ahead.endswith("\n"):
        return not ahead[-1].isalnum()  # total - 3
    return not _WORD_AFTER.match(after)
