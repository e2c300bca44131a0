"""The grammar of literals and calls, against Python's own."""

import ast
import random

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.actions import MAX_CHARACTERS, parse_call, parse_literal


def test_500_random_literals_are_read_as_by_python():
    rng = random.Random(0)

    def made(depth):
        kind = rng.randrange(8 if depth < 4 else 5)
        if kind < 3:
            pieces = ["it's", '"', "\\", "\n", "\t", "click", " ", "С", "三", "\\n", "{", "]", ","]  # noqa: RUF001
            return "".join(rng.choices(pieces, k=rng.randrange(5)))
        if kind < 5:
            return rng.choice([rng.randrange(-999, 999), round(rng.uniform(-9, 9), 3), True, False, None])
        if kind < 7:
            return [made(depth + 1) for _ in range(rng.randrange(4))]
        return {f"k{i}{rng.choice(chr(39) + chr(34))}": made(depth + 1) for i in range(rng.randrange(4))}

    for _ in range(500):
        value = made(0)
        assert ast.literal_eval(repr(value)) == value
        assert parse_literal(f" {value!r}\n") == value


def test_json_is_read_and_tuples_become_lists():
    assert parse_literal('{"a": [true, false, null], "b": (1, 2.5,)}') == {"a": [True, False, None], "b": [1, 2.5]}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("press_back()", ("press_back", [], {})),
        ("click(320, 240)", ("click", [320, 240], {})),
        ("click( [320, 240] )", ("click", [[320, 240]], {})),
        ("click(start_box='(320, 240)')", ("click", [], {"start_box": "(320, 240)"})),
        ("type(content='it\\'s', enter=True)", ("type", [], {"content": "it's", "enter": True})),
        ('type("it\'s C:\\dir")', ("type", ["it's C:\\dir"], {})),
        ("wait(1.5, unit='s',)", ("wait", [1.5], {"unit": "s"})),
    ],
)
def test_calls_are_parsed_into_name_and_arguments(text, read):
    assert parse_call(text) == read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "click",
        "click(",
        "click(1",
        "click(1,",
        "click(1 2)",
        "click(1))",
        "click(1) click(2)",
        "click(x=1, x=2)",
        "click(x=1, 2)",
        "click(x)",
        "click(1 + 1)",
        "click(1e9)",
        "click(0x10)",
        "click(inf)",
        "click('a)",
        "click('a\nb')",
        "a.b(1)",
        "a()()",
        "__import__('os').system('ls')",
        "[x for x in (1,)]",
        "lambda: 1",
        "f'{1}'",
        "сlick(1)",  # noqa: RUF001
        "click(" + "[" * 100,
        "click(" * 1000,
        "click('" + "\\" * 9000,
        "click(" + "1," * MAX_CHARACTERS,
    ],
)
def test_only_single_calls_with_literals_are_read(text):
    with pytest.raises(InvalidAnswer):
        parse_call(text)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1, 'a': 2}", "{1: 2}", "[1] [2]", "[1,,2]", "1 2", "nan", "[" * 5000])
def test_only_single_literals_are_read(text):
    with pytest.raises(InvalidAnswer):
        parse_literal(text)
