"""The similarity of two tables: tree edit distance (TEDS), and the distance itself for ordered, shallow trees."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text, resolve_form
from mmrl.rewards.parsing.tables import ParsedTable, TableCell, parse_table

MAX_NODES = 1_000  # largest number of sections, rows and cells of a table that is compared: time is quadratic

Label: TypeAlias = str | TableCell
"""The label of a node: the tag of a table, section or row, or a cell."""


class TEDS(Reward):
    """Tree edit distance of two tables, as a similarity in [0, 1]: 1 - distance / nodes of the larger table.

    PubTabNet's score. Inserting or deleting a node costs 1, as does another tag or another span; another content costs
    the edit distance of the two contents, over the longer. `structure_only` ignores contents (S-TEDS).
    `references.answer` and the answer are tables in HTML, Markdown or LaTeX, with or without fences; only tables of the
    same format are certain to have the same sections. Unlike the original: <th> has content, rows outside a section are
    in a <tbody>, tags in cells are not nodes, and malformed tables (two tables, an unclosed one, text between cells)
    are invalid.
    """

    name, needs, range = "teds", ("text", "references.answer"), (0.0, 1.0)
    source = "TEDS, arXiv:1911.10683; ibm-aur-nlp/PubTabNet src/metric.py"

    def __init__(self, structure_only: bool = False, form: AnswerFormat = "auto") -> None:
        self.structure_only, self.form = structure_only, form

    def score_one(self, item: RewardInput) -> float:
        truth = item.references["answer"]
        try:
            expected = self._tree(truth if isinstance(truth, str) else "")
        except InvalidAnswer as err:
            raise ScoringFailed(f"references.answer is {truth!r:.60}, not a table: {err}", "reference") from None
        answered = self._tree(answer_text(item.text or "", resolve_form(item, self.form)))
        if answered == expected:
            return 1.0
        nodes = max(answered.size(), expected.size()) - 1
        return clamp_below_one(max(0.0, 1 - tree_distance(answered, expected, renaming_costs) / nodes))

    def _tree(self, text: str) -> Tree[Label]:
        tree = table_tree(parse_table(text), self.structure_only)
        if not 1 < tree.size() <= MAX_NODES + 1:
            raise InvalidAnswer(f"the table has {tree.size() - 1} rows, sections and cells; expected 1 to {MAX_NODES}")
        return tree


def table_tree(table: ParsedTable, structure_only: bool = False) -> Tree[Label]:
    """Return the table as a tree: the caption, then sections of rows of cells."""

    def leaf(cell: TableCell) -> Tree[Label]:
        return Tree(TableCell((), cell.header, cell.colspan, cell.rowspan) if structure_only else cell)

    sections: list[Tree[Label]] = [
        Tree(section.name, tuple(Tree("tr", tuple(leaf(cell) for cell in row)) for row in section.rows))
        for section in table.sections
    ]
    if table.caption is not None:
        caption: Tree[Label] = Tree(TableCell(() if structure_only else table.caption))
        sections.insert(0, Tree("caption", (caption,)))
    return Tree("table", tuple(sections))


def renaming_costs(first: Sequence[Label], second: Sequence[Label]) -> NDArray[Any]:
    """Return [N, M]: 0 for the same tag or cell, 1 for other tags or spans, else the normalised contents' distance."""
    from rapidfuzz.distance import Levenshtein
    from rapidfuzz.process import cdist

    kinds: dict[Any, int] = {}
    rows, columns = (
        np.array([kinds.setdefault(_kind(label), len(kinds)) for label in side]) for side in (first, second)
    )
    costs: NDArray[Any] = (rows[:, None] != columns[None, :]).astype(np.float64)
    cells_of_first = [n for n, label in enumerate(first) if isinstance(label, TableCell)]
    cells_of_second = [n for n, label in enumerate(second) if isinstance(label, TableCell)]
    if cells_of_first and cells_of_second:
        contents = cdist(
            [_content(first[n]) for n in cells_of_first],
            [_content(second[n]) for n in cells_of_second],
            scorer=Levenshtein.normalized_distance,
            dtype=np.float64,
        )
        place = np.ix_(cells_of_first, cells_of_second)
        costs[place] = np.maximum(costs[place], contents)
    return costs


def _kind(label: Label) -> Any:
    return (label.header, label.colspan, label.rowspan) if isinstance(label, TableCell) else label


def _content(label: Label) -> Sequence[str]:
    pieces = label.content if isinstance(label, TableCell) else ()
    return "".join(pieces) if all(len(piece) == 1 for piece in pieces) else pieces


Node = TypeVar("Node")
Array: TypeAlias = NDArray[Any]
Rename: TypeAlias = Callable[[Sequence[Node], Sequence[Node]], Array]
"""A function of N and M labels that returns the costs [N, M] of renaming each into each, in [0, 2]."""


