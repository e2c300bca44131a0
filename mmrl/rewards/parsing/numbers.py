"""Parse one number from an answer, exactly: as a fraction, not as a float.

-1,234.5    1.2e-3    1.2 \\times 10^{-3}    3/4    1 3/4    \\frac{3}{4}    $5    12%    5 million    5 cm

Digits are ASCII 0 to 9 only. Python reads full-width and Arabic-Indic digits as numbers, and a pattern that skips "²"
reads 3² as 3; such characters make the answer invalid, so that a number is what it looks like. So does the context of a
number that negates or modifies it (see `check_number_context`).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import cache

from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.final_answer import first_sentence, stated_answers, strip_bold

DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2212\ufe63\uff0d"
"""Hyphens, dashes and minus signs: directly before a number, each looks like its sign."""
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reverse the writing direction: 12 after them is displayed as 21."""
MAX_CHARACTERS = 10_000  # number of characters above which an answer is not parsed for numbers


def require_ascii_digits(text: str) -> str:
    """Return the text unchanged if it is short, has no digits but ASCII 0 to 9, and is displayed in its own order.

    Raises:
        InvalidAnswer: the text is longer than `MAX_CHARACTERS`, or has other digits or direction overrides.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read for numbers")
    for c in text:
        if not c.isascii() and (unicodedata.category(c)[0] == "N" or c in _TURNING):
            raise InvalidAnswer(f"U+{ord(c):04X} ({unicodedata.name(c, 'without a name')}) is not a digit from 0 to 9")
    return text


_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MINUS = "-\u2212"  # hyphen-minus, minus sign; inside [] the first must come first or last
_DIGITS = re.compile(r"[0-9]")
_OTHER_UNIT = re.compile(r"\s{0,3}[^\W\d_]|\s{0,3}[°%]")
_MORE_UNIT = re.compile(  # m s, m per s, m.s; not: m long, m in all
    r"\s{0,3}(?!(?:long|wide|high|tall|deep|thick|away|apart|across|in|of|and|so|because|since|which|is|was|from|on|at|for)\b)"
    r"[^\W\d_]|[-.]\w"
)

_LATEX = (
    (re.compile(r"(?<=[0-9])\s?\\[dt]?frac\s?\{\s?([0-9]{1,300})\s?\}\s?\{\s?([0-9]{1,300})\s?\}"), r" \1/\2"),
    (re.compile(r"\\[dt]?frac\s?\{\s?([0-9]{1,300})\s?\}\s?\{\s?([0-9]{1,300})\s?\}"), r"\1/\2"),
    (re.compile(r"\\(?:text|mathrm|mbox)\s?\{([^{}]{0,100})\}"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[,!]"), ""),
    (re.compile(r"\\([%$])"), r"\1"),
)
_SIGN = rf"[{_MINUS}+]"
_POWER = (
    rf"[eE](?P<e>{_SIGN}?[0-9]{{1,3}})"
    rf"|\s?(?:[x×*]|\\times|\\cdot)\s?10\s?\^\s?(?:(?P<raised>{_SIGN}?[0-9]{{1,3}})|\{{(?P<braced>{_SIGN}?[0-9]{{1,3}})\}})"
)
_PERCENT = r"(?:%|percent\b|per\ cent\b)"
_NUMBER = rf"""
    (?:(?P<sign>{_SIGN}){{SPACE}})? (?:(?P<currency>\$|[€£¥₹])\s?)? (?P<inner_sign>{_SIGN})?
    (?:
        (?:(?P<whole>[0-9]{{1,300}})\s{{1,3}})? (?P<above>[0-9]{{1,300}}) \s?/\s? (?P<below>[0-9]{{1,300}})
      | (?P<digits>(?:[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,99}}|[0-9]{{1,300}})(?:\.[0-9]{{1,300}})?|\.[0-9]{{1,300}})
        (?:{_POWER})?
    )
    (?:\s?(?P<percent>{{PERCENT}}))?
    (?:\s?(?P<scale>thousand|million|billion|trillion)\b)?
