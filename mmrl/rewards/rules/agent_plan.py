"""A reward for plans of several agents at three levels: who acts, in which steps, and along which points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import answer_text, resolve_form

Level = Literal["agents", "steps", "points"]
MAX_CHARACTERS, MAX_POINTS = 10_000, 200
"""The number of characters and of points above which an answer is invalid."""

Point = tuple[float, float]


class AgentPlan(Reward):
    """The weighted mean over levels of what is right, in [0, 1]: agents, steps and points; and each level by itself.

    An answer has three parts, separated by semicolons: the agents, the steps in order, the points of the trajectory, as
    in `robot, dog; walk, grasp; 12, 34, 20, 30`. Parts that are missing score 0. `agents_right` is the Jaccard
    similarity of the two sets of agents; `steps_right` is the length of the common beginning of both plans over that of
    the longer; `points_right` is 1 - d / `limit`, at least 0, with d the discrete Fréchet distance of the trajectories.
    `plan_right` is 1 for the true agents and steps, and with `final: true` the reward is 1 for these with a trajectory
    nearer than `limit`, else 0.

    `references["answer"]` is {"agents": [...], "steps": [...], "points": [[x, y], ...]}. VIKI-R (arXiv:2506.09049)
    rewards the activation of agents, plans and trajectories in three tasks, and has other measures of the last.
    """

    name, needs, range = "agent_plan", ("text", "references.answer"), (0.0, 1.0)
    source = "VIKI-R, arXiv:2506.09049"

    def __init__(self, limit: float, weights: Mapping[Level, float] | None = None, final: bool = False) -> None:
        """
        Args:
            limit: the distance of trajectories from which on points score 0, in the units of the answer.
            weights: of the levels; those that are not named have 0. None means 1 for each.
            final: reward the whole answer alone.
        """
        if not (math.isfinite(limit) and limit > 0):
            raise RewardError(f"agent_plan: limit is {limit}; a distance is above 0 and finite")
        self.weights = dict.fromkeys(get_args(Level), 1.0) if weights is None else dict(weights)
        if not self.weights.keys() <= set(get_args(Level)) or not sum(self.weights.values()) > 0:
            levels = ", ".join(get_args(Level))
            raise RewardError(f"agent_plan: weights is {weights!r}; expected weights of {levels}, with a sum above 0")
        if any(weight < 0 for weight in self.weights.values()):
            raise RewardError(f"agent_plan: weights is {weights!r}; a weight is 0 or above")
        self.limit, self.final = limit, final

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        true = _truth(item.references["answer"])
        text = answer_text(item.text or "", resolve_form(item))
        if len(text) > MAX_CHARACTERS:
            raise InvalidAnswer(f"the answer has {len(text)} characters; a plan is read up to {MAX_CHARACTERS}")
        agents, steps, points = _parts(text)
        right = {
            "agents": _jaccard(agents, true[0]),
            "steps": _common_beginning(steps, true[1]) / max(len(steps), len(true[1])),
            "points": max(0.0, 1 - frechet(points, true[2]) / self.limit) if points else 0.0,
        }
        planned = float(right["agents"] == 1 and right["steps"] == 1)
        mean = sum(weight * right[level] for level, weight in self.weights.items()) / sum(self.weights.values())
        value = planned * (right["points"] > 0) if self.final else mean
        return {self.name: value, "plan_right": planned} | {f"{level}_right": each for level, each in right.items()}


def frechet(first: Sequence[Point], second: Sequence[Point]) -> float:
    """Return the discrete Fréchet distance of two trajectories of one point or more.

    The shortest leash with which two walkers can go along both, point by point and never back (Eiter and Mannila 1994).

    >>> frechet([(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)])
    1.4142135623730951
    """
    row: list[float] = []
    for i, here in enumerate(first):
        before, row = row, []
        for j, there in enumerate(second):
            ways = [before[j]] if i else []
            ways += [row[j - 1]] if j else []
            ways += [before[j - 1]] if i and j else []
            row.append(max(math.dist(here, there), min(ways, default=0.0)))
    return row[-1]


def _parts(text: str) -> tuple[list[str], list[str], list[Point]]:
    parts = [[word.strip().casefold() for word in part.split(",") if word.strip()] for part in text.split(";")]
    if len(parts) > 3:
        raise InvalidAnswer(f"the answer has {len(parts)} parts; expected agents; steps; points")
    agents, steps, numbers = [*parts, [], []][:3]
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if len(values) > 2 * MAX_POINTS or not all(map(math.isfinite, values)):
        raise InvalidAnswer(f"the trajectory has numbers that are none, or more than {MAX_POINTS} points")
    points = list(zip(values[::2], values[1::2], strict=True)) if len(values) % 2 == 0 else []
    return agents, steps, points


def _jaccard(named: Sequence[str], true: Sequence[str]) -> float:
    """Return the size of the intersection over that of the union; an agent that is named twice is one too many."""
    both = len(set(named) & set(true))
    return both / (len(named) + len(set(true)) - both)


def _common_beginning(first: Sequence[str], second: Sequence[str]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _truth(answer: Any) -> tuple[list[str], list[str], list[Point]]:
    message = f"references['answer'] is {answer!r:.80}; expected agents, steps and points"
    if not isinstance(answer, Mapping) or not all(answer.get(key) for key in get_args(Level)):
        raise ScoringFailed(message, "reference")
    try:
        agents, steps = ([str(each).strip().casefold() for each in answer[key]] for key in ("agents", "steps"))
        points = [(float(x), float(y)) for x, y in answer["points"]]
    except (TypeError, ValueError) as err:
        raise ScoringFailed(message, "reference") from err
    if len(points) > MAX_POINTS or not all(map(math.isfinite, (value for point in points for value in point))):
        raise ScoringFailed(message, "reference")
    return agents, steps, points
