"""Descriptions of one thing in many words, scored by rewards that err in different ways, for the study of MediX-R1.

Half are right. Of the others most have one wrong attribute, and the rest is hollow: it agrees with the question and
states nothing. A judge of YES or NO errs now and then, and is often taken in by hollow answers; embeddings see that
these have nothing to do with the reference, but not a single wrong word.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Literal

import numpy as np

from mmrl.rewards import Reward, RewardInput, RewardSuite, load
from mmrl.statistics.intervals import Floats
from mmrl.studies.scoring import LabelledAnswers, statistic
from mmrl.studies.study import DecideConfig
from mmrl_shapeworld.worlds.caption_facts import FactCheck
from mmrl_shapeworld.worlds.picture_captions import WORDINGS, caption
from mmrl_shapeworld.worlds.reworded_captions import ATTRIBUTE_VALUES, ShapeBMAS, reworded

COUNT = 240
HOLLOW = ("i see it", "the picture shows it", "there is one", "one can see it there", "the picture shows one")
HOLLOW_SHARE = 0.4
"""The share of wrong answers that are hollow."""
JUDGE_ERRS, JUDGE_TAKEN_IN = 0.08, 0.5
"""The probabilities that the judge is wrong about an answer with facts, and that it says YES to a hollow one."""
FAULTS = 0.1
"""The share of answers with a wrong tag, and of those without thoughts."""
THRESHOLD = 0.7
"""The similarity from which on the embedding reward is 1."""
WEIGHTS = {"yes": 0.9 * 0.575, "embedding": 0.9 * 0.375, "leading_tag": 0.9 * 0.05, "format": 0.1}
"""The weights of the authors' code (training/examples/reward_function/medical.py)."""
Combination = Literal["composite", "judge", "embedding", "form"]


class YesNoJudge(Reward):
    """A judge's YES (1) or NO (0) to whether an answer states the facts of its sample; the same on each call."""

    name, needs, range = "yes", ("text", "references.facts"), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        text = item.text or ""
        luck = int.from_bytes(hashlib.sha256(f"{item.id} {text}".encode()).digest()[:4], "big") / 2**32
        if any(f"<answer>{each}</answer>" in text for each in HOLLOW):
            return float(luck < JUDGE_TAKEN_IN)
        output = FactCheck().score([item])
        return float((output.values[FactCheck.name][0] == 1) != (luck < JUDGE_ERRS))


def described_things(seed: int) -> LabelledAnswers:
    """Return tagged answers with thoughts, whose truth is 1 if their description is right."""
    rng = np.random.default_rng((seed, 31))
    inputs, truth = [], []
    for number in range(COUNT):
        thing = caption(rng).metadata["facts"][0]
        stated, right = dict(thing), number % 2 == 0
        if not right:
            key = list(stated)[rng.integers(len(stated))]
            stated[key] = str(rng.choice([each for each in ATTRIBUTE_VALUES[key] if each != stated[key]]))
        hollow = not right and rng.random() < HOLLOW_SHARE
        text = str(rng.choice(HOLLOW)) if hollow else reworded([stated], 0.0, rng)
        tag = "<photo>" if rng.random() < FAULTS else "<drawing>"
        thoughts = "" if rng.random() < FAULTS else "<think>i look</think>"
        inputs.append(
            RewardInput(
                f"{seed}-{number}",
                0,
                "Describe.",
                text=f"{tag}{thoughts}<answer>{text}</answer>",
                references={"answer": WORDINGS[0](thing), "facts": [thing], "modality": "drawing"},
            )
        )
        truth.append(float(right))
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def answer_rewards(seed: int, combine: Combination) -> dict[str, list[float]]:
    """Return how well a reward tells right descriptions from wrong ones, and how noisy it is.

    Returns:
        `auc`: the probability that a right answer is scored above a wrong one; `noise`: the standard deviation among
        equally good answers, over the distance of the means of right and wrong ones.
    """
    answers = described_things(seed)
    suite = RewardSuite([(reward, WEIGHTS[name]) for name, reward in _rewards(combine).items()])
    totals = suite.score(answers.inputs).values["total"].astype(np.float64)
    suite.close()
    auc = statistic(totals, answers.truth, DecideConfig(statistic="auc"))
    return {"auc": auc.tolist(), "noise": [_noise(totals, answers.truth)]}


def _noise(totals: Floats, truth: Floats) -> float:
    right, wrong = totals[truth == 1], totals[truth == 0]
    return float(np.sqrt((right.var() + wrong.var()) / 2) / max(1e-6, abs(right.mean() - wrong.mean())))


@cache
def _rewards(combine: Combination) -> dict[str, Reward]:
    every = {
        "yes": YesNoJudge(),
        "embedding": ShapeBMAS(threshold=THRESHOLD),
        "leading_tag": load("leading_tag"),
        "format": load("format", strict=False),
    }
    names = {"composite": [*every], "judge": ["yes"], "embedding": ["embedding"], "form": ["leading_tag", "format"]}
    return {name: every[name] for name in names[combine]}
