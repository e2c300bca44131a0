"""Data sets of rooms, their expert, and the traces of a careless annotator.

`shapeworld:rooms-train`, `-development`, `-validation`, and `-ood`, in whose rooms one block has an unseen colour. As
rooms follow from the actions, the actions alone are a demonstration: `{"turns": ["12, 34, 40, 20, 30, 50", ...]}`.
`shapeworld:rooms-clean-train` has the rooms of training with the expert's first turn, for learning where a table is.

The first picture of `shapeworld:rooms-bare-train`, `-development` and `-validation` is the heap without the table,
which only the renders of layouts show. The first layout of their annotator is around the middle of the room, or in
`shapeworld:rooms-bare-once-train` the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa.canvas import PIXELS, Picture, png_uri
from mmrl_shapeworld.worlds.disjoint_draws import draw_disjoint
from mmrl_shapeworld.worlds.room_environment import TURNS, RoomEpisode
from mmrl_shapeworld.worlds.room_layouts import SIDES, Room, draw_room, right_layout, sample_room

SIZES = {"train": 2000, "development": 256, "validation": 512, "ood": 512}
"""Rooms of each split. Settings are chosen on `development`; `validation` and `ood` are for results."""
CLEAN = "rooms-clean-train"
BARE = tuple(f"rooms-bare-{part}" for part in ("train", "development", "validation"))
ONCE = "rooms-bare-once-train"
NAMES = (*(f"rooms-{part}" for part in SIZES), CLEAN, *BARE, ONCE)
BARE_TURNS = 2
"""The turns of a demonstration of `rooms-bare-train`: one before and one after the table is seen."""
NEAR = 2.0
"""Pixels by which the annotator places blocks too near to the table, so that they often cover it."""
SPREAD, SPREAD_AGAIN = 3.5, 1.5
"""Standard deviations of the annotator's first places and of later ones, in pixels."""
KEPT = 0.5
"""The share of an error that is left after the annotator has seen it."""
_SEED = 87

Annotator = Callable[[RoomEpisode], str]


@cache
def rooms(split: str) -> tuple[Room, ...]:
    """Return the rooms of a split, always the same.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of rooms: choose one of {', '.join(NAMES)}")
    if split == CLEAN:
        return rooms("rooms-train")
    if split == ONCE:
        return rooms(BARE[0])
    part = split.rpartition("-")[2]
    rng = np.random.default_rng((_SEED, list(SIZES).index(part) + (10 if split in BARE else 0)))
    return draw_disjoint(part, SIZES[part], lambda _: sample_room(rng, unseen=part == "ood"))


@cache
def _samples(split: str) -> tuple[Sample, ...]:
    rng = np.random.default_rng((_SEED, len(SIZES)))
    return tuple(
        Sample(
            id=f"{split}-{number:04d}",
            prompt=room.prompt,
            images=(png_uri(_bare(room) if split in (*BARE, ONCE) else draw_room(room, room.heap)),),
            answer=room.as_dict(),
            source="rooms",
            demonstration=_demonstration(split, room, rng),
        )
        for number, room in enumerate(rooms(split))
    )


def samples(split: str) -> list[Sample]:
    """Return a split as data; training data have the turns of the careless annotator as demonstrations.

    Raises:
        KeyError: there is no such split.
    """
    return list(_samples(split))


def expert(episode: RoomEpisode) -> str:
    """Return the layout with each block beside the middle of its side of the table."""
    return written(right_layout(episode.room))


def careless(rng: np.random.Generator, bare: bool = False) -> Annotator:
    """Return an annotator who places blocks roughly and too near, and halves the errors that a picture shows.

    With `bare`, the first picture shows no table: the first places are around the middle of the room, and the second
    ones are as rough as those of one who sees it for the first time.
    """

    def annotate(episode: RoomEpisode) -> str:
        turn = episode.turns
        if bare and turn == 0:
            return written(right_layout(_in_the_middle(episode.room)))
        first = turn == (1 if bare else 0)
        places = []
        for block, (x, y), now in zip(episode.room.blocks, right_layout(episode.room), episode.layout, strict=True):
            right, down = SIDES[block.side]
            aim = x - NEAR * right, y - NEAR * down
            noise = rng.normal(0.0, SPREAD if first else SPREAD_AGAIN, 2)
            kept = 0.0 if first else KEPT
            places.append(tuple(a + kept * (n - a) + e for a, n, e in zip(aim, now, noise, strict=True)))
        return written(places)

    return annotate


def trace(room: Room, annotator: Annotator, turns: int = TURNS) -> tuple[str, ...]:
    """Return the actions of an annotator in an episode of at most `turns` turns."""
    episode = RoomEpisode(room, max_turns=turns)
    actions: list[str] = []
    while True:
        actions.append(annotator(episode))
        if episode.step(actions[-1]).observation is None:
            return tuple(actions)


def _demonstration(split: str, room: Room, rng: np.random.Generator) -> dict[str, list[str]] | None:
    if split == CLEAN:
        return {"turns": [expert(RoomEpisode(room))]}
    if split in (BARE[0], ONCE):
        return {"turns": list(trace(room, careless(rng, bare=True), 1 if split == ONCE else BARE_TURNS))}
    return {"turns": list(trace(room, careless(rng)))} if split == "rooms-train" else None


def _bare(room: Room) -> Picture:
    """Return [56, 56]: the heap alone."""
    return draw_room(replace(room, table=(0, 0, 0, 0)), room.heap)


def _in_the_middle(room: Room) -> Room:
    """Return the room with its table in the middle."""
    x1, y1, x2, y2 = room.table
    left, top = (PIXELS - (x2 - x1)) // 2, (PIXELS - (y2 - y1)) // 2
    return replace(room, table=(left, top, left + x2 - x1, top + y2 - y1))


def written(places: Sequence[Sequence[float]]) -> str:
    """Return places as an action, in whole pixels of the room."""
    return ", ".join(str(min(max(round(value), 0), PIXELS)) for place in places for value in place)
