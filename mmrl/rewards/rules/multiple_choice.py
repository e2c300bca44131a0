"""The reward for multiple choice: the option that an answer picks."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import AnswerFormat, final_answer, resolve_form, stated_answers, strip_bold

MAX_CHARACTERS = 20_000  # number of characters above which an answer is not searched for a choice

_BARE = re.compile(r"[(\[{]?\s?([A-Za-z])\s?(?:[)\]}]\s?[.:?!]?|[.:?!])?")  # B  (B)  [B]  B.  B)  B:  B?
_LED = re.compile(r"(?:[(\[]\s?([A-Z])\s?[)\]][.:]?|([A-Z])\s?[.):])\s{0,9}(?=\S)")  # the start of "B. a red circle"
_MARKED = re.compile(r"(?<!\w)[(\[]?([A-Z])[.:)\]]")  # a letter in a text that is written like an option
_CAPITAL = re.compile(r"(?<!\w)[A-Z](?!\w)(?!\s[a-z])")  # not an article, as in "A dog"
_NO_WORD = re.compile(r"[\W_]+")
_REASON = re.compile(r"([A-Z]),?\s(?:because|since|as)\s")
_CALLED = re.compile(r"(?:the\s)?(?:option|choice|answer)\s{1,3}", re.IGNORECASE)
_DECLARED_CORRECT = re.compile(
    r"[(\[]?([A-Z])[)\]]?\sis\s(?:correct|right|the\s(?:(?:correct|right|best)\s)?(?:answer|option|choice|one))[.!]?"
)
_WITH_OWN = re.compile(r"([A-Z])\s?[,(\u2013\u2014-]\s?(?=\S)")  # before the option's own text: B, a cat  B (a cat)
_BECAUSE = re.compile(r"[\s,;:\u2013\u2014-]{0,9}(?:because|since|as)\s", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:an?|the)\s", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.?!;]\s|\n")
_CLAUSE_END = re.compile(r"[.?!;,]\s|\n|\s[\u2013\u2014-]\s")
_DENIAL = re.compile(
    r"\b(?:not|never|neither|nor|wrong|incorrect|false|except|none|all|both|might|maybe|unless)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_LONE = re.compile(r"(?<![\w'\u2019])[b-hj-z](?![\w'\u2019])")  # lower-case letters except the words "a" and "I"
_LETTERS = re.compile(r"[\W_]*[A-Za-z](?:[\W_]+(?:(?:and|or)[\W_]+)?[A-Za-z])+[\W_]*")  # a list of letters
_SENTENCE = re.compile(r"[A-Z][^\s.]*(?:\s+[^\s.]+){3}")  # a sentence rather than an option: four words or more
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s?\{([^{}]{0,200})\}")
_FULL_WIDTH = str.maketrans("\uff08\uff09\uff1a\uff0e\uff3b\uff3d", "():.[]")  # as Chinese texts write them
_QUOTES = "\"'`\u2018\u2019\u201c\u201d$"


class MultipleChoice(Reward):
    """1 if the answer picks the right option, else 0.

    `references.answer` is the right option's letter or its text; `references.choices` (or `options`) the texts in
    order, or {letter: text}. Without choices, the letters are those of `letters`, and answers are letters only.

    After removing bold, quotes and LaTeX's \\text{}, these pick an option:

    * the letter alone, in either case: B, (B), [B], B., B:, B?, option B; also "B is correct";
    * the letter followed by its option: "B. a red circle", "B (a red circle)"; any other text there is invalid, and so
      is a negation ("B. not this") if the texts are not known; a reason ("B. because ...") or sentence may follow;
    * an option's text alone, in any case and spacing;
    * any of these after "Answer:", "The answer is" or "The correct option is"; there also "B because ...".

    Without such a phrase each line is read separately, and no other option may be named anywhere. "A dog sits there"
    picks nothing, since its A has no mark. No pick and several different picks are invalid. Letters are Latin only:
    Cyrillic А and the full-width Ａ are invalid.
    """  # noqa: RUF002

    name, needs, range = "multiple_choice", ("text", "references.answer"), (0.0, 1.0)
    source = "exact match of the picked option"

    def __init__(self, letters: str = "ABCDEFGHIJ", form: AnswerFormat = "auto") -> None:
        if not letters or any(letter not in string.ascii_uppercase for letter in letters):
            raise RewardError(f"multiple_choice: letters is {letters!r}; expected letters from A to Z, such as 'ABCD'")
        self.letters, self.form = letters, form

    def score_one(self, item: RewardInput) -> float:
        options = self._options(item.references)
        right = _right(item.references["answer"], options)
        return float(picked(final_answer(item.text or "", resolve_form(item, self.form)), options) == right)

    def _options(self, references: Mapping[str, Any]) -> dict[str, str]:
        """Return {letter: text}; the texts are empty if they are not known."""
        choices = references.get("choices", references.get("options"))
        if choices is None:
            return dict.fromkeys(self.letters, "")
        if isinstance(choices, list | tuple) and 0 < len(choices) <= 26:
            choices = dict(zip(string.ascii_uppercase, choices, strict=False))
        if not (
            isinstance(choices, Mapping)
            and all(
                isinstance(letter, str) and len(letter) == 1 and letter in string.ascii_uppercase for letter in choices
            )
            and all(isinstance(text, str | int | float) for text in choices.values())
        ):
            raise ScoringFailed(
                f"references.choices is {choices!r:.80}; expected up to 26 texts, or a mapping of letters to texts",
                "reference",
            )
        return {letter: _without_own_letter(letter, str(text)) for letter, text in choices.items()}


def picked(text: str, options: Mapping[str, str]) -> str:
    """Return the letter of the one option that a text picks.

    Raises:
        InvalidAnswer: the text picks no option, or several.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read for a choice")
    text = _WRAPPED.sub(r"\1", strip_bold(text.translate(_FULL_WIDTH)))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if whole := _by_text(" ".join(lines), options):  # an option's text may be broken over lines
        return whole
    finals = [_pick(final, options) for final in stated_answers(text)]
    clear = [_pick(line, options) for line in lines if _BARE.fullmatch(_unquoted(line)) or _by_text(line, options)]
    picks = {pick for pick in finals + clear if pick} or {pick for pick in (_pick(x, options) for x in lines) if pick}
    if len(picks) == 1 and not finals:
        letter = next(iter(picks))
        _check_alone(letter, "\n".join(line for line in lines if _pick(line, options) != letter), options)
    if len(picks) != 1 or None in finals:
        what = f"picks {', '.join(sorted(picks))}" if len(picks) > 1 else "picks none of the options clearly"
        raise InvalidAnswer(f"{text[:60]!r} {what}{_look_alike(text)}")
    return picks.pop()


