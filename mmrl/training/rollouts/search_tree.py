"""The search tree of one prompt, whose nodes are pieces of answers (DeepSearch, arXiv:2509.25454).

A node is expanded once, into several next pieces. While none of them ends an answer, the search goes down to the first.
Where some do, one of these answers is recorded, its outcome is backed up to the root, and the search goes on at the
node of the whole tree, not expanded yet, with the highest frontier score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

LEAST_DECAY = 0.1
"""The least share of an outcome that a node on its path gets, gamma_min."""


@dataclass(eq=False)
class Node:
    """A piece of an answer, after those of its ancestors; the root has none, and is the prompt."""

    row: int = -1  # of the piece among the rows of the iteration; -1 at the root
    parent: Node | None = None
    tokens: int = 0  # of the piece
    surprisal: float = 0.0  # of the piece: the sum of the negative log-probabilities of its tokens, in nats
    ended: bool = False  # True: the answer ends here
    outcome: float | None = None  # of an ended answer: 1 if right, -1 if wrong; None: not known
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    value: float = 0.0  # q, the sum that is backed up

    @property
    def depth(self) -> int:
        """The number of pieces from the root on, this one included."""
        return len(self.path) - 1

    @property
    def path(self) -> list[Node]:
        """The nodes from the root to this one."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]

    @property
    def mean_value(self) -> float:
        """The value over the number of visits, Q; 0 before the first."""
        return self.value / self.visits if self.visits else 0.0

    @property
    def path_entropy(self) -> float:
        """The mean negative log-probability of all tokens of the answer so far, an estimate of its mean entropy."""
        return sum(each.surprisal for each in self.path) / max(1, sum(each.tokens for each in self.path))

    def descendants(self) -> Iterator[Node]:
        """Yield the nodes below this one, each before its own children."""
        for child in self.children:
            yield child
            yield from child.descendants()


@dataclass(frozen=True)
class FrontierWeights:
    """The weights of the three terms of a frontier score."""

    quality: float  # lambda_1
    uncertainty: float  # lambda_2
    depth: float  # lambda_3

    def score(self, node: Node, max_depth: int) -> float:
        """Return l1 tanh(Q of the parent) + l2 (mean surprisal of the piece) + l3 sqrt(depth / max_depth).

        Raises:
            ValueError: the node is a root, which has no parent.
        """
        if node.parent is None:
            raise ValueError("the root of a search tree has no frontier score")
        entropy = node.surprisal / max(1, node.tokens)
        known = self.quality * math.tanh(node.parent.mean_value)
        return known + self.uncertainty * entropy + self.depth * math.sqrt(node.depth / max_depth)


@dataclass
class SearchTree:
    """A tree that grows by expansions, and the answers that it recorded."""

    weights: FrontierWeights
    max_depth: int
    answers: int  # the search is over when as many are recorded
    root: Node = field(default_factory=Node)
    recorded: list[Node] = field(default_factory=list)  # the last pieces of recorded answers
    current: Node | None = None  # the node that is expanded next; None: the search is over

    def __post_init__(self) -> None:
        self.current = self.root

    def expand(self, children: Sequence[Node]) -> None:
        """Add the next pieces of the current node, record an answer if some end here, and choose the next node."""
        if self.current is None:
            raise ValueError("the search of this tree is over")
        self.current.children = list(children)
        for child in children:
            child.parent = self.current
            child.visits += not child.ended
        if any(child.ended for child in children):
            self._record([child for child in children if child.outcome is not None])
            self.current = None if len(self.recorded) >= self.answers else self._best_of_frontier()
        else:
            self.current = children[0]

    def _record(self, ended: Sequence[Node]) -> None:
        """Record and back up the most confident right answer, or the most confident wrong one if none is right."""
        if ended:
            chosen = min(ended, key=lambda each: (-(each.outcome or 0.0), each.path_entropy))
            self.recorded.append(chosen)
            back_up(chosen)

    def _best_of_frontier(self) -> Node | None:
        frontier = [each for each in self.root.descendants() if not each.ended and not each.children]
        return max(frontier, key=lambda each: self.weights.score(each, self.max_depth), default=None)


def back_up(leaf: Node) -> None:
    """Add a visit and the outcome of an ended answer to the nodes of its path, with a decay towards the root."""
    if leaf.outcome is None:
        raise ValueError("an answer whose outcome is not known cannot be backed up")
    length = len(leaf.path)
    for place, node in enumerate(leaf.path, start=1):
        node.visits += 1
        node.value = backed_up(node.value, max(place / length, LEAST_DECAY) * leaf.outcome)


def backed_up(value: float, change: float) -> float:
    """Return a value after a change: their sum if their signs agree, else the positive one of the two.

    A node on the path to a right answer stays positive, however many wrong answers go through it.

    >>> backed_up(0.5, 0.25), backed_up(-0.5, 0.25), backed_up(0.5, -0.25)
    (0.75, 0.25, 0.5)
    """
    return value + change if value * change >= 0 else max(value, change)
