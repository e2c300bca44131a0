"""Stretches of time out of answers."""

import json
import random

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.spans import MAX_SPANS, merge_spans, parse_spans, spans_from_json


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("[3.2, 7]", [(3.2, 7)]),
        ("(3.2, 7)", [(3.2, 7)]),
        ("3.2, 7", [(3.2, 7)]),
        ("3.2s to 7s", [(3.2, 7)]),
        ("3.2 to 7 seconds.", [(3.2, 7)]),
        ("[3.2s, 7 secs]", [(3.2, 7)]),
        ("The event happens from 3.2 until 7.", [(3.2, 7)]),
        ("between 3 and 7", [(3, 7)]),
        ("3\u20137", [(3, 7)]),
        ("00:03 - 00:07.5", [(3, 7.5)]),
        ("[00:03, 00:07]", [(3, 7)]),
        ("[00:03 - 00:07]", [(3, 7)]),
        ("1:00:00 to 1:00:03.5", [(3600, 3603.5)]),
        ("01:23.4 to 90", [(83.4, 90)]),
        ("3-7, 9-12", [(3, 7), (9, 12)]),
        ("3 to 7 and 9 to 12", [(3, 7), (9, 12)]),
        ("[9, 12], [3, 7]", [(9, 12), (3, 7)]),
        ("[[9, 12], [3, 7]]", [(9, 12), (3, 7)]),
        ('{"start": 3.2, "end": 7}', [(3.2, 7)]),
        ('{"start_time": "3.2", "end_time": "7"}', [(3.2, 7)]),  # Temporal-R1
        ('[{"from": "00:03", "to": "00:07"}, {"begin": 9, "end": 12, "label": "jumps"}]', [(3, 7), (9, 12)]),
        ("```json\n[[3, 7]]\n```", [(3, 7)]),
        ("Here it is:\n```json\n[3, 7]\n```", [(3, 7)]),
        ("0.30000000000000004 to 7", [(0.30000000000000004, 7)]),
        ("[0, 1e9]", [(0, 1e9)]),
        ("[]", []),
        ("3 to 7 s - it jumps", [(3, 7)]),
        ("It is not clear, but from 3 to 7.", [(3, 7)]),
        ("From 3 to 7, hence early; frames show it.", [(3, 7)]),
    ],
)
def test_spans_are_read_in_every_form(text, spans):
    assert parse_spans(text) == spans


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no idea",
        "7",
        "3 to",
        "7 to 3",
        "[7, 3]",
        "3 to 3",
        "[3, 3]",
        "-3 to 5",
        "[-3, 5]",
        "\u22123 to 5",
        "[3, \u22125]",
        '{"start": 3, "end": 7, "from": 1, "to": 2}',
        '{"start": "\\uff13", "end": 7}',
        ".5 to 3",
        "3:75 to 4",
        "3 to 7 to 9",
        "3 to 7, or 9",
        "3 to 7min",
        "x3 to 7",
        "1 min 3 s to 2 min",
        "3,2 to 7,5",
        "[3, 7, 9]",
        "[[3, 7], [9]]",
        "[[3, 7], []]",
        "[true, 3]",
        "[null, 3]",
        '{"start": 3}',
        '{"start": 3, "start": 1, "end": 7}',
        "[NaN, 3]",
        "[3, Infinity]",
        "[0, 1e999]",
        "3 to inf",
        "3 to 1e9",
        "[[3, 7], [9, 1",  # cut off
        "[[3, 7]",
        '[{"start": 3, "end": 7}, {"start": 9',
        "３ to 7",  # noqa: RUF001
        "3 to ٧",  # noqa: RUF001
        "[" * 9000,
        "1" * 9000,
        "3 to 7 " * 1500,
        "0:" * 4000,
        json.dumps([[i, i + 1] for i in range(MAX_SPANS + 1)]),
    ],
)
def test_texts_that_are_no_spans_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_spans(text)


@pytest.mark.parametrize(
    "text",
    [
        *["3 to 7 minutes", "3 to 7 min", "from 3 to 7 hours", "[3, 7] minutes", "3 to 7 %", "3 to 7%", "3-7 frames"],
        *["3 to 7 m", "[3, 7] h", "(3 to 7) ms", "**3 to 7** minutes", "3 to 7 (minutes)", "3 to 7-minute mark"],
        *["3 to 4, 5 to 7 minutes", "```json\n[3, 7]\n``` minutes", "frames 3 to 7", "minutes from 3 to 7"],
        *[
            "- 3 to 7",
            "\u2212 3 to 7",
            "- [3, 7] s",
            "- (3 to 7)",
            "not 3 to 7",
            "never from 3 to 7",
            "not ```[3, 7]```",
        ],
        *["It doesn't happen between 3 and 7", "[] [3, 7]", "```json\n[3, 7]\n``` or 9 to 12"],
    ],
)
def test_negated_spans_and_other_units_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_spans(text)


def test_every_form_of_random_spans_gives_equal_floats():
    rng = random.Random(0)
    for _ in range(500):
        tenths = sorted(rng.sample(range(36_000), 2))
        start, end = (t / 10 for t in tenths)
        clock = [f"{t // 600:02d}:{t // 10 % 60:02d}.{t % 10}" for t in tenths]
        hours = [f"{t // 36000}:{t // 600 % 60:02d}:{t // 10 % 60:02d}.{t % 10}" for t in tenths]
        for text in (
            f"{start} to {end}",
            f"[{start}, {end}]",
            f"{start}s - {end}s",
            json.dumps({"start": start, "end": end}),
            " - ".join(clock),
            " to ".join(hours),
            json.dumps([clock]),
        ):
            assert parse_spans(text) == [(start, end)], text


def test_union_of_spans_is_disjoint():
    assert merge_spans([]) == []
    assert merge_spans([(5, 6), (1, 3), (2, 4), (4, 4.5), (1.5, 2)]) == [(1, 4.5), (5, 6)]


def test_references_may_be_tuples():
    assert spans_from_json((3, 7)) == [(3, 7)]
    assert spans_from_json(((3, 7), {"start": 9, "end": 12})) == [(3, 7), (9, 12)]
    for value in (None, 3, "3 to 7", [3], [[3, 7], 9], {"start": 3, "end": "later"}, [3, 10**400]):
        with pytest.raises(InvalidAnswer):
            spans_from_json(value)