def _pick(text: str, options: Mapping[str, str]) -> str | None:
    """Return the option that one line picks, or None.

    Raises:
        InvalidAnswer: the line has a letter with another option's text, or several options.
    """
    text = _unquoted(text)
    if called := _CALLED.match(text):
        text = _unquoted(text[called.end() :])
    if bare := _BARE.fullmatch(text):
        letter = bare.group(1).upper()
        return letter if letter in options else None
    if named := _by_text(text, options):
        return named
    declared, beside = _DECLARED_CORRECT.fullmatch(text), _WITH_OWN.match(text)
    if declared and declared.group(1) in options:
        return declared.group(1)
    if beside and beside.group(1) in options and _is_own(text[beside.end() :], options[beside.group(1)]):
        return beside.group(1)
    led = _LED.match(text) or _REASON.match(text)
    letter = next((group for group in led.groups() if group), "") if led else ""
    if led is None or letter not in options:
        return None
    rest = text[led.end() :]
    if _LED.match(text) and not _BECAUSE.match(rest):
        _check_rest(letter, rest, options, ends_sentence=led.group().rstrip().endswith("."))
    _check_alone(letter, rest, options)
    return letter


def _by_text(text: str, options: Mapping[str, str]) -> str | None:
    plain = _plain(text)
    named = [letter for letter, option in options.items() if option and _plain(option) == plain]
    if len(named) > 1:
        raise InvalidAnswer(f"{text[:60]!r} is the text of several options ({', '.join(named)}): state the letter")
    return named[0] if named else None


