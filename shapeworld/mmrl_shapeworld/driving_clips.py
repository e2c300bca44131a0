"""Clips of a road with a mark and, sometimes, a person who comes closer, for the study of DriveVLM-RL.

The car is the yellow square and the mark the green triangle: left of it, the car is on its own side, which one frame
shows. The person is the red circle: whether it comes closer, several frames show. A suite of three scorers is compared
with the truth: CLIP's contrast on the last frame, a detector of persons on the last frame, and a judge of all frames.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.rewards import Reward, RewardInput, RewardSuite, Status, WeightedReward
from mmrl.rewards.core.executor import Condition
from mmrl.rewards.models.clip_rewards import GoalContrast
from mmrl.studies.scoring import LabelledAnswers, statistic
from mmrl.studies.study import DecideConfig
from mmrl_shapeworld import observer
from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.scenes import COLOURS, Scene, Thing, draw
from mmrl_shapeworld.shipped_models import CLIP

COUNT, FRAMES, SIDE = 120, 4, 32
WITH_PERSON = 0.25
"""The share of clips with a person, half of whom come closer."""
NOISE = 8.0
"""The standard deviation of the noise of every pixel, of 255."""
DETECTED = 0.3
"""The probability from which on a person is detected: a miss costs more than a call."""
CLOSER = 0.06
"""The distance by which a person must come closer to be a risk, as a share of the picture's side."""
OWN_SIDE, OTHER_SIDE = "a yellow square left of a green triangle", "a yellow square right of a green triangle"


class PersonDetector(Reward):
    """The observer's probability that the picture has a red circle, in [0, 1]: a light detector of one frame."""

    name, needs, range = "person", ("image",), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        seen = observer.load()(observer.tensor(item.image)[None])[0]  # [kinds, counts]
        return float(1 - seen[KINDS.index(("red", "circle")), 0].exp())


class ApproachRisk(Reward):
    """1 if the red circle comes closer to the yellow square over the frames of a clip, else 0; lower is better.

    It stands for a large model: it remembers how many clips it was called for.
    """

    name, needs, range, direction = "risk", ("video",), (0.0, 1.0), "lower"

    def __init__(self) -> None:
        self.calls = 0

    def score_one(self, item: RewardInput) -> float:
        self.calls += 1
        distances = [_distance(frame) for frame in item.video]
        known = [each for each in distances if each is not None]
        return float(len(known) > 1 and known[0] - known[-1] > CLOSER)


@cache
def driving_clips(seed: int) -> LabelledAnswers:
    """Return clips whose truth is 1 on the own side and 0 on the other, less 1 with a person who comes closer."""
    rng = np.random.default_rng((seed, 19))
    inputs, truth = [], []
    for number in range(COUNT):
        frames, value = _clip(rng)
        inputs.append(RewardInput(f"{seed}-{number}", 0, OWN_SIDE, image=frames[-1], video=frames))
        truth.append(value)
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.array(truth))


def driving_rewards(seed: int, judged: Literal["detected", "all", "none"]) -> dict[str, list[float]]:
    """Return how well a total follows the truth, and the share of clips that the judge was called for.

    Args:
        judged: the clips that the judge sees: those with a detected person, `all` or `none`.

    Returns:
        `correlation`: Spearman's, of the total and the truth; `calls`: the share of clips.
    """
    answers, judge = driving_clips(seed), ApproachRisk()
    parts: list[Any] = [WeightedReward(_side_contrast(), 2.0)]
    if judged == "all":
        parts.append(WeightedReward(judge))
    elif judged == "detected":
        parts.append(WeightedReward(PersonDetector(), 0.0))
        parts.append(WeightedReward(judge, after={"person": DETECTED}, counts_if=Condition("person", DETECTED)))
    suite = RewardSuite(parts)
    output = suite.score(answers.inputs)
    suite.close()
    assert all(status in (Status.OK, Status.STOPPED) for column in output.status.values() for status in column)
    total = output.values["total"].astype(np.float64)
    correlation = statistic(total, answers.truth, DecideConfig(statistic="correlation"))
    return {"correlation": correlation.tolist(), "calls": [judge.calls / COUNT]}


@cache
def _side_contrast() -> GoalContrast:
    return GoalContrast(OTHER_SIDE, OWN_SIDE, model=str(CLIP), device="cpu")


def _clip(rng: np.random.Generator) -> tuple[list[Image.Image], float]:
    """Return the frames of a clip and its truth; the car drives up by a little."""
    on_side, person = bool(rng.integers(2)), bool(rng.random() < WITH_PERSON)
    comes, tree = bool(rng.integers(2)), bool(rng.integers(2))
    car_x, mark_x = rng.uniform(0.2, 0.4), rng.uniform(0.6, 0.8)
    if not on_side:
        car_x, mark_x = mark_x, car_x
    car_y, mark_y = rng.uniform(0.68, 0.82), rng.uniform(0.68, 0.82)
    far, near = rng.uniform(0.12, 0.18), rng.uniform(0.36, 0.44)
    heights = np.linspace(far, near, FRAMES) if comes else np.linspace(near, far, FRAMES)
    x, size = rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.3)
    frames = []
    for number in range(FRAMES):
        things = [
            Thing("yellow", "square", car_x, car_y - 0.01 * number, 0.25),
            Thing("green", "triangle", mark_x, mark_y, 0.25),
        ]
        if person:
            things.append(Thing("red", "circle", x, float(heights[number]), size))
        if tree:
            things.append(Thing("blue", "circle", 0.12 if x > 0.5 else 0.88, 0.2, 0.22))
        pixels = np.asarray(draw(Scene(tuple(things)), SIDE), np.float32) + rng.normal(0, NOISE, (SIDE, SIDE, 3))
        frames.append(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)))
    return frames, float(on_side) - float(person and comes)


def _distance(frame: Image.Image) -> float | None:
    """Return the distance of the red and the yellow pixels' centres as a share of the side; None without one."""
    pixels = np.asarray(frame, np.float32)
    centres = [_centre(pixels, colour) for colour in ("red", "yellow")]
    if centres[0] is None or centres[1] is None:
        return None
    return float(np.linalg.norm(centres[0] - centres[1])) / SIDE


def _centre(pixels: NDArray[np.float32], colour: str) -> NDArray[np.float64] | None:
    near = np.linalg.norm(pixels - np.array(COLOURS[colour], np.float32), axis=-1) < 60
    places = np.argwhere(near)
    return places.mean(0) if len(places) >= 6 else None
