"""Trains the VLM of screens: the VLM of the worlds learns to click coloured buttons over several turns.

python -m tools.shapeworld_pretrain.vlm_screens train --out DIR
python -m tools.shapeworld_pretrain.vlm_screens measure --out DIR    # the numbers of docs/shapeworld.md

A row is an episode. First it is that of a sure hand, who goes astray now and then so that all screens occur, and only
its right clicks are learnt; then it is the careless annotator's, all of whose clicks are learnt.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrl.config.media import MediaConfig
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.worlds.button_environment import ButtonEpisode, ButtonScreens
from mmrl_shapeworld.worlds.button_screens import BACK, LENGTHS, ScreenTask, sample_task
from mmrl_shapeworld.worlds.button_splits import Annotator, careless, checksum, click_on, samples
from mmrl_shapeworld.worlds.disjoint_draws import SHARES
from mmrl_shapeworld.worlds.screens import SEEN_SKINS
from tools.shapeworld_pretrain.picture_episodes import PictureEpisode, PictureTurn, learn_episodes

EPISODES = 16
"""Episodes of a step."""
ASTRAY, TREMOR = 0.12, 1.0
"""The sure hand's share of clicks on other buttons, and the standard deviation of its clicks in pixels."""
NAMES = tuple(f"{colour} button" for colour in (*COLOURS, BACK))


def draw_task(rng: np.random.Generator) -> ScreenTask:
    """Return a task whose checksum is that of training data."""
    while True:
        task = sample_task(SEEN_SKINS, rng)
        if checksum(task) % 8 in SHARES["train"]:
            return task


def play(task: ScreenTask, annotator: Annotator, learns_all: bool) -> PictureEpisode:
    """Return the episode of an annotator. Unless all is learnt, right clicks alone are."""
    episode, turns = ButtonEpisode(task), []
    while True:
        screen, action = episode.screen, annotator(episode)
        stepped = episode.step(action)
        regions = tuple((f"{name} button", box) for name, box in screen.buttons)
        turns.append(PictureTurn(screen.picture, regions, action, learns_all or bool(stepped.info["hit"])))
        if stepped.observation is None:
            return PictureEpisode(task.prompt, tuple(turns))


def sure_hand(rng: np.random.Generator) -> Annotator:
    """Return an annotator who clicks near the middle of a right button, and now and then on another one."""

    def annotate(episode: ButtonEpisode) -> str:
        others = [name for name, _ in episode.screen.buttons if name != episode.wanted]
        strays = others and rng.random() < ASTRAY
        aimed = others[int(rng.integers(len(others)))] if strays else episode.wanted
        return click_on(episode, aimed, *rng.normal(0, TREMOR, 2))

    return annotate


def train(
    folder: Path,
    minutes: float,
    source: Path = VLM_WORLDS,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
    careless_from: float = 0.7,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is
    the share of the time after which episodes are the annotator's.
    """
    rng = np.random.default_rng(1000 + seed)

    def drawn(spent: float) -> list[PictureEpisode]:
        is_careless = spent > careless_from
        annotator = careless(rng) if is_careless else sure_hand(rng)
        return [play(draw_task(rng), annotator, is_careless) for _ in range(EPISODES)]

    learn_episodes(drawn, folder, minutes, source, NAMES, seed, muon, adamw)


@torch.no_grad()
def measure(folder: Path, split: str, greedy: bool, number: int = 256) -> dict[str, float]:
    """Return success for each number of clicks and in all, and the share of hits, over the first tasks of a split."""
    part = ModelPartConfig(train=True)
    config = VLMConfig(model=str(folder), device="cpu", train="full", vision=part, connector=part)
    policy = VLMPolicy.from_config(
        config, TokenSamplingConfig(temperature=0.0 if greedy else 1.0, max_new_tokens=8), MediaConfig()
    )
    policy.play_in(ButtonScreens())
    chosen = samples(split)[:number]
    outcomes: list[tuple[str, Mapping[str, Any]]] = []
    for begin in range(0, len(chosen), 128):
        requests = [RolloutRequest(each, 1, n) for n, each in enumerate(chosen[begin : begin + 128])]
        episodes = policy.rollout(requests, seed=begin).episodes or ()
        outcomes += [
            (request.sample.source or "", each.outcome) for request, each in zip(requests, episodes, strict=True)
        ]
    found = {}
    for length in LENGTHS:
        own = [outcome["success"] for source, outcome in outcomes if source == f"screens-{length}"]
        if own:
            found[f"{length} clicks"] = float(np.mean(own))
    found["all"] = float(np.mean([outcome["success"] for _, outcome in outcomes]))
    hits, clicks = (sum(outcome[key] for _, outcome in outcomes) for key in ("hits", "clicks"))
    return {**found, "hits": hits / clicks}


def main() -> None:
    """Train the model, or print the table of its episodes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--source", type=Path, default=VLM_WORLDS, help="folder of the model to go on from")
    parser.add_argument("--careless-from", type=float, default=0.7, help="share of the time on right clicks")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="screens-development", help="to measure on")
    parser.add_argument("--samples", type=int, default=256, help="of the split, to measure on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "train":
        rates = {"muon": 0.015 * args.rate, "adamw": 2e-3 * args.rate}
        train(args.out, args.minutes, args.source, args.seed, careless_from=args.careless_from, **rates)
        return
    for greedy in (False, True):
        values = measure(args.out, args.split, greedy, args.samples)
        listed = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
        print(f"{'greedy' if greedy else 'T = 1'}: {listed}", flush=True)


if __name__ == "__main__":
    main()