def _check_rest(letter: str, rest: str, options: Mapping[str, str], ends_sentence: bool) -> None:
    """Raise InvalidAnswer if the text directly after a letter and its mark is not that option's, or negates it."""
    own = options[letter]
    if _is_own(rest, own):
        return
    others = {match.group().upper() for match in _LONE.finditer(rest)} & options.keys() - {letter}
    first, *more = _SENTENCE_END.split(rest)
    ends = [end.start() for end in _CLAUSE_END.finditer(rest, 0, len(own) + 20)]
    if own and any(_is_own(rest[:end], own) for end in ends):
        fits = True
    else:
        sentence = ends_sentence and _SENTENCE.match(rest) is not None
        fits = (sentence or not own) and not _DENIAL.search(first) and not _LETTERS.fullmatch(rest)
    if others or not fits or any(_DENIAL.match(one.strip()) for one in more):
        raise InvalidAnswer(f"{rest[:60]!r} stands behind the letter {letter}, but is not that option's text")


def _is_own(text: str, own: str) -> bool:
    """Return whether a text is the option's, ignoring a closing bracket and an article."""
    closed = text.strip().removesuffix(".").removesuffix(")")
    expected = _ARTICLE.sub("", _plain(own), count=1)
    return bool(own) and any(
        plain == _plain(own) or (expected and _ARTICLE.sub("", plain, count=1) == expected)
        for plain in (_plain(text), _plain(closed))
    )


def _check_alone(letter: str, text: str, options: Mapping[str, str]) -> None:
    """Raise InvalidAnswer if the text beside a pick names other options, by letter or by their words."""
    own = _plain(options[letter])
    if own and _plain(text) == own:
        return  # an option's own text may look like anything
    words = f" {_words(text)} "
    words = words.replace(f" {_words(own)} ", " ") if own else words
    others = {match.group(1) for match in _MARKED.finditer(text)}
    others |= {match.group() for match in _CAPITAL.finditer(text)}
    others |= {name for name, option in options.items() if _words(option) and f" {_words(option)} " in words}
    others &= options.keys() - {letter}
    if others:
        raise InvalidAnswer(f"{text[:60]!r} stands beside the pick {letter}, but names {', '.join(sorted(others))}")


def _words(text: str) -> str:
    return " ".join(_NO_WORD.sub(" ", _plain(text)).split())


def _plain(text: str) -> str:
    """Return the text in the form in which texts are compared: without case, spacing and a final full stop."""
    text = unicodedata.normalize("NFC", _unquoted(text))
    return " ".join(text.casefold().split()).removesuffix(".")


def _unquoted(text: str) -> str:
    return text.strip().strip(_QUOTES).strip()


def _without_own_letter(letter: str, text: str) -> str:
    led = _LED.match(text)
    return text[led.end() :].strip() if led and letter in led.groups() else text.strip()


def _right(answer: Any, options: Mapping[str, str]) -> str:
    text = _unquoted(str(answer)) if isinstance(answer, str | int | float) else ""
    bare = _BARE.fullmatch(text)
    if bare and bare.group(1).upper() in options:
        return bare.group(1).upper()
    try:
        if right := _by_text(text, options):
            return right
    except InvalidAnswer:
        pass
    raise ScoringFailed(f"references.answer is {answer!r:.60}, none of the options {', '.join(options)}", "reference")


def _look_alike(text: str) -> str:
    """Return the reason why a letter that looks right is not Latin, or ""."""
    for character in text[:200]:
        if character.isalpha() and not character.isascii() and len(text) < 20:
            return f": {character!r} is {unicodedata.name(character, 'no Latin letter')}"
    return ""
