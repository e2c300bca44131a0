"""Rewards for answers about charts and figures: a value that is read off, the table of the data, MathVista's script."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import LARGEST_BELOW_ONE, RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import (
    AnswerFormat,
    answer_text,
    final_answer,
    resolve_form,
    single_stated_answer,
)
from mmrl.rewards.parsing.lenient_forms import Reading, check_reading, lenient_value, resolve_reading
from mmrl.rewards.parsing.numbers import parse_number
from mmrl.rewards.parsing.tables import TableCell, parse_table

MAX_ITEMS = 1_000  # largest number of list items or table cells of an answer that is compared
TEXT_THETA = 0.5  # edit distance, over the longer text, above which texts have similarity 0 (DePlot's text_theta)
NUMBER_THETA = 0.1  # relative error from which numbers have similarity 0 (DePlot's number_theta)

_YEAR = re.compile(r"(?:1[5-9]|20)[0-9]{2}|2100")

Datum: TypeAlias = tuple[str, str]
"""The key (row and column header) and the value of a cell."""


class ChartRelaxed(Reward):
    """1 if an answer about a chart is right, where numbers may be off by 5 %, else 0.

    ChartQA's relaxed accuracy: a number passes within `tolerance` of the true one (inclusive, computed exactly; 12% is
    0.12), a true zero must be exact, and any other text must be the same except for case. `references.answer` is a text
    or a number, or a list of them, which is compared in order with a JSON list or with items separated by commas and
    spaces, lines or semicolons, and scores the fraction of right items, of the longer list.

    As published, years are numbers too: 1990 passes for 2010. `exact_years` makes whole numbers from 1500 to 2100
    exact, as ChartQAPro does with years. Unlike the original, it also accepts "the answer is", \\boxed{}, currency
    signs and grouped thousands. The reading "lenient" also takes a value without the percent sign or unit behind it.
    """

    name, needs, range = "chart_relaxed", ("text", "references.answer"), (0.0, 1.0)
    source = "ChartQA, arXiv:2203.10244; google-research/pix2struct metrics.py"

    def __init__(
        self,
        tolerance: float = 0.05,
        exact_years: bool = False,
        form: AnswerFormat = "auto",
        reading: Reading | None = None,
    ) -> None:
        if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
            raise RewardError(f"chart_relaxed: tolerance is {tolerance}; expected a fraction of the truth, in [0, 1)")
        self.tolerance, self.exact_years, self.form = Fraction(str(tolerance)), exact_years, form
        check_reading(self.name, reading)
        self.reading = reading

    def score_one(self, item: RewardInput) -> float:
        answer = item.references["answer"]
        truths = [_as_text(each) for each in (answer if isinstance(answer, list | tuple) else [answer])]
        if not truths:
            raise ScoringFailed("references.answer is an empty list", "reference")
        stated = single_stated_answer(final_answer(item.text or "", resolve_form(item, self.form)))
        answered = split_items(stated) if isinstance(answer, list | tuple) else [stated]
        lenient = resolve_reading(item, self.reading) == "lenient"
        right = sum(
            self._is_right(truth, one) or (lenient and self._is_right(truth, lenient_value(one)))
            for truth, one in zip(truths, answered, strict=False)
        )
        return right / max(len(truths), len(answered))

    def _is_right(self, truth: str, answered: str) -> bool:
        true_value, value = _number(truth), _number(answered)
        if true_value is None or value is None:
            return true_value is value and _plain(truth) == _plain(answered)
        if self.exact_years and _YEAR.fullmatch(truth):
            return value == true_value
        return abs(value - true_value) <= self.tolerance * abs(true_value)


class ChartTable(Reward):
    """Agreement of a table that was read off a chart with the true one, in [0, 1]: DePlot's RMS F1.

    Each cell is a datum: row header and column header are its key. Data are matched one to one so that the similarity
    of keys is largest (1 minus the edit distance over the longer text; 0 past a distance of one half). A pair scores
    the similarity of its keys times that of its values: 1 minus the relative error for numbers, 0 from 10 % on; texts
    as keys. F1 is over the data of the two tables; the better of the table and its transpose counts. Case is ignored.

    Tables are in lines with bars (Markdown, or DePlot's own, with <0x0A> between lines and "title | ..." first), HTML
    or LaTeX. The corner above the row headers is ignored. Unlike the original, row and column header stay separate in a
    key, and data with the same key, cells past the headers and a wrong number for a true zero count.
    """

    name, needs, range = "chart_table", ("text", "references.answer"), (0.0, 1.0)
    source = "RMS of DePlot, arXiv:2212.10505; google-research/google-research deplot/metrics.py"

    def __init__(self, form: AnswerFormat = "auto") -> None:
        self.form = form

    def score_one(self, item: RewardInput) -> float:
        answer = item.references["answer"]
        try:
            title, rows = parse_chart_table(answer if isinstance(answer, str) else "")
            truth = table_data(title, rows)
        except InvalidAnswer as err:
            raise ScoringFailed(f"references.answer is {answer!r:.60}, not a table: {err}", "reference") from None
        title, rows = parse_chart_table(answer_text(item.text or "", resolve_form(item, self.form)))
        return max(data_f1(truth, table_data(title, rows)), data_f1(truth, table_data(title, _transposed(rows))))


def split_items(text: str) -> list[str]:
    """Return the items of a list in an answer.

    Raises:
        InvalidAnswer: there are more than `MAX_ITEMS`, or JSON values other than texts and numbers.
    """
    items: Sequence[Any]
    if text.startswith("["):
        try:
            items = json.loads(text, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            raise InvalidAnswer(f"{text[:60]!r} is not a JSON list") from None
        if not all(isinstance(each, str) for each in items):
            raise InvalidAnswer(f"{text[:60]!r} is not a list of texts and numbers")
    else:
        items = re.split(r";|\n|,\s", text)
    if len(items) > MAX_ITEMS:
        raise InvalidAnswer(f"there are {len(items)} items; at most {MAX_ITEMS} are compared")
    return [str(each).strip() for each in items]


def parse_chart_table(text: str) -> tuple[str | None, list[list[str]]]:
    """Return the title (or None) and the rows of a table, in lower case.

    Raises:
        InvalidAnswer: there is no table, or it has no cell beside its headers, or more than `MAX_ITEMS` cells.
    """
    table = parse_table(text.replace("<0x0A>", "\n"))
    rows = [[cell.lower() for cell in row] for row in table.grid()]
    title = TableCell(table.caption).text.lower() if table.caption is not None else None
    if title is None and len(rows) > 2 and len(rows[0]) == 2 and rows[0][0] == "title":
        title, rows = rows[0][1], rows[1:]
    cells = len(rows) * max(map(len, rows), default=0)  # short rows are padded
    if cells > MAX_ITEMS:
        raise InvalidAnswer(f"it has {cells} cells; at most {MAX_ITEMS} are compared")
    if len(rows) < 2 or max(map(len, rows)) < 2:
        raise InvalidAnswer("it has no cell beside its headers")
    return title, rows


def table_data(title: str | None, rows: Sequence[Sequence[str]]) -> list[Datum]:
    """Return the data of a table: the first row and the first column are headers, and missing cells are empty."""
    data = [] if title is None else [("title", title)]
    for row in (row for row in rows[1:] if row):
        cells = itertools.zip_longest(rows[0][1:], row[1:], fillvalue="")
        data += [(f"{row[0]}\n{column}", value) for column, value in cells]
    return data


def data_f1(truth: Sequence[Datum], answered: Sequence[Datum]) -> float:
    """Return the F1 of two tables' data, in [0, 1]; 1 only if all keys and values are the same."""
    from scipy.optimize import linear_sum_assignment

    if not answered:
        return 0.0
    keys = _text_similarity([key for key, _ in truth], [key for key, _ in answered])  # [T, A]
    values = _value_similarity([value for _, value in truth], [value for _, value in answered])
    # If a key occurs twice, the values decide the matching; they weigh far less than any difference of keys.
    pairs = linear_sum_assignment(keys + 1e-9 * values, maximize=True)
    total = float((keys * values)[pairs].sum())
    if total == len(truth) == len(answered):
        return 1.0
    return clamp_below_one(2 * total / (len(truth) + len(answered)))


def _text_similarity(truth: Sequence[str], answered: Sequence[str]) -> NDArray[Any]:
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    distance = cdist(truth, answered, scorer=Levenshtein.normalized_distance, dtype=np.float64)
    return np.where(distance <= TEXT_THETA, 1 - distance, 0.0)


def _value_similarity(truth: Sequence[str], answered: Sequence[str]) -> NDArray[Any]:
    texts = _text_similarity(truth, answered)  # [T, A]
    sides = [_number(text) for text in truth], [_number(text) for text in answered]
    ids: dict[Fraction | None, int] = {None: 0}
    true_ids, answer_ids = (np.array([ids.setdefault(n, len(ids)) for n in side]) for side in sides)
    numbers = (true_ids[:, None] > 0) & (answer_ids[None, :] > 0)
    target, value = (np.array([_float(n) for n in side]) for side in sides)
    with np.errstate(all="ignore"):  # division by zero and infinities have similarity 0, below
        off = np.abs(target[:, None] - value[None, :]) / np.abs(target[:, None])
    near = np.where(off < NUMBER_THETA, np.minimum(1 - off, LARGEST_BELOW_ONE), 0.0)
    near[true_ids[:, None] == answer_ids[None, :]] = 1.0  # equal as fractions, which floats cannot decide
    return np.where(numbers, near, texts)


def _float(number: Fraction | None) -> float:
    try:
        return float(number or 0)
    except OverflowError:
        return math.inf


def _transposed(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in itertools.zip_longest(*rows, fillvalue="")]


def _as_text(truth: Any) -> str:
    if isinstance(truth, bool) or not isinstance(truth, str | int | float) or str(truth).strip() in ("", "nan", "inf"):
        raise ScoringFailed(f"references.answer is {truth!r:.60}; expected a text or number, or a list", "reference")
    return str(truth).strip()


def _number(text: str) -> Fraction | None:
    try:
        return parse_number(text)
    except InvalidAnswer:
        return None


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).removesuffix(".").strip("\"'")


