"""Calls of a trajectory matched one to one with the calls that were wanted (MatchTIR, arXiv:2601.10712).

    table = [[call_similarity(call, gold) for gold in wanted] for call in calls]
    matched_scores(table)    # of each call: that of the wanted call that it is matched with, 0 if it has none

Of two equal calls one is matched, so that a repetition earns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from mmrl.environments.tool_calls import ToolCall


def matched_scores(
    similarity: Sequence[Sequence[float]],  # [P, G]; of each call with each wanted one
) -> list[float]:  # [P]
    """Return for each call its similarity with the wanted call that it is matched with; 0 for those without.

    The matching has the largest sum of similarities, so that the scores have that sum, too. Of calls that are equally
    similar the first is matched.

    >>> matched_scores([[0.5, 0.0], [1.0, 0.0], [1.0, 0.0]])
    [0.0, 1.0, 0.0]
    """
    table = np.asarray(similarity, dtype=float)
    if table.ndim != 2 or not table.size:
        return [0.0] * len(similarity)
    if not np.isfinite(table).all():
        raise ValueError("similarity: expected finite numbers")
    earlier = 1e-9 * np.arange(len(table))[:, None]
    rows, columns = linear_sum_assignment(np.where(table > 0, table - earlier, 0.0), maximize=True)
    scores = [0.0] * len(table)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        scores[row] = max(0.0, float(table[row, column]))
    return scores


def call_similarity(call: ToolCall, wanted: ToolCall) -> float:
    """Return the agreement of two calls in [0, 1]; 0 for calls of different tools.

    1 for the tool, the Jaccard index of the names of arguments, and the agreement of each wanted value, over the
    largest sum. Differs from the paper: values that differ may agree in part (`value_agreement`).

    >>> search = ToolCall("search", {"query": "blue circle"})
    >>> call_similarity(ToolCall("search", {"query": "blue square"}), search)
    0.8333333333333334
    """
    if call.name != wanted.name:
        return 0.0
    written, needed = call.arguments.keys(), wanted.arguments.keys()
    names = len(written & needed) / len(written | needed) if written | needed else 1.0
    values = sum(value_agreement(call.arguments[name], wanted.arguments[name]) for name in written & needed)
    return (1.0 + names + values) / (2.0 + len(needed))


def value_agreement(value: Any, wanted: Any) -> float:
    """Return the agreement of two arguments in [0, 1].

    1 for equal values; for two texts the F1 of their words, without case; for two boxes of four numbers their
    intersection over union; for others 0.
    """
    if value == wanted and isinstance(value, bool) == isinstance(wanted, bool):
        return 1.0
    if isinstance(value, str) and isinstance(wanted, str):
        return _word_f1(value.lower().split(), wanted.lower().split())
    if _is_box(value) and _is_box(wanted):
        return _box_iou(value, wanted)
    return 0.0


def wanted_calls(value: Any) -> list[ToolCall]:
    """Return the calls of a list such as [{"name": "search", "arguments": {"query": "bridge"}}].

    Raises:
        ValueError: it is no such list.
    """
    if not isinstance(value, list | tuple):
        raise ValueError('expected a list of calls, such as [{"name": "crop", "arguments": {"box": [0, 0, 500, 500]}}]')
    for each in value:
        if not (isinstance(each, Mapping) and isinstance(each.get("name"), str)):
            raise ValueError(f"a call needs a name, and {each!r:.60} has none")
        if not isinstance(each.get("arguments", {}), Mapping):
            raise ValueError(f"the arguments of a call are an object, not {each['arguments']!r:.60}")
    return [ToolCall(each["name"], dict(each.get("arguments", {}))) for each in value]


def _word_f1(words: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(words) & Counter(wanted)).values())
    return 2 * shared / (len(words) + len(wanted)) if shared else 0.0


def _is_box(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 4
        and all(isinstance(each, int | float) and not isinstance(each, bool) and abs(each) < 1e9 for each in value)
        and value[0] < value[2]
        and value[1] < value[3]
    )


def _box_iou(first: Sequence[float], second: Sequence[float]) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    both = max(0.0, width) * max(0.0, height)
    areas = sum((x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (first, second))
    return float(both / (areas - both))
