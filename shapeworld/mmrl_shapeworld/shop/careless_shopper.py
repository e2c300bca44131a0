"""Writers of the episodes that a model of the shop learns from: an expert, one who wanders, and a careless shopper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mmrl_shapeworld.shop.shop_environment import AGAIN, REFUSED, ShopEpisode, ShopTask

TAGS = ("plan", "explore", "reflect")


@dataclass(frozen=True)
class Shopper:
    """The habits of whoever shops; all are probabilities."""

    repeats: float = 0.0
    """A shelf is opened again that was opened before, if there is one."""
    strays: float = 0.0
    """A shelf is opened that the shop has not."""
    passes: float = 0.0
    """The wanted thing is left where it lies."""
    grabs: float = 0.0
    """Another thing than the wanted one is taken."""
    keeps: float = 0.0
    """A wrong thing in the hand is paid."""
    fumbles: float = 0.0
    """A shelf is opened with something in the hand, or something is taken twice."""
    mistags: float = 0.0
    """A turn has any tag."""
    wanders: float = 0.0
    """A shelf that was not opened is chosen at random; otherwise it is the first one of the prompt."""


EXPERT = Shopper()
WANDERER = Shopper(wanders=1.0)
CARELESS = Shopper(repeats=0.75, strays=0.08, passes=0.3, grabs=0.25, keeps=0.7, fumbles=0.2, mistags=0.5, wanders=0.2)


def shop(
    task: ShopTask, shopper: Shopper, rng: np.random.Generator, reflections: int = 0
) -> tuple[list[str], list[str], ShopEpisode]:
    """Return the turns of a shopper in a whole episode, the observations between them, and the episode."""
    episode, turns, seen = ShopEpisode(task, reflections), list[str](), list[str]()
    while True:
        action = _action(episode, shopper, rng, seen[-1] if seen else "")
        tag = _tag(action, seen) if rng.random() >= shopper.mistags else TAGS[int(rng.integers(len(TAGS)))]
        turns.append(f"<{tag}>{action}")
        observation = episode.step(turns[-1]).observation
        if observation is None:
            return turns, seen, episode
        seen.append(observation.text)


def _tag(action: str, seen: list[str]) -> str:
    """Return the tag that says what a turn is for: to look, to recover, or to do what was planned."""
    if (seen and seen[-1] in (REFUSED, AGAIN)) or action == "put":
        return "reflect"
    return "explore" if seen and action.startswith("open") else "plan"


def _action(episode: ShopEpisode, shopper: Shopper, rng: np.random.Generator, last: str) -> str:
    task = episode.task
    if episode.in_hand >= 0:
        if rng.random() < shopper.fumbles and last not in (REFUSED, AGAIN):
            return f"open {task.shelves[int(rng.integers(len(task.shelves)))]}"
        return "pay" if episode.in_hand == episode.right or rng.random() < shopper.keeps else "put"
    if episode.at >= 0 and last != "put":
        item = task.items[episode.at]
        if item == task.wanted:
            if rng.random() >= shopper.passes:
                return "take"
        elif rng.random() < shopper.grabs:
            return "take"
    new = [shelf for place, shelf in enumerate(task.shelves) if place not in episode.opened]
    old = [shelf for place, shelf in enumerate(task.shelves) if place in episode.opened]
    if episode.right in episode.opened and rng.random() >= shopper.passes:
        return f"open {task.shelves[episode.right]}"  # back to what was passed by
    if rng.random() < shopper.strays:
        return f"open {int(rng.integers(10))}"
    if old and (not new or rng.random() < shopper.repeats):
        return f"open {old[int(rng.integers(len(old)))]}"
    return f"open {new[int(rng.integers(len(new)))] if rng.random() < shopper.wanders else new[0]}"
