"""The worker process of the reward `maths`: math-verify, and the checks that it lacks.

The script is started by its path (see `math_pool`), so that neither torch nor the rest of this package is imported. It
reads one JSON object a line, {"gold", "answer", "timeout_s"}, and writes one line after the gold has been found usable
and one with the verdict:

    {"gold": "ok"}     or the verdict {"gold": "why it cannot be used"}
    {"equal": true}    or the verdict {"answer": "why it cannot be read"}

The process may hang or die at any time; `math_pool` handles both. Its time limit is one of CPU time, so that a busy
machine fails no answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

MEMORY_BYTES = 2 << 30
MAX_CACHED_GOLDS = 256

_NUMBER_BESIDE_UNIT = re.compile(r"^[^A-Za-z]{0,80}?[0-9}](\s{0,4})([A-Za-z\u00b0][A-Za-z0-9/^{}\u00b0 ]{0,40})$")
_SPACES = re.compile(r"\\[ ,;:!]|~|\\quad|\\qquad")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mbox|textrm)\s?\{([^{}]{0,100})\}")

Expression = Any
"""A sympy Basic or a matrix."""


def main() -> None:
    """Serve until standard input ends."""
    replies = _private_stdout()
    with contextlib.suppress(ValueError):  # raised outside the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent process
    try:
        verifier = Verifier()
    except ImportError as err:
        _reply(replies, {"failed": str(err)})
        return
    _limit_memory()
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        task = json.loads(line)
        _reply(replies, verifier.verdict(task, lambda: _reply(replies, {"gold": "ok"})))
        if _peak_memory_bytes() > MEMORY_BYTES // 2:
            return  # too little memory is left for the next task


class Verifier:
    """A wrapper of math-verify that parses, compares and caches golds."""

    def __init__(self) -> None:
        import logging

        import math_verify

        logging.disable(logging.CRITICAL)
        self._library = math_verify
        self._known_golds: dict[str, list[Expression]] = {}  # parsed, and seen to compare in time

    def verdict(self, task: dict[str, Any], gold_is_usable: Callable[[], None]) -> dict[str, Any]:
        """Return the reply to one task; call `gold_is_usable` once the gold has been checked."""
        gold_text, answer_text = task["gold"], task["answer"]
        _start_clock(task["timeout_s"])
        try:
            gold = self._gold(gold_text)
            if "".join(gold_text.split()) == "".join(answer_text.split()):
                return {"equal": True}  # without computing either
            self._check_comparable(gold_text, gold)
        except _Unusable as err:
            return {"gold": str(err)}
        gold_is_usable()
        _start_clock(task["timeout_s"])
        try:
            return {"equal": self._equal(gold, gold_text, self._parsed(answer_text), answer_text)}
        except _Unusable as err:
            return {"answer": str(err)}
        except Exception as err:  # math-verify raises any exception that sympy does
            return {"answer": f"could not be compared: {type(err).__name__}"}
        finally:
            _start_clock(0)

    def _gold(self, text: str) -> list[Expression]:
        """Return the parsed gold after checking that it equals itself."""
        if text not in self._known_golds:
            gold = self._parsed(text)
            if not self._library.verify(gold, gold, timeout_seconds=0, allow_set_relation_comp=True):
                raise _Unusable("does not equal itself")
            return gold
        return self._known_golds[text]

    def _check_comparable(self, text: str, gold: list[Expression]) -> None:
        """Compare the gold with a number once, so that a gold that cannot be computed fails no answer."""
        if text not in self._known_golds:
            self._equal(gold, text, self._parsed("7919"), "7919")
            if len(self._known_golds) >= MAX_CACHED_GOLDS:
                self._known_golds.clear()
            self._known_golds[text] = gold

    def _parsed(self, text: str) -> list[Expression]:
        # Only the whole text is parsed: no formula is extracted from the middle of other text.
        config = [self._library.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)]
        try:
            found = self._library.parse(
                f"\\boxed{{{text}}}",
                config,
                fallback_mode="no_fallback",
                extraction_mode="first_match",
                parsing_timeout=0,
                raise_on_error=True,
            )
        except Exception as err:  # as above
            raise _Unusable(f"could not be parsed: {type(err).__name__}") from None
        if not found:
            raise _Unusable("could not be parsed")
        return list(found)

    def _equal(self, gold: list[Expression], gold_text: str, answer: list[Expression], answer_text: str) -> bool:
        same = self._library.verify(gold, answer, timeout_seconds=0, allow_set_relation_comp=True)
        return bool(same) and not (
            is_false_chain(answer[0])
            or are_far_apart(gold[0], answer[0])
            or have_different_units(gold[0], gold_text, answer[0], answer_text)
        )


class _Unusable(ValueError):
    """A text cannot be parsed or compared as mathematics."""


def is_false_chain(answer: Expression) -> bool:
    """Return whether an answer equates numbers that are not equal: 1 = 2 = 3.

    math-verify takes the last of them, so such an answer could be right for any gold.
    """
    from sympy import And, Eq

    links = [link for link in (answer.args if isinstance(answer, And) else [answer]) if isinstance(link, Eq)]
    sides = [side for link in links for side in (link.lhs, link.rhs) if not side.free_symbols]
    return any(not _close(sides[0], side) for side in sides[1:])


def are_far_apart(gold: Expression, answer: Expression) -> bool:
    """Return whether two numbers differ by more than 1e-5 of the gold.

    math-verify rounds floats to six places, which makes 0.0000001 equal to 0.0. As in math-verify, 9% passes for 9 and
    for 0.09.
    """
    pair = _plain_number(gold), _plain_number(answer)
    if pair[0] is None or pair[1] is None:
        return False
    return not any(_close(pair[0], pair[1] * factor) for factor in (1, 100, 0.01))


def have_different_units(gold: Expression, gold_text: str, answer: Expression, answer_text: str) -> bool:
    """Return whether two numbers have different units, which math-verify drops: 3 m and 3 km, 2m and 2.

    A unit may be omitted on either side, but a letter directly after the gold's number (2m) may be a variable. One unit
    may be the abbreviation of the other: cm and centimeters.
    """
    if _plain_number(gold) is None or _plain_number(answer) is None:
        return False
    (gold_unit, may_be_variable), (unit, _) = _unit(gold_text), _unit(answer_text)
    if not gold_unit or not unit:
        return may_be_variable
    short, long = sorted((gold_unit, unit), key=len)
    return short != long and not (len(short) <= 3 < len(long) and short[0] == long[0] and _abbreviates(short, long))


def _unit(text: str) -> tuple[str, bool]:
    """Return the unit after a number, and whether it is a bare letter that could be a variable."""
    bare = _WRAPPED.search(text) is None
    plain = _WRAPPED.sub(r" \1", _SPACES.sub(" ", text)).replace("\\%", "").replace("$", "").strip()
    match = _NUMBER_BESIDE_UNIT.match(plain)
    if match is None:
        return "", False
    letters = re.sub(r"[^a-z0-9\u00b0]", "", match[2].lower())
    letters = letters.removesuffix("s") if len(letters) > 2 else letters
    letters = letters.replace("metre", "meter").replace("litre", "liter")
    return letters, bare and not match[1] and len(match[2]) == 1


def _abbreviates(short: str, long: str) -> bool:
    rest = iter(long)
    return all(letter in rest for letter in short)


def _plain_number(expression: Expression) -> Any:
    """Return the value of a real number; None for any other expression."""
    from sympy import Expr

    if not isinstance(expression, Expr) or expression.free_symbols:
        return None
    value = expression.doit().evalf(20)
    return value if value.is_real and value.is_number and value.is_finite else None


def _close(a: Any, b: Any) -> bool:
    a, b = a.evalf(20), b.evalf(20)
    if not (a.is_number and b.is_number):
        return bool(a == b)
    return bool(a == b or abs(a - b) <= 1e-5 * abs(a))


def _private_stdout() -> TextIO:
    """Return a duplicate of standard output, and redirect the original to devnull for libraries that print."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def _reply(replies: TextIO, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=replies, flush=True)


def _start_clock(seconds: float) -> None:
    """End this process after `seconds` of CPU time; 0 means never. Without such a timer, the parent kills it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process by default, even inside C code


def _limit_memory() -> None:
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    except (ImportError, OSError, ValueError):
        pass  # Windows has no such limit, and macOS may reject it; the time limit still holds


def _peak_memory_bytes() -> int:
    """Return the peak memory of this process in bytes; 0 if it is not available.

    `ru_maxrss` is not used: on Linux it starts at the memory of the parent when it forked this process.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as lines:
            kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
    return int(kibibytes) * 1024


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main()
