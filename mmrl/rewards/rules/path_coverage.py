"""A reward for a chain of thoughts that names what the true path through a knowledge graph leads over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.phrases import Phrase, count_phrases, words_of

ENOUGH, BONUS = 2, 0.2
"""The number of entities from which on a chain has the bonus: one alone may stand in the question."""
MENTIONS = 2
"""Mentions of each entity of the path, on average, that cost nothing."""


class PathCoverage(Reward):
    """(0.8 × coverage + 0.2 if two entities or more are named) × a factor against repetition, in [0, 1].

    `references["path"]` lists the entities of the true path as texts, from the first to the last. The coverage is the
    share of them that the chain of thoughts names as whole words, without case. The chain is what stands before
    the last `</think>`, or else before `<answer>`; a text without these is a chain as a whole. The factor is 1 up to
    two mentions of each entity on average, and 2 × entities / mentions beyond.

    The path reward of the paper is min(1.2 × coverage + 0.3, 1.5), which is this times 1.5, beside 0.1 for a right
    answer and -1 for a wrong one. Its factor against repetition is not stated there; this one is the suite's.
    """

    name, needs, range = "path_coverage", ("text", "references.path"), (0.0, 1.0)
    source = "knowledge graphs as implicit reward models, arXiv:2601.15160"

    def score_one(self, item: RewardInput) -> float:
        path = _path(item.references["path"])
        named = count_phrases(words_of(chain_of(item.text or "")), path)
        hits, mentions = sum(count > 0 for count in named.values()), sum(named.values())
        covered = (1 - BONUS) * hits / len(path) + BONUS * (hits >= min(ENOUGH, len(path)))
        return covered * min(1.0, MENTIONS * len(path) / max(mentions, 1))


def chain_of(text: str) -> str:
    """Return the chain of thoughts of an answer.

    >>> chain_of("<think>liver, then bile</think>B"), chain_of("no tags")
    ('<think>liver, then bile', 'no tags')
    """
    before, closed, _ = text.rpartition("</think>")
    return before if closed else text.partition("<answer>")[0]


def _path(entities: Any) -> list[Phrase]:
    """Return the words of each different entity.

    Raises:
        ScoringFailed: the reference is no list of texts with words.
    """
    if isinstance(entities, str) or not isinstance(entities, Sequence) or not entities:
        raise ScoringFailed(f"references['path'] is {entities!r:.60}; expected a list of entities", "reference")
    path = [words_of(entity) if isinstance(entity, str) else () for entity in entities]
    if not all(path):
        raise ScoringFailed(f"references['path'] is {entities!r:.60}; an entity is a text with words", "reference")
    return list(dict.fromkeys(path))
