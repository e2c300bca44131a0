"""Answers about charts, against the published formulas."""

import itertools
import random
from functools import cache

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.chart_answers import ChartRelaxed, ChartTable

from .single_answer import outcome, value
from .test_ocr import distance


def published(target, prediction):
    """ChartQA's relaxed correctness, in floats."""

    def number(text):
        try:
            return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
        except ValueError:
            return None

    predicted, wanted = number(prediction), number(target)
    if predicted is not None and wanted:
        return abs(predicted - wanted) / abs(wanted) <= 0.05
    return prediction.lower() == target.lower()


def test_a_thousand_random_answers_equal_the_published_formula():
    rng = random.Random(0)
    for _ in range(1000):
        truth = rng.choice(
            [f"{rng.uniform(-50, 50):.2f}", f"{rng.randint(1, 99)}%", "Yes", "red", str(rng.randint(1, 3000))]
        )
        near = f"{float(truth.rstrip('%')) * rng.uniform(0.9, 1.1):.4f}" if truth[-2:].strip("%").isdigit() else "no"
        answer = rng.choice(
            [truth, truth.upper(), near, near + "%", "blue", f"{float(near) / 100:.6f}" if near != "no" else "yes"]
        )
        assert value(ChartRelaxed(), answer, truth) == published(truth, answer), (answer, truth)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("105", 100, 1),
        ("105.01", 100, 0),
        ("95", "100", 1),
        ("1.05", 1, 1),  # exactly 5 %, which floats make more
        ("-100", 100, 0),
        ("0", 0, 1),
        ("0.0", "0", 1),
        ("0.001", 0, 0),
        ("12%", "0.12", 1),
        ("12", "12%", 0),
        ("$1,050", 1000, 1),
        ("yes", "Yes", 1),
        ("Yes, it is", "Yes", 0),
        ("The answer is 12.", 12, 1),
        ("<think>9</think><answer>Light  Blue.</answer>", "light blue", 1),
        ("\\boxed{12}", 12, 1),
        ("1990", 2010, 1),
        ("", "12", 0),
        ("nan", "12", 0),
    ],
)
def test_relaxed_answers_by_hand(text, answer, expected):
    assert value(ChartRelaxed(), text, answer) == expected


def test_years_are_exact_on_request():
    exact = ChartRelaxed(exact_years=True)
    assert value(exact, "1990", 2010) == 0 and value(exact, "2010", "2010") == 1
    assert value(exact, "2400", 2405) == 1 and value(exact, "2010.5", "2010.7") == 1  # no years


def test_lists_are_compared_in_order_with_partial_credit():
    reward = ChartRelaxed()
    assert value(reward, "1, red; 3", [1, "red", 3]) == value(reward, '[1, "red", 3]', [1, "red", 3]) == 1
    assert value(reward, "1\nred", [1, "blue"]) == 0.5 and value(reward, "red, 1", [1, "red"]) == 0
    assert value(reward, "1, red, 3", [1, "red"]) == pytest.approx(2 / 3)  # one too many
    assert value(reward, "1,000, 2,000", [1000, 2000]) == 1
    assert value(reward, "red", ["red"]) == 1 and value(reward, "1, 2, 3, 4", [3]) == 0.0
    for text in ("[1, [2]]", "[1", "[1, null]", "[" * 9999, "1;" * 1001):
        assert outcome(reward, text, [1, 2]) == (0, Status.INVALID), text[:20]


def test_relaxed_statuses():
    assert outcome(ChartRelaxed(), "Answer: 1\nAnswer: 2", 1) == (0, Status.INVALID)
    assert outcome(ChartRelaxed(), "x" * 10_001, 1) == (0, Status.INVALID)
    for wrong in (True, "", [], {"a": 1}, [[1]], float("nan")):
        assert outcome(ChartRelaxed(), "1", wrong)[1] is Status.ERROR
    for wrong in (-0.1, 1, float("nan")):
        with pytest.raises(RewardError, match="tolerance"):
            ChartRelaxed(wrong)


@cache
def alike(a, b):
    ratio = distance(a, b) / max(len(a), len(b), 1)
    return 1 - ratio if ratio <= 0.5 else 0.0


def rms_f1(truth, answer):
    """DePlot's F1 of two tables as {(row, column): value}, with its own thresholds, over keys "row, column"."""

    def values(a, b):
        try:
            a, b = float(a), float(b)
        except ValueError:
            return alike(a, b)
        off = abs(a - b) / abs(a) if a else float(a != b)
        return 1 - off if off < 0.1 else 0.0

    def joined(table):
        return [("\n".join(key), cell) for key, cell in table.items()]

    first, second = joined(truth), joined(answer)
    cost = np.array([[1 - alike(a, b) for b, _ in second] for a, _ in first])
    rows, columns = linear_sum_assignment(cost)
    total = sum((1 - cost[r, c]) * values(first[r][1], second[c][1]) for r, c in zip(rows, columns, strict=True))
    if not total:
        return 0.0
    precision, recall = total / len(second), total / len(first)
    return 2 * precision * recall / (precision + recall)


