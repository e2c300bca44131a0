"""Tree search in place of independent answers (DeepSearch), whose nodes are learnt from with their own values.

DeepSearch (arXiv:2509.25454) spends the tokens of a prompt on a search tree: pieces of answers are continued where a
frontier score over the whole tree is highest. Numbers and rules are those of the authors' code
(smiles724/DeepSearch deepsearch/utils/mcts.py@daf9067), where a node is a piece of a fixed number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.train import TrainConfig
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.search_tree import FrontierWeights, Node, SearchTree
from mmrl.training.rollouts.start_rules import (
    StartContext,
    StartRule,
    rounds_of,
    rows_of_groups,
    selection,
    token_counts,
)

LABEL = "node"


@dataclass(frozen=True)
class TreeSearch(StartRule):
    """Each prompt has a search tree: a round expands one node of it into `data.group_size` next pieces of an answer.

    A row is a piece of at most `step_tokens` tokens after the pieces before it. An answer ends with a piece that is
    shorter, or at `max_depth` pieces; one that ends with exactly `step_tokens` tokens is continued once more, from its
    text. Whenever answers end, one of them is recorded: a right one if there is one, and the least uncertain of them;
    `mmrl.training.rollouts.search_tree` says how the search goes on. It is over when `answers` are recorded, or no node
    is left.

    Only pieces of recorded answers are learnt from. The advantage of a piece in a recorded answer is tanh(q) of its
    node at the end of the search, and the outcome, 1 or -1, of a last piece, minus the mean outcome of the prompt's
    recorded answers, without a spread (Tree-GRPO). A piece that several recorded answers share is one row, with the sum
    of its advantages.
    """

    answers: int = 8
    """The answers of a prompt that are recorded and learnt from."""
    step_tokens: int = 256
    """The most tokens of a piece."""
    max_depth: int = 64
    """The most pieces of an answer."""
    accept: float = 1.0
    """The least total reward of a right answer."""
    quality: float = 0.4
    """λ1, the weight of tanh(Q) of the node's parent in the frontier score."""
    uncertainty: float = 0.0
    """λ2, that of the mean negative log-probability of the node's tokens; the authors' code leaves it out."""
    depth: float = 0.01
    """λ3, that of the square root of depth over `max_depth`."""
    only_mixed: bool = False
    """True learns nothing from prompts whose recorded answers are all wrong or all right. The paper learns from them:
    where all are wrong, tanh(q) of a piece is above the mean outcome of -1, so that it becomes likelier."""

    def __post_init__(self) -> None:
        if min(self.answers, self.step_tokens, self.max_depth) < 1:
            raise ValueError("answers, step_tokens and max_depth are at least 1")

    def errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting of `config` that would give pieces another advantage than their own."""
        estimator = getattr(config.algorithm, "advantage", None)
        reads = config.algorithm.reads_advantages
        if not reads or not isinstance(estimator, AdvantageConfig) or estimator.baseline != "group":
            name = estimator.name if reads and estimator is not None else config.algorithm.name
            yield (
                f"algorithm.advantage.name: tree_search gives pieces their advantages, and those of {name} would be "
                "added: choose one that compares the answers of a group, such as grpo"
            )
        if config.data.replay is not None:
            yield "data.replay: it keeps answers with their rewards, and tree_search learns from pieces: leave it out"

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests of the children of each root, the first pieces of answers."""
        return [replace(each, start=self._start("")) for each in requests]

    def more(self, scored: ScoredRollouts, context: StartContext) -> list[RolloutRequest]:
        """Return a request for the children of the next node of each tree whose search is not over."""
        texts = [str(text) for rollout in scored.rollouts for text in rollout.media]
        width, samples, groups = rows_per_node(scored), scored.samples, rows_of_groups(scored)
        return [
            RolloutRequest(samples[groups[group][0]], width, group, self._start(texts[tree.current.row]))
            for group, tree in self.trees(scored).items()
            if tree.current is not None
        ]

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select the pieces of recorded answers; if none are learnt from, all pieces without advantages.

        Rewards are reported of recorded answers. Metrics: `tree/solved`, the share of prompts with a right recorded
        answer, `tree/mixed`, that of prompts with right and wrong ones, `tree/answers`, the mean number of recorded
        answers, and `tree/depth`, the mean number of their pieces.
        """
        trees = list(self.trees(scored).values())
        rows, last = len(scored.samples), [leaf for tree in trees for leaf in tree.recorded]
        outcomes = [{leaf.outcome for leaf in tree.recorded} for tree in trees]
        credit = torch.zeros(rows)
        trained, ends = torch.zeros(2, rows, dtype=torch.bool)
        for tree, found in zip(trees, outcomes, strict=True):
            for row, advantage in node_advantages(tree) if len(found) > 1 or not self.only_mixed else ():
                credit[row] += advantage
                trained[row] = True
        ends[[leaf.row for leaf in last]] = True
        metrics = {
            "tree/solved": sum(1.0 in each for each in outcomes) / len(trees),
            "tree/mixed": sum(len(each) > 1 for each in outcomes) / len(trees),
            "tree/answers": len(last) / len(trees),
            "tree/depth": sum(leaf.depth for leaf in last) / max(1, len(last)),
        }
        learnt = trained if trained.any() else None
        selected = selection(scored, learnt, compared=torch.arange(rows))  # a row by itself has no advantage but credit
        return replace(selected, on_policy=ends if last else selected.on_policy, credit=credit, metrics=metrics)

    def trees(self, scored: ScoredRollouts) -> dict[int, SearchTree]:
        """Return the tree of each group, as the rounds so far expanded it."""
        lengths, surprisals, rounds = token_counts(scored), surprisal(scored), rounds_of(scored).tolist()
        total, found = scored.total, {}
        for group, rows in rows_of_groups(scored).items():
            weights = FrontierWeights(self.quality, self.uncertainty, self.depth)
            tree = found[group] = SearchTree(weights, self.max_depth, self.answers)
            for number in dict.fromkeys(rounds[row] for row in rows):
                depth = 1 if tree.current is None else tree.current.depth + 1
                children = []
                for row in (each for each in rows if rounds[each] == number):
                    ended = lengths[row] < self.step_tokens or depth >= self.max_depth
                    known = ended and bool(total[row].isfinite())
                    outcome = (1.0 if total[row] >= self.accept else -1.0) if known else None
                    children.append(Node(row, None, lengths[row], surprisals[row], ended, outcome))
                tree.expand(children)
        return found

    def _start(self, prefix: str) -> RowStart:
        return RowStart(LABEL, prefix=prefix, max_new_tokens=self.step_tokens)


def node_advantages(tree: SearchTree) -> list[tuple[int, float]]:
    """Return the row and the advantage of each piece of each recorded answer of a tree."""
    found: list[tuple[int, float]] = []
    mean = sum(leaf.outcome or 0.0 for leaf in tree.recorded) / max(1, len(tree.recorded))
    for leaf in tree.recorded:
        found += [(node.row, math.tanh(node.value) - mean) for node in leaf.path[1:-1]]
        found.append((leaf.row, (leaf.outcome or 0.0) - mean))
    return found


def surprisal(scored: ScoredRollouts) -> list[float]:
    """Return the sum of the negative log-probabilities of the tokens of each row, in nats."""
    return [
        float(value)
        for rollout in scored.rollouts
        for value in -rollout.log_probs.where(rollout.mask, 0.0).double().sum(1).cpu()
    ]


def rows_per_node(scored: ScoredRollouts) -> int:
    """Return the number of children of a node: the rows of each group in the first round."""
    return int(scored.group_index[: scored.round_sizes[0]].bincount().max())
