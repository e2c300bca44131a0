"""Pictures with a chosen action in words, right or wrong in its context, for the study of Found-RL.

The context is a pair of things, as a command and a speed are for a car; its four actions are the places that the first
thing can have beside the second. Up to two more things come and go. A scorer that compares the picture with the
chosen text alone also measures which things the context is about, and what else is there.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Literal

import numpy as np

from mmrl.rewards import Reward, RewardInput
from mmrl.rewards.models.anchor_margin import AnchorMargin
from mmrl.studies.scoring import LabelledAnswers, statistic
from mmrl.studies.study import DecideConfig
from mmrl_shapeworld.caption_rewards import ShapeCLIP
from mmrl_shapeworld.captions import KINDS, RELATIONS, related
from mmrl_shapeworld.scenes import Scene, draw, place
from mmrl_shapeworld.shipped_models import CLIP

COUNT = 120


@cache
def anchored_pictures(seed: int) -> LabelledAnswers:
    """Return pictures whose prompt names the right place (1) or a wrong one (0), with the four actions as anchors."""
    rng = np.random.default_rng((seed, 17))
    inputs, truth = [], []
    for number in range(COUNT):
        first, second = (KINDS[n] for n in rng.choice(len(KINDS), 2, replace=False))
        relation = str(rng.choice(RELATIONS))
        scene = _scene(first, second, relation, rng)
        right = number % 2 == 0
        claimed = relation if right else str(rng.choice([r for r in RELATIONS if not _holds(scene, r)]))
        anchors = [_action(first, r, second) for r in RELATIONS if r in (relation, claimed) or not _holds(scene, r)]
        inputs.append(
            RewardInput(
                id=f"{seed}-{number}",
                group=0,
                prompt=_action(first, claimed, second),
                image=draw(scene),
                references={"anchors": anchors},
            )
        )
        truth.append(float(right))
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def anchor_rewards(seed: int, reward: Literal["margin", "cosine"], batch: int = 64) -> dict[str, list[float]]:
    """Return how well a reward tells right actions from wrong ones, and how many it scores.

    Returns:
        `auc`: the probability that a right action is scored above a wrong one; `per_second`: answers scored per second
        of CPU time, in calls of `batch` answers.
    """
    answers = anchored_pictures(seed)
    scorer = _scorer(reward)
    started = time.process_time()
    calls = [scorer.score(answers.inputs[first : first + batch]) for first in range(0, len(answers.inputs), batch)]
    seconds = time.process_time() - started
    scores = np.concatenate([call.values[scorer.name] for call in calls]).astype(np.float64)
    auc = statistic(scores, answers.truth, DecideConfig(statistic="auc"))
    return {"auc": auc.tolist(), "per_second": [len(scores) / seconds]}


@cache
def _scorer(reward: Literal["margin", "cosine"]) -> Reward:
    scorer = AnchorMargin(model=str(CLIP), device="cpu") if reward == "margin" else ShapeCLIP()
    scorer.score(anchored_pictures(0).inputs[:2])  # a first call allocates
    return scorer


def _scene(first: tuple[str, str], second: tuple[str, str], relation: str, rng: np.random.Generator) -> Scene:
    others = [kind for kind in KINDS if kind not in (first, second)]
    count = int(rng.integers(3))
    more = [(*others[n], float(rng.uniform(0.2, 0.35))) for n in rng.choice(len(others), count, replace=False)]
    while (scene := place([(*first, 0.25), (*second, 0.25), *more], rng)) is None or not _holds(scene, relation):
        pass
    return scene


def _holds(scene: Scene, relation: str) -> bool:
    return related(scene.things[0], scene.things[1], relation)


def _action(first: tuple[str, str], relation: str, second: tuple[str, str]) -> str:
    return f"a {' '.join(first)} {relation} a {' '.join(second)}"
