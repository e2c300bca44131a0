"""Trains the VLM that searches stacks of pages: the VLM of the worlds imitates whole episodes, on all turns at once.

python -m tools.shapeworld_pretrain.vlm_pages train --out DIR
python -m tools.shapeworld_pretrain.vlm_pages measure --out DIR    # the numbers of docs/shapeworld.md

First come the traces of an annotator who makes no mistake but draws boxes by hand, so that letters are read wherever a
cut has them, and last those of the careless annotator of the training data (`mmrl_shapeworld.worlds.page_splits`). Each
picture is learnt from directly, too, as in `tools.shapeworld_pretrain.vlm_hints`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import Box, Question, Region
from mmrl_shapeworld.worlds.disjoint_draws import SHARES, checksum_of
from mmrl_shapeworld.worlds.page_environment import PageStackEpisode
from mmrl_shapeworld.worlds.page_splits import Annotator, careless, tidy
from mmrl_shapeworld.worlds.page_stacks import COLOURS, SHAPES, PageStack, sample_stack
from mmrl_shapeworld.worlds.zoom_splits import small_box
from tools.shapeworld_pretrain.steps import advance, set_rate_by_time
from tools.shapeworld_pretrain.vlm import build_optimizers
from tools.shapeworld_pretrain.vlm_batches import GRID, look
from tools.shapeworld_pretrain.vlm_hints import Hints, targets
from tools.shapeworld_pretrain.vlm_worlds import REGION_NAMES

EPISODES = 40
"""Episodes of a step."""
UNSEEN = 1 / 6
"""The share of stacks with headers of colours and shapes that training never shows."""


@dataclass(frozen=True)
class PlayedEpisode:
    """The actions and pictures of an episode, and the places of things in the pictures."""

    prompt: str
    actions: tuple[str, ...]
    pictures: tuple[NDArray[np.uint8], ...]  # [56, 56, 3] each, one between two actions
    regions: tuple[tuple[Region, ...], ...]


def draw_stack(rng: np.random.Generator) -> PageStack:
    """Return a stack whose checksum is that of training data."""
    while True:
        stack = sample_stack(rng, COLOURS, SHAPES) if rng.random() < UNSEEN else sample_stack(rng)
        if checksum_of(stack) % 8 in SHARES["train"]:
            return stack


def play(stack: PageStack, annotator: Annotator) -> PlayedEpisode:
    """Return an annotator's episode."""
    episode = PageStackEpisode(stack)
    actions: list[str] = []
    pictures: list[NDArray[np.uint8]] = []
    regions: list[tuple[Region, ...]] = []
    while True:
        actions.append(annotator(episode))
        observation = episode.step(actions[-1]).observation
        if observation is None:
            return PlayedEpisode(stack.prompt, tuple(actions), tuple(pictures), tuple(regions))
        pictures.append(np.asarray(observation.images[0]))
        regions.append(regions_of(episode))


def regions_of(episode: PageStackEpisode) -> tuple[Region, ...]:
    """Return what the last picture of an episode shows, and where."""
    stack = episode.stack
    if episode.opened is None:
        boxes = stack.sheet(episode.sheet)[1]
        return tuple((" ".join(stack.headers[n]), box) for n, box in zip(episode.sheet, boxes, strict=True))
    page = stack.page(episode.opened)
    if episode.cut is None:
        return tuple((f"{colour} square", small_box(page, n)) for n, colour in enumerate(page.colours))
    places = [(letter, _inside(box, episode.cut)) for letter, box in zip(page.letters, page.letter_boxes, strict=True)]
    return tuple((letter, box) for letter, box in places if box is not None)


