"""Answers about charts: a value read off, or the whole table behind."""

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
from mmrl.rewards.parsing.numbers import parse_number
from mmrl.rewards.parsing.tables import TableCell, parse_table

MAX_ITEMS = 1_000
"""Items of a list, or cells of a table, past which an answer is not compared."""
TEXT_THETA = 0.5
"""Texts whose edit distance is more than this share of the longer are not alike at all (DePlot's text_theta)."""
NUMBER_THETA = 0.1
"""Numbers that are off by this share of the true one or more are not alike at all (DePlot's number_theta)."""

_YEAR = re.compile(r"(?:1[5-9]|20)[0-9]{2}|2100")

Datum: TypeAlias = tuple[str, str]
"""What a cell says: its key (row and column header) and its value."""


class ChartRelaxed(Reward):
    """1 if an answer about a chart is right, where numbers may be off by 5 %, else 0.

    ChartQA's relaxed accuracy: a number passes within `tolerance` of the true one (inclusive, computed exactly; 12% is
    0.12), a true zero must be met, and any other text must be the same but for case. `references.answer` is a text or a
    number; a list of them is met in order, by a JSON list or by items parted by commas and spaces, lines or semicolons,
    and scores the share that is right, of the longer list.

    As published, years are numbers too: 1990 passes for 2010. `exact_years` makes whole numbers from 1500 to 2100
    exact, as ChartQAPro does with years. Also read, unlike in the original: "the answer is", \\boxed{}, signs of
    currency and grouped thousands.
    """

    name, needs, range = "chart_relaxed", ("text", "references.answer"), (0.0, 1.0)
    source = "ChartQA, arXiv:2203.10244; google-research/pix2struct metrics.py"

    def __init__(self, tolerance: float = 0.05, exact_years: bool = False, form: AnswerFormat = "auto") -> None:
        if not (math.isfinite(tolerance) and 0 <= tolerance < 1):
            raise RewardError(f"chart_relaxed: tolerance is {tolerance}; due is a share of the true value, in [0, 1)")
        self.tolerance, self.exact_years, self.form = Fraction(str(tolerance)), exact_years, form

    def score_one(self, item: RewardInput) -> float:
        answer = item.references["answer"]
        truths = [_as_text(each) for each in (answer if isinstance(answer, list | tuple) else [answer])]
        if not truths:
            raise ScoringFailed("references.answer is an empty list", "reference")
        said = single_stated_answer(final_answer(item.text or "", resolve_form(item, self.form)))
        given = split_items(said) if isinstance(answer, list | tuple) else [said]
        right = sum(self._is_right(truth, one) for truth, one in zip(truths, given, strict=False))
        return right / max(len(truths), len(given))

    def _is_right(self, truth: str, given: str) -> bool:
        wanted, said = _number(truth), _number(given)
        if wanted is None or said is None:
            return wanted is said and _plain(truth) == _plain(given)
        if self.exact_years and _YEAR.fullmatch(truth):
            return said == wanted
        return abs(said - wanted) <= self.tolerance * abs(wanted)


