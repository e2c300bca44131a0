"""Groups of captions of one picture, scored by a text match and a semantic reward that bunches, for the study of ARMed.

The answers of a group state more or fewer wrong facts in other words than the reference. The semantic reward is the
similarity of token embeddings, squeezed into 0.90 to 0.95, where those of large encoders lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from scipy.special import softmax
from scipy.stats import spearmanr

from mmrl.rewards import BatchReward, Reward, RewardInput, RewardSuite, load
from mmrl.rewards.core.reward import Scored
from mmrl.statistics.intervals import Floats
from mmrl_shapeworld.worlds.caption_facts import FactCheck
from mmrl_shapeworld.worlds.picture_captions import WORDINGS, caption
from mmrl_shapeworld.worlds.reworded_captions import ShapeBMAS, reworded

GROUPS, GROUP_SIZE = 40, 8
LOW, HIGH = 0.90, 0.95
"""The interval in which the semantic scores bunch."""
LEAST_SIMILARITY = 0.6
"""The similarity, of texts that share little, which becomes `LOW`; 1 becomes `HIGH`."""


class BunchedSimilarity(BatchReward):
    """The similarity of an answer's and the reference's token embeddings, in 0.90 to 0.95."""

    name, needs, range = "bunched_similarity", ("text", "references.answer"), (0.0, 1.0)

    def __init__(self) -> None:
        self._similarity = ShapeBMAS()

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        return [_squeezed(each) if isinstance(each, float) else each for each in self._similarity.score_batch(items)]


def caption_groups(seed: int) -> tuple[list[RewardInput], Floats]:
    """Return groups of captions, and the F1 of the facts of each."""
    rng = np.random.default_rng((seed, 29))
    inputs = []
    for group in range(GROUPS):
        question = caption(rng)
        things = question.metadata["facts"]
        references = {"answer": " and ".join(map(WORDINGS[0], things)), "facts": things}
        for number in range(GROUP_SIZE):
            text = reworded(things, float(rng.random()), rng)
            inputs.append(RewardInput(f"{group}-{number}", group, question.prompt, text=text, references=references))
    return inputs, np.asarray(FactCheck().score(inputs).values[FactCheck.name], np.float64)


def semantic_totals(seed: int, semantic: Literal["adaptive", "raw", "none"]) -> dict[str, list[float]]:
    """Return how well half a text match and half a semantic reward rank the answers to a prompt by their facts.

    Returns:
        `ranking`: the mean over groups of Spearman's correlation of the totals and the facts; `accuracy`: the mean F1
        of the facts after one step of improvement, which weighs each answer of a group by the exponential of its
        normalised total, as a policy that learns from that advantage comes to do.
    """
    inputs, truth = caption_groups(seed)
    suite = RewardSuite([(reward, 0.5) for reward in _rewards(semantic)])
    totals = suite.score(inputs).values["total"].astype(np.float64).reshape(GROUPS, GROUP_SIZE)
    suite.close()
    facts = truth.reshape(GROUPS, GROUP_SIZE)
    ranks = [spearmanr(*pair).statistic for pair in zip(totals, facts, strict=True) if np.ptp(pair[1]) > 0]
    advantages = (totals - totals.mean(1, keepdims=True)) / (totals.std(1, keepdims=True) + 1e-4)
    improved = (softmax(advantages, axis=1) * facts).sum(1)
    return {"ranking": [float(np.mean(ranks))], "accuracy": [float(improved.mean())]}


@cache
def _rewards(semantic: Literal["adaptive", "raw", "none"]) -> tuple[Reward, ...]:
    text, place = load("rouge"), f"{__name__}:{BunchedSimilarity.__name__}"
    if semantic == "none":
        return (text,)
    return text, load("adaptive_spread", of=place) if semantic == "adaptive" else load(place)


def _squeezed(similarity: float) -> float:
    share = (similarity - LEAST_SIMILARITY) / (1 - LEAST_SIMILARITY)
    return LOW + (HIGH - LOW) * min(1.0, max(0.0, share))
