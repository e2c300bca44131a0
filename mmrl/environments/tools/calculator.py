"""`Calculator`: arithmetic on numbers, from the syntax tree of an expression; nothing is compiled or run."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import TypeAlias

from mmrl.environments.environment import Observation
from mmrl.environments.tool import CallRejected, ToolArguments, ToolContext, TypedTool

MAX_EXPRESSION = 300
"""The largest number of characters of an expression."""
MAX_BITS = 2_048
"""The largest number of bits of a whole number; fractions are floats."""
MAX_ARGUMENTS = 32

Number: TypeAlias = int | float

_TOKEN = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+|[a-z][a-z0-9]*|\*\*|//|[-+*/%(),])")
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


def _rounded(value: Number, digits: Number = 0) -> Number:
    """Return a number rounded to at most 300 digits: Python would compute 10 ** digits, however large."""
    if not isinstance(digits, int) or abs(digits) > 300:
        raise OverflowError
    return round(value, digits) if digits else round(value)


_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "gcd": math.gcd,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": _rounded,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}


class CalculatorArguments(ToolArguments):
    """An expression."""

    expression: str
    """Such as (2 + 3) * 4 / sqrt(2)."""


class Calculator(TypedTool):
    """Calculate an expression with + - * / // % ** ( ) and functions such as sqrt, log, sin, min, max and round."""

    name = "calculator"
    Arguments = CalculatorArguments

    def run(self, context: ToolContext, arguments: CalculatorArguments) -> Observation:
        """Return the value."""
        return Observation(str(calculate(arguments.expression)))


def calculate(expression: str) -> Number:
    """Return the value of an arithmetic expression. Whole numbers are exact, up to `MAX_BITS` bits.

    Raises:
        CallRejected: it is too long, no arithmetic, or its value is undefined or too large.
    """
    if len(expression) > MAX_EXPRESSION:
        raise CallRejected(f"the expression has {len(expression)} characters; at most {MAX_EXPRESSION} are read")
    tokens, at = [], 0
    text = expression.strip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise CallRejected(f"{text[at : at + 10]!r} is no arithmetic")
        tokens.append(token[1])
        at = token.end()
    try:
        tree = ast.parse(" ".join(tokens), mode="eval")
        return _value(tree.body)
    except (SyntaxError, MemoryError, RecursionError):
        raise CallRejected(f"{expression!r:.60} is no arithmetic") from None
    except ZeroDivisionError:
        raise CallRejected("division by zero") from None
    except OverflowError:
        raise CallRejected("a number is too large") from None
    except (ValueError, TypeError) as err:  # sqrt(-1), or a function with the wrong number of arguments
        raise CallRejected(f"the value is undefined: {err}"[:200]) from None


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return _checked(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _checked(_power(left, right))
        if (combine := _OPERATORS.get(type(node.op))) is not None:
            return _checked(combine(left, right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None and len(node.args) <= MAX_ARGUMENTS:
            return _checked(function(*map(_value, node.args)))
    raise CallRejected(f"{ast.unparse(node)[:40]!r} is no arithmetic that is known")


def _power(base: Number, exponent: Number) -> Number:
    """Return base ** exponent, whose size is checked before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        if abs(base) <= 1:
            return base if exponent % 2 else 1
        raise OverflowError
    if base < 0 and isinstance(exponent, float) and not exponent.is_integer():
        raise CallRejected("a root of a negative number is undefined")
    return _OPERATORS[ast.Pow](base, exponent)


def _checked(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
    elif value.bit_length() > MAX_BITS:
        raise OverflowError
    return value
