"""What runs in a process of its own for the reward `maths`: math-verify, and the checks that it leaves out.

Started by its path (see `math_pool`), so that neither torch nor the rest of this package is imported. Reads one JSON
object a line, {"gold", "answer", "timeout_s"}, and writes one line after the gold is known to be usable and one with
the verdict:

    {"gold": "ok"}     or the verdict {"gold": "why it cannot be used"}
    {"equal": true}    or the verdict {"answer": "why it cannot be read"}

It may hang or die at any time; who waits for it counts on that. Its own clock is the CPU's, so that a busy machine
fails no answer.
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
"""What sympy calls Basic, or a matrix."""


def main() -> None:
    """Serve until standard input ends."""
    replies = _private_stdout()
    with contextlib.suppress(ValueError):  # only of another thread than the main one
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who waits for this process
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
            return  # too full to be trusted with the next


class Verifier:
    """Parses and compares; remembers golds."""

    def __init__(self) -> None:
        import logging

        import math_verify

        logging.disable(logging.CRITICAL)
        self._library = math_verify
        self._known_golds: dict[str, list[Expression]] = {}  # parsed, and seen to compare in time

    def verdict(self, task: dict[str, Any], gold_is_usable: Callable[[], None]) -> dict[str, Any]:
        """The reply to one task; tells when the gold has been seen to be usable."""
        gold_text, answer_text = task["gold"], task["answer"]
        _start_clock(task["timeout_s"])
        try:
            gold = self._gold(gold_text)
            if "".join(gold_text.split()) == "".join(answer_text.split()):
                return {"equal": True}  # whatever it would take to compute the two
            self._check_comparable(gold_text, gold)
        except _Unusable as err:
            return {"gold": str(err)}
        gold_is_usable()
        _start_clock(task["timeout_s"])
        try:
            return {"equal": self._equal(gold, gold_text, self._parsed(answer_text), answer_text)}
        except _Unusable as err:
            return {"answer": str(err)}
        except Exception as err:  # math-verify raises whatever sympy does
            return {"answer": f"could not be compared: {type(err).__name__}"}
        finally:
            _start_clock(0)

    def _gold(self, text: str) -> list[Expression]:
        """The gold, parsed, once it has been seen to equal itself."""
        if text not in self._known_golds:
            gold = self._parsed(text)
            if not self._library.verify(gold, gold, timeout_seconds=0, allow_set_relation_comp=True):
                raise _Unusable("does not equal itself")
            return gold
        return self._known_golds[text]

    def _check_comparable(self, text: str, gold: list[Expression]) -> None:
        """Compare the gold with something once, so that one which cannot be computed is not held against an answer."""
        if text not in self._known_golds:
            self._equal(gold, text, self._parsed("7919"), "7919")
            if len(self._known_golds) >= MAX_CACHED_GOLDS:
                self._known_golds.clear()
            self._known_golds[text] = gold

    def _parsed(self, text: str) -> list[Expression]:
        # Nothing but the whole text is to be read: no formula out of the middle of something that is none.
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
    """A text that is no mathematics."""


def is_false_chain(answer: Expression) -> bool:
    """Whether an answer holds numbers that it says are equal, and are not: 1 = 2 = 3.

    math-verify reads the last of them, so such an answer would be right for every gold.
    """
    from sympy import And, Eq

    links = [link for link in (answer.args if isinstance(answer, And) else [answer]) if isinstance(link, Eq)]
    sides = [side for link in links for side in (link.lhs, link.rhs) if not side.free_symbols]
    return any(not _close(sides[0], side) for side in sides[1:])


def are_far_apart(gold: Expression, answer: Expression) -> bool:
    """Whether two numbers differ by more than 1e-5 of the gold.

    math-verify rounds floats to six places: to it, 0.0000001 is 0.0. It lets 9% pass for 9 and for 0.09; so does this.
    """
    pair = _plain_number(gold), _plain_number(answer)
    if pair[0] is None or pair[1] is None:
        return False
    return not any(_close(pair[0], pair[1] * factor) for factor in (1, 100, 0.01))


def have_different_units(gold: Expression, gold_text: str, answer: Expression, answer_text: str) -> bool:
    """Whether two numbers are measured in different units, which math-verify drops: 3 m and 3 km, 2m and 2.

    A unit may be left out on either side, but a letter right behind the gold's number (2m) may be a variable. A unit
    may be written out where the other is short: cm and centimeters.
    """
    if _plain_number(gold) is None or _plain_number(answer) is None:
        return False
    (gold_unit, may_be_variable), (unit, _) = _unit(gold_text), _unit(answer_text)
    if not gold_unit or not unit:
        return may_be_variable
    short, long = sorted((gold_unit, unit), key=len)
    return short != long and not (len(short) <= 3 < len(long) and short[0] == long[0] and _abbreviates(short, long))


def _unit(text: str) -> tuple[str, bool]:
    """The unit behind a number, and whether it is a bare letter that could be a variable."""
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
    """The value of what is no more than a real number, else None."""
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
    """Standard output, out of the reach of libraries that print."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return replies


def _reply(replies: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=replies, flush=True)


def _start_clock(seconds: float) -> None:
    """End this process once it has computed for so long; 0: never. Where there is no such clock, others watch."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF, whose default ends the process, even inside of C


def _limit_memory() -> None:
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    except (ImportError, OSError, ValueError):
        pass  # Windows has no such limit, and macOS may refuse it; the clock still runs


def _peak_memory_bytes() -> int:
    """The most memory that this process has held; 0 where that cannot be told.

    Not `ru_maxrss`: on Linux that begins with what the parent held when it started this process.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as facts:
            held = next(line.split()[1] for line in facts if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return 0
    return int(held) * 1024


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main()
