"""A reward of captions by their facts: precision and recall of colours, shapes, sizes and places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.vqa.questions import PLACES
from mmrl_shapeworld.worlds.picture_captions import SIZES, SYNONYMS, Facts
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, SEEN_SHAPES, UNSEEN_COLOURS, UNSEEN_SHAPES

WORDS: Mapping[str, tuple[str, ...]] = {
    "colour": SEEN_COLOURS + UNSEEN_COLOURS,
    "shape": SEEN_SHAPES + UNSEEN_SHAPES,
    "size": tuple(SIZES),
    "place": PLACES,
}
"""The words of each attribute."""
MOST = 32
"""The largest number of clauses of a caption that are compared."""
_CLAUSE_END = re.compile(r"\band\b|[;.\n]")
_MEANING = {synonym: word for word, synonym in SYNONYMS.items()}
_FACT = {
    key: re.compile(rf"\b(?:{'|'.join((*words, *(SYNONYMS[word] for word in words if word in SYNONYMS)))})s?\b")
    for key, words in WORDS.items()
}


class FactCheck(Reward):
    """F1 of the facts of a caption, in [0, 1], with their precision and recall.

    A caption is a list of clauses, divided by "and", semicolons, full stops or lines; each states attributes of one
    thing, once each, in any order: "a small red circle top left". Synonyms (`SYNONYMS`) count as the same word.
    `references.facts` is a list of mappings with the `colour`, `shape`, `size` and `place` of each thing. Clauses are
    matched one-to-one with things so that most facts agree. Precision is the share of stated facts that are true,
    recall the share of true facts that are stated; a clause that matches no thing, or with two values of an
    attribute, makes all that it states false. A caption that states no fact is invalid.
    """

    name = "shapeworld_facts"
    source = "docs/shapeworld.md"
    needs = ("text", "references.facts")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Compare the facts of one caption."""
        truth = item.references["facts"]
        if not (isinstance(truth, list | tuple) and truth and all(isinstance(fact, Mapping) for fact in truth)):
            raise ScoringFailed(f"references['facts'] is {truth!r:.60}, not a list of mappings", "reference")
        clauses, stated = stated_facts(item.text or "")
        agree = np.array(
            [[sum(fact.get(key) == value for key, value in each.items()) for fact in truth] for each in clauses]
        )
        right = float(agree[linear_sum_assignment(agree, maximize=True)].sum())
        precision, recall = right / stated, right / sum(map(len, truth))
        return {
            self.name: 2 * precision * recall / (precision + recall) if right else 0.0,
            f"{self.name}_precision": precision,
            f"{self.name}_recall": recall,
        }


def stated_facts(text: str) -> tuple[Sequence[Facts], int]:
    """Return the facts of each clause of a caption, none for a contradictory clause, and the number of stated facts.

    Raises:
        InvalidAnswer: The caption states no fact, or has more than `MOST` clauses.
    """
    clauses: list[Facts] = []
    stated = 0
    for clause in _CLAUSE_END.split(text.lower()):
        found = {key: pattern.findall(clause) for key, pattern in _FACT.items()}
        if count := sum(map(len, found.values())):
            stated += count
            single = all(len(values) <= 1 for values in found.values())
            clauses.append({key: _meaning(key, values[0]) for key, values in found.items() if values} if single else {})
    if not clauses or len(clauses) > MOST:
        raise InvalidAnswer(f"the caption has {len(clauses)} clauses with facts; expected 1 to {MOST}")
    return clauses, stated


def _meaning(key: str, word: str) -> str:
    single = word if word in WORDS[key] or word in _MEANING else word.removesuffix("s")
    return _MEANING.get(single, single)
