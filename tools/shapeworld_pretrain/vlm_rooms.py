"""Trains the VLM of rooms: the VLM of the worlds learns to place blocks around a table, and to look at what it placed.

python -m tools.shapeworld_pretrain.vlm_rooms train --out DIR
python -m tools.shapeworld_pretrain.vlm_rooms measure --out DIR    # the numbers of docs/shapeworld.md

A row is an episode. First come single layouts of a sure hand, whose blocks lie near the expert's places, then three of
them, and last the three of the careless annotator of the training data (`mmrl_shapeworld.worlds.room_splits`), who
places blocks roughly and too near to the table, and halves the errors that the picture shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.worlds.disjoint_draws import SHARES, checksum_of
from mmrl_shapeworld.worlds.room_environment import TURNS, RoomEpisode
from mmrl_shapeworld.worlds.room_layouts import Room, boxes_of, draw_room, right_layout, sample_room
from mmrl_shapeworld.worlds.room_splits import Annotator, careless, written
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, UNSEEN_COLOURS
from tools.shapeworld_pretrain.picture_episodes import PictureEpisode, PictureTurn, learn_episodes

EPISODES = 24
"""Episodes of three layouts in a step; of single ones it has three times as many."""
SINGLE_UNTIL = 0.55
"""The share of the time on single layouts."""
TREMOR = 1.0
"""The standard deviation of the sure hand's places, in pixels."""
TABLE = "grey table"
NAMES = (TABLE, *(f"{colour} block" for colour in (*SEEN_COLOURS, *UNSEEN_COLOURS)))


def draw_seen_room(rng: np.random.Generator) -> Room:
    """Return a room whose checksum is that of training data."""
    while True:
        room = sample_room(rng)
        if checksum_of(room) % 8 in SHARES["train"]:
            return room


def play(room: Room, annotator: Annotator, layouts: int = TURNS) -> PictureEpisode:
    """Return an annotator's episode of a number of layouts."""
    episode, turns = RoomEpisode(room, max_turns=layouts), []
    while True:
        layout, action = episode.layout, annotator(episode)
        blocks = zip(room.blocks, boxes_of(room, layout), strict=True)
        regions = ((TABLE, room.table), *((f"{block.colour} block", box) for block, box in blocks))
        turns.append(PictureTurn(draw_room(room, layout), regions, action, True))
        if episode.step(action).observation is None:
            return PictureEpisode(room.prompt, tuple(turns))


def sure_hand(rng: np.random.Generator) -> Annotator:
    """Return an annotator who places blocks near the expert's places."""

    def annotate(episode: RoomEpisode) -> str:
        return written([tuple(rng.normal(place, TREMOR)) for place in right_layout(episode.room)])

    return annotate


def train(folder: Path, minutes: float, source: Path, seed: int, careless_from: float, rate: float) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `careless_from` is the share of the time after which episodes are the careless
    annotator's; `rate` scales the learning rates.
    """
    rng = np.random.default_rng(1100 + seed)

    def drawn(spent: float) -> list[PictureEpisode]:
        annotator = careless(rng) if spent > careless_from else sure_hand(rng)
        layouts = 1 if spent < SINGLE_UNTIL else TURNS
        return [play(draw_seen_room(rng), annotator, layouts) for _ in range(EPISODES * TURNS // layouts)]

    learn_episodes(drawn, folder, minutes, source, NAMES, seed, 0.015 * rate, 2e-3 * rate)


MEASURED = ("success", "score", "free", "related")


def measure(folder: Path, number: int) -> None:
    """Print the means of outcomes on the first rooms of a split, at temperature 1 and greedy, by number of turns."""
    print(f"| split | temperature | turns | {' | '.join(MEASURED)} |\n|{'-|' * (3 + len(MEASURED))}")
    for split in ("rooms-development", "rooms-ood"):
        for temperature in (1.0, 0.0):
            for turns in (1, 2, 3):
                values = [f"sampling.temperature={temperature}", f"environment.max_turns={turns}"]
                config = load_config("shapes-rooms", [f"policy.model={folder}", *values])
                policy = build_policy(config.policy, config.sampling, config.media, config.environment)
                requests = [RolloutRequest(sample, 1, group) for group, sample in enumerate(samples(split)[:number])]
                with torch.no_grad():
                    episodes = policy.rollout(requests, seed=0).episodes or []
                means = [np.mean([episode.outcome[name] for episode in episodes]) for name in MEASURED]
                listed = " | ".join(f"{mean:.3f}" for mean in means)
                print(f"| {split} | {temperature:g} | {turns} | {listed} |", flush=True)


def main() -> None:
    """Train the model, or print the table of its outcomes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--source", type=Path, default=VLM_WORLDS, help="folder of the model to go on from")
    parser.add_argument("--careless-from", type=float, default=0.8, help="share of the time of the sure hand")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", type=int, default=96, help="of each split, to measure on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "measure":
        measure(args.out, args.rooms)
        return
    train(args.out, args.minutes, args.source, args.seed, args.careless_from, args.rate)


if __name__ == "__main__":
    main()