class ChartTable(Reward):
    """How well a table read off a chart gives the true one, in [0, 1]: DePlot's RMS F1.

    Each cell is a datum: row header and column header are its key. Data are matched one to one so that keys are most
    alike (edit distance over the longer; past half they are not alike). A pair scores the likeness of its keys times
    that of its values: numbers lose their relative error, and all from 10 % on; texts as keys. F1 is over the data of
    the two tables; the better of the table and its transpose counts. Case does not.

    Tables stand in lines with bars (Markdown, or DePlot's own, with <0x0A> between lines and "title | ..." first), HTML
    or LaTeX. The corner above the row headers says nothing. Unlike the original, row and column header stay apart in a
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
    """The items of a list in an answer.

    Raises:
        InvalidAnswer: too many of them, or JSON that holds more than texts and numbers.
    """
    items: Sequence[Any]
    if text.startswith("["):
        try:
            items = json.loads(text, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            raise InvalidAnswer(f"{text[:60]!r} is no JSON list") from None
        if not all(isinstance(each, str) for each in items):
            raise InvalidAnswer(f"{text[:60]!r} is no list of texts and numbers")
    else:
        items = re.split(r";|\n|,\s", text)
    if len(items) > MAX_ITEMS:
        raise InvalidAnswer(f"there are {len(items)} items; at most {MAX_ITEMS} are compared")
    return [str(each).strip() for each in items]


def parse_chart_table(text: str) -> tuple[str | None, list[list[str]]]:
    """The title, if any, and the rows of a table, in lower case.

    Raises:
        InvalidAnswer: there is no table, none with a cell beside its headers, or too large a one.
    """
    table = parse_table(text.replace("<0x0A>", "\n"))
    rows = [[cell.lower() for cell in row] for row in table.grid()]
    title = TableCell(table.caption).text.lower() if table.caption is not None else None
    if title is None and len(rows) > 2 and len(rows[0]) == 2 and rows[0][0] == "title":
        title, rows = rows[0][1], rows[1:]
    cells = len(rows) * max(map(len, rows), default=0)  # short rows are filled up
    if cells > MAX_ITEMS:
        raise InvalidAnswer(f"it has {cells} cells; at most {MAX_ITEMS} are compared")
    if len(rows) < 2 or max(map(len, rows)) < 2:
        raise InvalidAnswer("it has no cell beside its headers")
    return title, rows


def table_data(title: str | None, rows: Sequence[Sequence[str]]) -> list[Datum]:
    """What the cells of a table say: the first row and the first column are headers, and missing cells are empty."""
    data = [] if title is None else [("title", title)]
    for row in (row for row in rows[1:] if row):
        cells = itertools.zip_longest(rows[0][1:], row[1:], fillvalue="")
        data += [(f"{row[0]}\n{column}", value) for column, value in cells]
    return data


def data_f1(truth: Sequence[Datum], given: Sequence[Datum]) -> float:
    """The F1 of two tables' data, in [0, 1]; 1 only if all keys and values are the same."""
    from scipy.optimize import linear_sum_assignment

    if not given:
        return 0.0
    keys = _text_likeness([key for key, _ in truth], [key for key, _ in given])  # [T, G]
    values = _value_likeness([value for _, value in truth], [value for _, value in given])
    # Where keys occur twice, the values tell which is meant; they weigh far less than any difference of keys.
    pairs = linear_sum_assignment(keys + 1e-9 * values, maximize=True)
    total = float((keys * values)[pairs].sum())
    if total == len(truth) == len(given):
        return 1.0
    return clamp_below_one(2 * total / (len(truth) + len(given)))


def _text_likeness(truth: Sequence[str], given: Sequence[str]) -> NDArray[Any]:
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    distance = cdist(truth, given, scorer=Levenshtein.normalized_distance, dtype=np.float64)
    return np.where(distance <= TEXT_THETA, 1 - distance, 0.0)


def _value_likeness(truth: Sequence[str], given: Sequence[str]) -> NDArray[Any]:
    likeness = _text_likeness(truth, given)  # [T, G]
    wanted, said = [_number(text) for text in truth], [_number(text) for text in given]
    ids: dict[Fraction | None, int] = {None: 0}
    wanted_ids, said_ids = (np.array([ids.setdefault(n, len(ids)) for n in side]) for side in (wanted, said))
    numbers = (wanted_ids[:, None] > 0) & (said_ids[None, :] > 0)
    target, value = (np.array([_float(n) for n in side]) for side in (wanted, said))
    with np.errstate(all="ignore"):  # a zero to divide by, and infinities: both are not alike, below
        off = np.abs(target[:, None] - value[None, :]) / np.abs(target[:, None])
    near = np.where(off < NUMBER_THETA, np.minimum(1 - off, LARGEST_BELOW_ONE), 0.0)
    near[wanted_ids[:, None] == said_ids[None, :]] = 1.0  # told exactly, which floats could not
    return np.where(numbers, near, likeness)


def _float(number: Fraction | None) -> float:
    try:
        return float(number or 0)
    except OverflowError:
        return math.inf


def _transposed(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [list(column) for column in itertools.zip_longest(*rows, fillvalue="")]


def _as_text(truth: Any) -> str:
    if isinstance(truth, bool) or not isinstance(truth, str | int | float) or str(truth).strip() in ("", "nan", "inf"):
        raise ScoringFailed(
            f"references.answer is {truth!r:.60}; due is a text, a number, or a list of them", "reference"
        )
    return str(truth).strip()


def _number(text: str) -> Fraction | None:
    try:
        return parse_number(text)
    except InvalidAnswer:
        return None


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).removesuffix(".").strip("\"'")
