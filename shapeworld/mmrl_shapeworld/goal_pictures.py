"""Pictures with a known distance from a goal in words, for studies of rewards that measure it by CLIP.

`progress_pictures` grades how much of `GOAL` a picture shows while other things come and go. `near_goal_pictures` has
pictures of `ORDERED_GOAL`, and of the same two things the other way round, beside others that mean nothing.
"""

from __future__ import annotations

import numpy as np

from mmrl.rewards import RewardInput
from mmrl.rewards.models.clip_rewards import GoalBaseline, GoalContrast
from mmrl.studies.scoring import LabelledAnswers
from mmrl_shapeworld.captions import related
from mmrl_shapeworld.scenes import COLOURS, SHAPES, Scene, draw, place
from mmrl_shapeworld.shipped_models import CLIP

GOAL = "a red circle"
ORDERED_GOAL = "a red circle left of a blue square"
COUNT = 240


class ShapeGoalBaseline(GoalBaseline):
    """`goal_baseline` by the tiny CLIP that ships."""

    name = "shape_goal_baseline"

    def __init__(self, baseline: str, alpha: float = 0.5) -> None:
        """`baseline`: the picture without the goal, in words; `alpha`: the strength of the projection, in [0, 1]."""
        super().__init__(baseline, GOAL, alpha, model=str(CLIP))


class ShapeGoalContrast(GoalContrast):
    """`goal_contrast` by the tiny CLIP that ships."""

    name = "shape_goal_contrast"

    def __init__(self, negative: str, weight: float = 0.5) -> None:
        """`negative`: what the picture must not show; `weight`: that of the goal, 1 for the goal alone."""
        super().__init__(negative, ORDERED_GOAL, weight, model=str(CLIP))


def progress_pictures(seed: int) -> LabelledAnswers:
    """Return pictures with a share of the goal: 0, 1/2 (its colour or its shape) or 1, beside a thing of no meaning.

    The other thing is drawn anew for each picture, so it moves the picture's embedding without changing the truth.
    """
    rng = np.random.default_rng((seed, 11))
    inputs, truth = [], []
    for number in range(COUNT):
        colour, shape = _kind_with_share(share := number % 3 / 2, rng)
        other = (*_kind_without_meaning(rng), float(rng.uniform(0.22, 0.5)))
        while (scene := place([(colour, shape, 0.35), other], rng)) is None:
            pass
        inputs.append(RewardInput(id=f"{seed}-{number}", group=0, prompt=GOAL, image=draw(scene)))
        truth.append(share)
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def near_goal_pictures(seed: int) -> LabelledAnswers:
    """Return pictures of the goal (1) and of its two things the other way round (0), beside up to two other things."""
    rng = np.random.default_rng((seed, 12))
    inputs, truth = [], []
    for number in range(COUNT):
        right = number % 2 == 0
        others = [(*_kind_without_meaning(rng), float(rng.uniform(0.2, 0.35))) for _ in range(int(rng.integers(3)))]
        kinds = [("red", "circle", 0.25), ("blue", "square", 0.25), *others]
        while (scene := place(kinds, rng)) is None or not _is_ordered(scene, "left of" if right else "right of"):
            pass
        inputs.append(RewardInput(id=f"{seed}-{number}", group=0, prompt=ORDERED_GOAL, image=draw(scene)))
        truth.append(float(right))
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def _is_ordered(scene: Scene, relation: str) -> bool:
    return related(scene.things[0], scene.things[1], relation)


def _kind_without_meaning(rng: np.random.Generator) -> tuple[str, str]:
    return ("green", "yellow")[int(rng.integers(2))], str(rng.choice(["square", "triangle"]))


def _kind_with_share(share: float, rng: np.random.Generator) -> tuple[str, str]:
    """Return a colour and a shape that agree with a red circle in both, in one, or in none."""
    colours = [colour for colour in COLOURS if colour != "red"]
    shapes = [shape for shape in SHAPES if shape != "circle"]
    keeps_colour = share == 1 or (share == 0.5 and bool(rng.integers(2)))
    keeps_shape = share == 1 or (share == 0.5 and not keeps_colour)
    return "red" if keeps_colour else str(rng.choice(colours)), "circle" if keeps_shape else str(rng.choice(shapes))