@dataclass(frozen=True)
class Tree(Generic[Node]):
    """A labelled node and its children, in order."""

    label: Node
    children: Sequence[Tree[Node]] = field(default=())

    def size(self) -> int:
        """Return the number of nodes."""
        return len(_Postorder(self).labels)


def tree_distance(first: Tree[Node], second: Tree[Node], rename: Rename[Node]) -> float:
    """Return the smallest cost of turning one tree into the other: 1 to insert or delete a node, `rename` for labels.

    Zhang and Shasha, SIAM J. Comput. 18(6), 1989, vectorised with NumPy. Trees of 1,000 nodes that are as shallow as
    tables take about a second, where `apted` takes 9 to 12; time and memory grow with the depth.
    """
    a, b = _Postorder(first), _Postorder(second)
    costs = np.asarray(rename(a.labels, b.labels), np.float64)
    distances = np.zeros(costs.shape)  # [N, M]; of the trees whose roots are nodes n and m
    groups = [_Forests(b.leftmost, roots) for roots in b.disjoint_key_roots()]
    for root in a.key_roots:
        for group in groups:
            group.fill(root, a.leftmost, costs, distances)
    return float(distances[-1, -1])


class _Postorder(Generic[Node]):
    """The nodes of a tree in postorder: children before parents."""

    def __init__(self, tree: Tree[Node]) -> None:
        self.labels: list[Node] = []
        self.leftmost: list[int] = []  # the first leaf below each node
        open_nodes = [(tree, 0, 0)]  # node, children seen, number of its first leaf
        while open_nodes:
            node, seen, first_leaf = open_nodes.pop()
            if seen < len(node.children):
                open_nodes += [(node, seen + 1, first_leaf), (node.children[seen], 0, len(self.labels))]
            else:
                self.labels.append(node.label)
                self.leftmost.append(first_leaf)
        # The highest node whose first leaf it is, for each leaf: nodes that are not a first child, and the root.
        self.key_roots = sorted({leaf: number for number, leaf in enumerate(self.leftmost)}.values())

    def disjoint_key_roots(self) -> list[list[int]]:
        """Return the key roots in groups of disjoint trees of similar size; smaller trees come first."""
        levels: dict[int, int] = {}
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        inner: list[int] = []  # key roots so far that are not below another one
        for root in self.key_roots:
            level = 0
            while inner and inner[-1] >= self.leftmost[root]:
                level = max(level, levels[inner.pop()] + 1)
            inner.append(root)
            levels[root] = level
            groups[level, (root - self.leftmost[root] + 1).bit_length()].append(root)
        return [groups[key] for key in sorted(groups)]


class _Forests:
    """K trees of one side, whose nodes are padded to a common length W."""

    def __init__(self, leftmost: Sequence[int], roots: Sequence[int]) -> None:
        first = np.asarray(leftmost)
        start = first[list(roots)]  # [K]
        within = np.arange((np.asarray(roots) - start).max() + 1)  # [W]
        self.nodes = np.minimum(start[:, None] + within, np.asarray(roots)[:, None])  # [K, W]; padded with the root
        real = start[:, None] + within <= np.asarray(roots)[:, None]
        self.is_tree = real & (first[self.nodes] == start[:, None])  # [K, W]; one tree from the start, not a forest
        self.trees = self.nodes[self.is_tree]
        self.ramp = np.arange(len(within) + 1.0)
        # [K, W]; the flat index in [K, W + 1] of the forest before the node's own tree
        self.before = first[self.nodes] - start[:, None] + len(self.ramp) * np.arange(len(roots))[:, None]

    def fill(self, root: int, leftmost: Sequence[int], costs: Array, distances: Array) -> None:
        """Compute the distances of all trees with the same first leaf as `root`, from those of smaller trees."""
        start = leftmost[root]
        forests = np.empty((root - start + 2, len(self.nodes), len(self.ramp)))  # [nodes taken, K, W + 1]
        forests[0] = self.ramp
        for node in range(start, root + 1):
            above = forests[node - start]
            own = leftmost[node] - start
            value = np.take(forests[own], self.before) + np.take(distances[node], self.nodes)
            if own == 0:
                value = np.where(self.is_tree, above[:, :-1] + np.take(costs[node], self.nodes), value)
            row = forests[node - start + 1]
            row[:, 0] = above[:, 0] + 1
            np.minimum(value, above[:, 1:] + 1, out=row[:, 1:])
            # Insertions: the minimum over all earlier columns, each plus the number of nodes in between.
            row -= self.ramp
            np.minimum.accumulate(row, axis=1, out=row)
            row += self.ramp
            if own == 0:
                distances[node, self.trees] = row[:, 1:][self.is_tree]
