"""The edit distance of trees, against a search by its definition and apted."""

import random
from functools import lru_cache

import numpy as np
import pytest
from apted import APTED, Config

from mmrl.rewards.rules.teds import Tree, tree_distance


def random_tree(rng, size, labels="abcd"):
    """Each node hangs from one of those before it: near ones make deep trees, any make flat ones."""
    children = [[] for _ in range(size)]
    for node in range(1, size):
        children[rng.randrange(max(0, node - rng.choice([1, 3, 100])), node)].append(node)

    def grown(node):
        return Tree(rng.choice(labels), tuple(grown(child) for child in children[node]))

    return grown(0)


def renaming(x, y):
    return 0.0 if x == y else 0.5 if {x, y} == {"a", "b"} else 1.0


def costs_of(rename):
    return lambda first, second: np.array([[rename(x, y) for y in second] for x in first])


def searched(first, second, rename):
    """By the definition: the last root of two forests is deleted, inserted, or renamed."""

    @lru_cache(None)
    def least(a, b):
        if not a or not b:
            return float(sum(tree.size() for tree in a + b))
        (*a_rest, x), (*b_rest, y) = a, b
        return min(
            least((*a_rest, *x.children), b) + 1,
            least(a, (*b_rest, *y.children)) + 1,
            least(tuple(x.children), tuple(y.children))
            + least(tuple(a_rest), tuple(b_rest))
            + rename(x.label, y.label),
        )

    return least((first,), (second,))


@pytest.mark.integration
def test_500_random_trees_equal_an_exhaustive_search():
    rng = random.Random(0)
    for _ in range(500):
        first, second = (random_tree(rng, rng.randint(1, 9)) for _ in range(2))
        assert tree_distance(first, second, costs_of(renaming)) == pytest.approx(searched(first, second, renaming))


class OfTrees(Config):
    def rename(self, node1, node2):
        return float(node1.label != node2.label)

    def children(self, node):
        return list(node.children)


@pytest.mark.integration
def test_500_larger_trees_equal_apted():
    rng = random.Random(1)
    for _ in range(500):
        first, second = (random_tree(rng, rng.randint(1, 12)) for _ in range(2))
        ours = tree_distance(first, second, costs_of(lambda x, y: float(x != y)))
        assert ours == pytest.approx(APTED(first, second, OfTrees()).compute_edit_distance())


def test_tree_distances_by_hand():
    leaf, chain = Tree("a"), Tree("a", (Tree("b", (Tree("c"),)),))
    star = Tree("a", (Tree("b"), Tree("c")))

    def between(first, second):
        return tree_distance(first, second, costs_of(lambda x, y: float(x != y)))

    assert between(leaf, leaf) == between(chain, chain) == 0
    assert between(leaf, chain) == between(chain, leaf) == 2
    assert between(chain, star) == 2  # c cannot stay below b and become its sibling
    assert between(Tree("x"), star) == 3
    assert between(star, Tree("a", (Tree("c"), Tree("b")))) == 2  # the order counts


@pytest.mark.integration
def test_largest_tables_are_compared_in_time():
    def table(rows, columns, label):
        row = Tree("tr", tuple(Tree(f"{label}{n}") for n in range(columns)))
        return Tree("table", (Tree("tbody", (row,) * rows),))

    distance = tree_distance(table(30, 30, "x"), table(30, 29, "x"), lambda a, b: np.array(a)[:, None] != np.array(b))
    assert distance == 30