def _inside(box: Box, cut: Box) -> Box | None:
    """Return the part of a box that a cut shows, in pixels of the enlarged cut; None if it shows none."""
    left, top, side = cut[0], cut[1], cut[2] - cut[0]
    x1, x2 = (min(max((x - left) * PIXELS // side, 0), PIXELS) for x in (box[0], box[2]))
    y1, y2 = (min(max((y - top) * PIXELS // side, 0), PIXELS) for y in (box[1], box[3]))
    return (x1, y1, x2, y2) if x2 > x1 and y2 > y1 else None


class EpisodeBatches:
    """The tokens and pictures of episodes, as the policy of a run would have them."""

    def __init__(self, model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor) -> None:
        self.model, self.words = model, processor.tokenizer
        turns = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "?"},
            {"role": "user", "content": [{"type": "image"}]},
        ]
        text = processor.apply_chat_template(turns, add_generation_prompt=True)
        inputs = processor(text=[text], images=[Image.new("RGB", (PIXELS, PIXELS))], return_tensors="pt")
        ids, mark = inputs["input_ids"][0].tolist(), self.words.convert_tokens_to_ids("?")
        first = ids.index(mark)
        second = ids.index(mark, first + 1)
        self.before, self.between, self.after = ids[:first], ids[first + 1 : second], ids[second + 2 :]
        self.grid = inputs["image_grid_thw"]

    def losses(self, episodes: Sequence[PlayedEpisode], hints: Hints) -> tuple[Tensor, Tensor]:  # [B], []
        """Return the negative log-likelihood of each episode's actions, in nats, and the loss of the hints."""
        ids, learnt = self._ids(episodes)
        types = (ids == self.model.config.image_token_id).int()
        pictures = [picture for episode in episodes for picture in episode.pictures]
        positions, _ = self.model.model.get_rope_index(
            ids,
            types,
            image_grid_thw=self.grid.expand(len(pictures), 3),
            attention_mask=(ids != self.words.pad_token_id).long(),
        )
        seen = look(self.model.model.visual, rgb_patches(np.stack(pictures)))
        looks = [
            Question("", "", "", "", (), regions=(regions,)) for episode in episodes for regions in episode.regions
        ]
        hint = hints(seen.pooler_output[0], *targets(looks, REGION_NAMES))
        states = self.model.model(
            input_ids=ids, position_ids=positions, mm_encoder_outputs={"image": seen}, use_cache=False
        ).last_hidden_state
        is_own = learnt[:, 1:]
        losses = F.cross_entropy(self.model.lm_head(states[:, :-1][is_own]), ids[:, 1:][is_own], reduction="none")
        return torch.zeros(len(episodes)).index_add(0, is_own.nonzero()[:, 0], losses), hint

    def _ids(self, episodes: Sequence[PlayedEpisode]) -> tuple[Tensor, Tensor]:  # [B, T] int64, [B, T] bool
        end = self.words.eos_token_id
        rows, own = [], []
        for episode in episodes:
            row = [*self.before, *self.words(episode.prompt).input_ids, *self.between]
            is_own = [False] * len(row)
            for number, action in enumerate(episode.actions):
                action_ids = [*self.words(action).input_ids, end]
                observation = self.after if number < len(episode.actions) - 1 else []
                row += [*action_ids, *observation]
                is_own += [True] * len(action_ids) + [False] * len(observation)
            rows.append(torch.tensor(row))
            own.append(torch.tensor(is_own))
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.words.pad_token_id)
        return ids, nn.utils.rnn.pad_sequence(own, batch_first=True)


def rgb_patches(pictures: NDArray[np.uint8]) -> Tensor:  # [N, 56, 56, 3] -> [N, 64, 3 · 2 · 49]
    """Return pictures as the processor prepares them: in patches, four of a square after one another, each twice."""
    scaled = torch.from_numpy(pictures).float() / 127.5 - 1
    half, merge, patch = GRID // vlm_model.MERGE, vlm_model.MERGE, vlm_model.PATCH
    cut = scaled.reshape(-1, half, merge, patch, half, merge, patch, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return cut.unsqueeze(6).expand(*cut.shape[:6], 2, patch, patch).reshape(len(pictures), GRID * GRID, -1)


def train(
    folder: Path,
    minutes: float,
    source: Path = VLM_WORLDS,
    seed: int = 0,
    muon: float = 0.015,
    adamw: float = 2e-3,
    careless_from: float = 0.75,
    language_alone: bool = False,
) -> None:
    """Train for a number of minutes of processor time, and save model and processor.

    `source` is the folder to go on from; `muon` and `adamw` are learning rates, which fall to zero; `careless_from` is
    the share of the time after which episodes are the careless annotator's; `language_alone` leaves the vision tower as
    it is, so that habits are learnt, and pictures are seen as before.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(900 + seed)
    processor = vlm_model.processor(of_worlds=True)
    model = Qwen3VLForConditionalGeneration.from_pretrained(source)
    processor.save_pretrained(folder)
    batches, hints = EpisodeBatches(model, processor), Hints(vlm_model.VLMSize().width, REGION_NAMES)
    model.model.visual.requires_grad_(not language_alone)
    trained = model.model.language_model if language_alone else nn.ModuleList([model, hints])
    optimizers = build_optimizers(trained, muon, adamw)
    started, step, spent = time.process_time(), 0, 0.0
    running: dict[str, float] = {}
    model.train()
    while spent < 1:
        spent = (time.process_time() - started) / (60 * minutes)
        set_rate_by_time(optimizers, step, spent)
        annotator = careless(rng) if spent > careless_from else tidy(rng)
        losses, hint = batches.losses([play(draw_stack(rng), annotator) for _ in range(EPISODES)], hints)
        (losses.mean() / 3 + (0.0 if language_alone else 0.5 * hint)).backward()
        for name, value in (("episodes", losses.mean()), ("hints", hint)):
            running[name] = 0.95 * running.get(name, value.item()) + 0.05 * value.item()
        advance(optimizers, model)
        step += 1
        if step % 50 == 0:
            summary = " ".join(f"{name} {value:.3f}" for name, value in running.items())
            print(f"pages step {step} ({spent:.0%}) {summary}", flush=True)
            model.save_pretrained(folder)
    model.eval().save_pretrained(folder)


MEASURED = ("success", "recall", "retrieval", "selection", "iou", "hit", "redundant")


def measure(folder: Path, stacks: int) -> None:
    """Print the means of outcomes on the first stacks of a split, at temperature 1 and greedy."""
    print(f"| split | temperature | {' | '.join(MEASURED)} | calls | read where cut |\n|{'-|' * (4 + len(MEASURED))}")
    for split in ("pages-development", "pages-ood"):
        for temperature in (1.0, 0.0):
            config = load_config("shapes-pages", [f"policy.model={folder}", f"sampling.temperature={temperature}"])
            policy = build_policy(config.policy, config.sampling, config.media, config.environment)
            requests = [RolloutRequest(sample, 1, group) for group, sample in enumerate(samples(split)[:stacks])]
            with torch.no_grad():
                episodes = policy.rollout(requests, seed=0).episodes or []
            outcomes = [episode.outcome for episode in episodes]
            values = [float(np.mean([outcome[name] for outcome in outcomes])) for name in (*MEASURED, "calls")]
            values.append(float(np.mean([outcome["success"] for outcome in outcomes if outcome["hit"]] or [np.nan])))
            print(f"| {split} | {temperature:g} | {' | '.join(f'{value:.3f}' for value in values)} |", flush=True)


def main() -> None:
    """Train the model, or print the table of its outcomes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["train", "measure"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--source", type=Path, default=VLM_WORLDS, help="folder of the model to go on from")
    parser.add_argument(
        "--careless-from", type=float, default=0.75, help="share of the time on traces without mistakes"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--language-alone", action="store_true", help="leave the vision tower as it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stacks", type=int, default=256, help="of each split, to measure on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "measure":
        measure(args.out, args.stacks)
        return
    rates = {"muon": 0.015 * args.rate, "adamw": 2e-3 * args.rate}
    train(
        args.out,
        args.minutes,
        args.source,
        args.seed,
        careless_from=args.careless_from,
        language_alone=args.language_alone,
        **rates,
    )


if __name__ == "__main__":
    main()