"""
# In running text a number is not part of a word, a formula, a range, a time or a list without spaces.
_BEFORE = rf"(?<![{_MINUS}\w.,/^*+=<>])(?<![0-9][:%])(?<![=<>!+*/^]\s)(?<!\w\s[{_MINUS}]\s)"
_AFTER = rf"(?![\w%])(?!\s?[/^*+=<>])(?![{_MINUS}.,:]?[0-9])(?!\s[{_MINUS}]\s?[0-9])"
_NAME = re.compile(r"^[A-Za-z]\w{0,19}\s?=\s?")  # x = 3


def parse_number(text: str, unit: str | None = None) -> Fraction:
    """Return the value of a text that is one number, optionally followed by `unit`.

    Thousands are grouped by commas, the decimal mark is a point. 12% is 12/100, unless the unit is "%".

    Raises:
        InvalidAnswer: the text is not a finite number.
    """
    tidy = _tidy(text)
    match = _pattern(unit, whole=True).fullmatch(tidy)
    if match is None:
        raise InvalidAnswer(f"{text[:60]!r} is not a number{f' in {unit}' if unit else ''}")
    return _value(match)


def find_number(text: str, unit: str | None = None) -> Fraction:
    """Return the one number that an answer names, alone or in a sentence.

    The same value may be named twice. Several different values are invalid, unless one is marked: "the answer is 3".
    With a `unit`, a number followed by another word is invalid, since the word may be another unit; so is a word after
    the unit, except a few such as "long". "- 3" is minus three, and "- 3 circles" a list item.

    Raises:
        InvalidAnswer: there is no number or several, a number is negated ("not 3", "at least 3") or modified (√3,
            3 dozen), or there are digits inside a word or a formula (3D, x3, 2+3).
    """
    finals = [first_sentence(final) for final in stated_answers(require_ascii_digits(text))]
    values: dict[Fraction, None] = {}
    for part in finals or [strip_bold(text).strip()]:
        try:
            values[parse_number(_NAME.sub("", part), unit)] = None
        except InvalidAnswer:
            values |= dict.fromkeys(_numbers_within(_tidy(part), unit))
    if len(values) != 1:
        found = f"{len(values)} different numbers" if values else "no number"
        raise InvalidAnswer(f"{found} in {text[:60]!r}; expected one")
    return next(iter(values))


def _numbers_within(text: str, unit: str | None) -> list[Fraction]:
    values: list[Fraction] = []
    end = 0
    for match in _pattern(unit, whole=False).finditer(text):
        check_number_context(text, *match.span())
        if unit and (_MORE_UNIT if match["unit"] else _OTHER_UNIT).match(text, match.end()):
            raise InvalidAnswer(f"{text[match.start() : match.end() + 12]!r} is not in {unit}")
        _check_no_digits(text[end : match.start()])
        end = match.end()
        values.append(_value(match))
    _check_no_digits(text[end:])
    return values


def _check_no_digits(text: str) -> None:
    if digits := _DIGITS.search(text):
        raise InvalidAnswer(f"{text[max(digits.start() - 20, 0) : digits.end() + 20]!r} holds digits, but no number")


def _tidy(text: str) -> str:
    """Return the text with checked digits, LaTeX number syntax rewritten, and one surrounding pair of $...$ removed."""
    text = require_ascii_digits(text).strip()
    for pattern, plain in _LATEX:
        text = pattern.sub(plain, text)
    if len(text) > 2 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$")
    return text.strip().removesuffix(".").strip()


@cache
def _pattern(unit: str | None, whole: bool) -> re.Pattern[str]:
    number = _NUMBER.replace("{PERCENT}", "(?!)" if unit else _PERCENT)  # a percentage is not a length
    number = number.replace("{SPACE}", r"\s?" if whole else "")  # in running text, "- 3 circles" begins with a bullet
    name = _PERCENT if unit == "%" else re.escape(unit or "")
    ending = rf"(?:\s{{0,3}}(?P<unit>{name}))?" if unit else "(?P<unit>)"
    if whole:
        return re.compile(number + ending, re.VERBOSE)
    return re.compile(f"(?:{_BEFORE}){number}{ending}{_AFTER}", re.VERBOSE)


def _value(match: re.Match[str]) -> Fraction:
    if match["sign"] and match["inner_sign"]:
        raise InvalidAnswer(f"{match.group()[:60]!r} has two signs")
    if match["above"] is not None:
        if not int(match["below"]):
            raise InvalidAnswer(f"{match.group()[:60]!r} divides by zero")
        value = Fraction(int(match["above"]), int(match["below"])) + int(match["whole"] or 0)
    else:
        value = Fraction(match["digits"].replace(",", ""))
        if exponent := match["e"] or match["raised"] or match["braced"]:
            value *= Fraction(10) ** int(exponent.replace("\u2212", "-"))
    value *= _SCALES.get(match["scale"] or "", 1)
    if match["percent"]:
        value /= 100
    sign = match["sign"] or match["inner_sign"] or "+"
    return -value if sign in _MINUS else value


_REACH = 80  # number of characters on either side of a number that are checked

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
_WORDS_HEARD = 3  # number of words between a negation and the number that it still applies to: "is not equal to 3"

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


def check_number_context(text: str, start: int, end: int) -> None:
    """Raise if the context of the number at text[start:end] changes it: not 3, √3, 3!, up to 3, 3 dozen, 3 and a half.

    A dash before the number, with or without a space, is a minus sign; but at the beginning of a line, with a space and
    with a word after the number, it is a bullet: "- 3 circles".

    Raises:
        InvalidAnswer: the number is negated, compared, scaled, or part of a formula or fraction.
    """
    before, after = text[max(start - _REACH, 0) : start], text[end : end + _REACH]
    changed = _CONTEXT_BEFORE.search(before)
    if changed and changed.group().lstrip().startswith(">") and _TAG.search(before):
        changed = None  # <b>3</b>
    if changed or _is_denied(before) or _has_minus(before, after) or _CONTEXT_AFTER.match(after):
        raise InvalidAnswer(f"{(before[-24:] + text[start:end] + after[:24]).strip()[:90]!r} is another number")


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
