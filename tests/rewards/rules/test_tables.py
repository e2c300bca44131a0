"""TEDS, against the original's formula over apted and by hand."""

import random

import numpy as np
import pytest
from apted import APTED, Config
from rapidfuzz.distance import Levenshtein

from mmrl.rewards import Status
from mmrl.rewards.parsing.tables import TableCell, parse_table
from mmrl.rewards.rules.teds import TEDS, renaming_costs, table_tree

from .single_answer import outcome, value

HTML = "<table><thead><tr><td>a</td><td>b</td></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"


class OfTables(Config):
    """PubTabNet's costs, on trees of our own."""

    def rename(self, node1, node2):
        x, y = node1.label, node2.label
        if isinstance(x, str) or isinstance(y, str):
            return float(x != y)
        if (x.header, x.colspan, x.rowspan) != (y.header, y.colspan, y.rowspan):
            return 1.0
        longer = max(len(x.content), len(y.content))
        return Levenshtein.distance(x.content, y.content) / longer if longer else 0.0

    def children(self, node):
        return list(node.children)


def random_table(rng):
    def cell():
        tag, span = rng.choice(["td", "td", "th"]), rng.choice(["", "", ' colspan="2"', ' rowspan="2"'])
        return f"<{tag}{span}>{''.join(rng.choices('ab1 ', k=rng.randint(0, 3)))}</{tag}>"

    def rows(most):
        return "".join(
            f"<tr>{''.join(cell() for _ in range(rng.randint(1, 2)))}</tr>" for _ in range(rng.randint(1, most))
        )

    head = f"<thead>{rows(1)}</thead>" if rng.random() < 0.7 else ""
    return f"<table>{head}<tbody>{rows(2)}</tbody></table>"


@pytest.mark.integration
def test_500_random_tables_equal_teds_by_apted():
    rng = random.Random(0)
    for _ in range(500):
        answer, truth = random_table(rng), random_table(rng)
        first, second = table_tree(parse_table(answer)), table_tree(parse_table(truth))
        nodes = max(first.size(), second.size()) - 1
        expected = 1 - APTED(first, second, OfTables()).compute_edit_distance() / nodes
        assert value(TEDS(), answer, truth) == pytest.approx(max(0, expected), abs=1e-6)


@pytest.mark.parametrize(
    ("answer", "expected", "structure"),
    [
        (HTML, 1, 1),
        (HTML.replace("2", "3"), 1 - 1 / 8, 1),
        (HTML.replace("2", "23"), 1 - 0.5 / 8, 1),
        (HTML.replace("2", ""), 1 - 1 / 8, 1),
        (HTML.replace("<td>2</td>", ""), 1 - 1 / 8, 1 - 1 / 8),
        (HTML.replace("<td>2</td>", "<th>2</th>"), 1 - 1 / 8, 1 - 1 / 8),
        (HTML.replace("<td>2", '<td colspan="2">2'), 1 - 1 / 8, 1 - 1 / 8),
        (HTML.replace("2", "<b>2</b>"), 1 - 2 / 3 / 8, 1),
        (HTML.replace("thead", "tbody"), 1 - 1 / 8, 1 - 1 / 8),
        (HTML.replace("<td>1</td><td>2</td>", "<td>2</td><td>1</td>"), 1 - 2 / 8, 1),
        ("| a | b |\n|---|---|\n| 1 | 2 |", 1 - 2 / 8, 1 - 2 / 8),  # Markdown's header is of <th>
    ],
)
def test_scores_by_hand(answer, expected, structure):
    assert value(TEDS(), answer, HTML) == pytest.approx(expected)
    assert value(TEDS(structure_only=True), answer, HTML) == pytest.approx(structure)
    assert (value(TEDS(), answer, HTML) == 1) == (expected == 1)


def test_equivalent_trees_are_perfect():
    without = "<table><tr><td>1</td></tr></table>"
    assert value(TEDS(), without, "<table><tbody><tr><td> 1 </td></tr></tbody></table>") == 1
    markdown = "| a |b|\n|--|--|\n|1|2|"
    assert value(TEDS(), f"```\n{markdown}\n```", HTML.replace("<td>a</td><td>b</td>", "<th>a</th><th>b</th>")) == 1
    assert value(TEDS(), "\\begin{tabular}{l} 1 \\\\ \\end{tabular}", without) == 1


def test_disjoint_trees_score_at_least_0():
    answer = "<table><tr><td>a</td></tr><tr><td>b</td></tr></table>"
    truth = "<table><caption>x</caption><thead><tr><th>c</th><th>d</th><th>e</th></tr></thead></table>"
    assert 0 <= value(TEDS(), answer, truth) < 0.5


def test_distant_differences_in_large_tables_lower_the_score():
    large = "<table>" + "<tr><td>x</td></tr>" * 150 + "</table>"
    assert 0.99 < value(TEDS(), large.replace("x</td></tr></table>", "y</td></tr></table>"), large) < 1


def test_malformed_answers_are_invalid_and_references_scorer_failures():
    too_large = "<table><tr>" + "<td>x</td>" * 1_000 + "</tr></table>"
    for wrong in ("", "x", HTML[:-8], HTML + HTML, "<table></table>", too_large):
        assert outcome(TEDS(), wrong, HTML) == (0, Status.INVALID)
        assert outcome(TEDS(), HTML, wrong)[1] is Status.ERROR
    assert outcome(TEDS(), HTML, [HTML])[1] is Status.ERROR


def test_rename_costs_are_symmetric_and_zero_for_equal_cells_only():
    labels = [
        "table",
        "tr",
        TableCell(tuple("ab")),
        TableCell(("a", "<b>")),
        TableCell(()),
        TableCell((), header=True),
        TableCell((), colspan=2),
    ]
    costs = renaming_costs(labels, labels)
    np.testing.assert_array_equal(costs, costs.T)
    np.testing.assert_array_equal(costs == 0, np.eye(len(labels), dtype=bool))
    assert costs[2, 3] == 0.5 and costs.max() == 1