def lines(table):
    rows = dict.fromkeys(row for row, _ in table)
    columns = dict.fromkeys(column for _, column in table)
    body = [" | ".join([row, *(table[row, column] for column in columns)]) for row in rows]
    return "\n".join([" | ".join(["year", *columns]), *body])


def random_chart(rng):
    rows, columns = rng.sample(["2001", "spring", "autumn", "north"], 2), rng.sample(["sales", "costs", "price"], 2)
    return {key: rng.choice(["high", "low", f"{rng.uniform(1, 90):.1f}"]) for key in itertools.product(rows, columns)}


def noisy(table, rng):
    def noise(text):
        if text[0].isdigit() and "." in text:
            return f"{float(text) * rng.choice([1, 1.02, 1.2]):.3f}"
        return text if rng.random() < 0.7 else text + "x"

    rows = {row: noise(row) for row in dict.fromkeys(row for row, _ in table)}
    columns = {column: noise(column) for column in dict.fromkeys(column for _, column in table)}
    return {(rows[row], columns[column]): noise(cell) for (row, column), cell in table.items()}


def test_500_random_tables_equal_rms():
    rng = random.Random(0)
    for _ in range(500):
        truth = random_chart(rng)
        answer = noisy(truth, rng) if rng.random() < 0.7 else random_chart(rng)
        turned = {(column, row): cell for (row, column), cell in answer.items()}
        expected = max(rms_f1(truth, answer), rms_f1(truth, turned))
        assert value(ChartTable(), lines(answer), lines(truth)) == pytest.approx(expected, abs=1e-6), (answer, truth)


TABLE = "Country | 2010 | 2020\nPeru | 10 | 20\nChile | 30 | 40"


@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        TABLE.replace("\n", " <0x0A> "),
        "| Country | 2010 | 2020 |\n|---|---|---|\n| Peru | 10 | 20 |\n| Chile | 30.0 | 40 |",
        "Country | Peru | Chile\n2010 | 10 | 30\n2020 | 20 | 40",  # the transpose
        "COUNTRY | 2020 | 2010\nchile | 40 | 30\nperu | 20 | 10",  # another order
        "<table><tr><th>Country<th>2010<th>2020<tr><td>Peru<td>10<td>20<tr><td>Chile<td>30<td>40</table>",
    ],
)
def test_equivalent_tables_are_perfect(text):
    assert value(ChartTable(), text, TABLE) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TABLE.replace("40", "42"), 3.95 / 4),
        (TABLE.replace("40", "44"), 3 / 4),
        (TABLE.replace("\nChile | 30 | 40", ""), 2 * 2 / 6),
        (TABLE + "\nChile | 30 | 40", 2 * 4 / 10),
        (TABLE.replace("40", "40 | 50"), 2 * 4 / 9),
        (TABLE.replace("2010", "2100"), 0.5 + 0.5),
    ],
)
def test_tables_by_hand(text, expected):
    score = value(ChartTable(), text, TABLE)
    assert score < 1 and (score == pytest.approx(expected) or expected == 1)


def test_empty_and_missing_cells_count():
    for row in ("\n| z |", "\nz |", "\n| z | |"):
        assert value(ChartTable(), TABLE + row, TABLE) < 1, row
        assert value(ChartTable(), TABLE + row, TABLE + row) == 1
        assert value(ChartTable(), TABLE, TABLE + row) < 1
    truth = "a | b\nx | \ny | 2"
    assert value(ChartTable(), truth, truth) == value(ChartTable(), "| a | b |\n| x | |\n| y | 2 |", truth) == 1
    assert value(ChartTable(), "a | b\ny | 2", truth) == pytest.approx(2 / 3)
    wide = " | ".join("abcdefghij" * 20) + "\n" + "x |\n" * 200  # few cells, which would be filled up to many
    assert outcome(ChartTable(), wide, TABLE)[1] is Status.INVALID


def test_titles_count_as_data():
    titled = f"title | Growth\n{TABLE}"
    assert value(ChartTable(), titled, titled) == 1
    assert value(ChartTable(), TABLE, titled) == pytest.approx(8 / 9)
    assert value(ChartTable(), titled.replace("Growth", "x"), titled) == pytest.approx(4 / 5)


def test_zero_and_huge_numbers():
    truth = "a | b\nc | 0\nd | 1e999"
    assert value(ChartTable(), truth, truth) == 1
    assert value(ChartTable(), truth.replace("0\n", "0.001\n"), truth) == 0.5
    assert value(ChartTable(), truth.replace("1e999", "1e998"), truth) == 0.5
    close = "a | b\nc | 1\nd | 1"
    assert 0.999 < value(ChartTable(), close.replace("d | 1", "d | 1.0000000000000000000001"), close) < 1


def test_statuses_of_tables():
    for wrong in ("", "x", "a | b", "a\nb", TABLE + "\n\n" + TABLE, "a | b\n" * 600):
        assert outcome(ChartTable(), wrong, TABLE) == (0, Status.INVALID), wrong
        assert outcome(ChartTable(), TABLE, wrong)[1] is Status.ERROR
    assert outcome(ChartTable(), TABLE, 5)[1] is Status.ERROR