_LETTER = re.compile(r"\(([a-zA-Z])\)")
_BARE = re.compile(r"([A-Za-z])[.:)]?")


class MathVista(Reward):
    """1 if an answer to one of MathVista's problems is the true one as its own script compares them, else 0.

    References: `answer` (a text), `question_type`, `answer_type`, and `choices` or `precision` if the type needs them.

    * multi_choice: a letter selects its option; any other text selects the option nearest to it by edit distance, so
      that every answer selects one, as published;
    * integer: a number, truncated to a whole one; float: a number, rounded to `precision` decimals;
    * text and list: exactly the same text.

    MathVista extracts the answer with GPT-4. Here rules do it: \\boxed{}, tags, "the answer is", or else the whole
    text. Besides a letter in brackets, as published, "B." and "b" are accepted.
    """

    name, needs, range = "mathvista", ("text", "references.answer", "references.question_type"), (0.0, 1.0)
    source = "MathVista, arXiv:2310.02255; lupantech/MathVista evaluation/calculate_score.py"

    def score_one(self, item: RewardInput) -> float:
        known = item.references
        answer, kind = known["answer"], known["question_type"]
        if not isinstance(answer, str):
            raise ScoringFailed(f"references.answer is {answer!r:.60}; expected a text", "reference")
        stated = single_stated_answer(final_answer(item.text or "", resolve_form(item)))
        if kind == "multi_choice":
            return float(selected_choice(stated, _choices(known.get("choices"))) == answer)
        return float(normalised(stated, str(known.get("answer_type", "text")), known.get("precision")) == answer)


def selected_choice(text: str, choices: Sequence[str]) -> str:
    """Return the option that a text selects: by its letter, or the nearest by edit distance (the first of several)."""
    from rapidfuzz.distance import Levenshtein

    found = _LETTER.search(text) or _BARE.fullmatch(text)
    letter = found[1].upper() if found else ""
    if letter and ord(letter) - ord("A") < len(choices):
        return choices[ord(letter) - ord("A")]
    return min(choices, key=lambda choice: Levenshtein.distance(text, choice))


def normalised(text: str, answer_type: str, precision: float | None) -> str | None:
    """Return a text in MathVista's notation of the answer type; None if it is not of that type."""
    if answer_type not in ("integer", "float"):
        return text
    try:
        value = float(text)
        return str(int(value)) if answer_type == "integer" else str(round(value, int(precision or 0)))
    except (ValueError, OverflowError):
        return None


def _choices(choices: object) -> Sequence[str]:
    if isinstance(choices, list | tuple) and choices and all(isinstance(each, str) for each in choices):
        return choices
    raise ScoringFailed(f"references.choices is {choices!r:.60}; expected a list of texts", "reference")
