"""An experiment for the study of DreamVideo-Omni: feedback of a latent reward of identity.

The reward says whether things stay what they are.
Clips show two things that move. Before training, the generator draws two clips of each of many prompts, and the rules
order them by identity: the share of frames in which each thing of the prompt is seen as what it is. A reward model, a
linear head on states of the generator's own last layers, learns from the pairs at low noise, and its gradient in
latents trains the generator (`latent_refl`). The rival imitates the better clips of the same pairs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from PIL import Image

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.rollout_request import RolloutRequest
from mmrl.workflows.train import train
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld import aligned_pictures
from mmrl_shapeworld.aligned_pictures import OrderedPairs, subset
from mmrl_shapeworld.checker import Reading, read
from mmrl_shapeworld.motion import DIRECTIONS, FAR, Motion, Move, judge_clip
from mmrl_shapeworld.scenes import BACKGROUND, picture_uri
from mmrl_shapeworld.splits import samples

Method = Literal["none", "imitation", "feedback"]
LEAST = 0.05
"""The least difference of identity that orders a pair."""
ROWS = 64
"""Clips that are drawn at once."""
SEEN = 60.0
"""The least difference of a channel from that of the background, of 255, by which a pixel belongs to a thing."""
UNSEEN = 64
"""Pairs on which a reward model is measured."""
QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000", "evaluation={prompts: 8, samples: 1}")


def identity_of(frames: Sequence[Image.Image], motion: Motion) -> float:
    """Return the share of frames, mean over things, in which the only thing of a kind is seen, in [0, 1]."""
    readings = [read(frame) for frame in frames]
    return float(np.mean([[_count(reading, move) == 1 for reading in readings] for move in motion.moves]))


def direction_of(frames: Sequence[Image.Image], motion: Motion) -> float:
    """Return the share of things that go their way from first to last frame, by their colours, in [0, 1]."""
    first, last = read(frames[0]), read(frames[-1])
    return float(np.mean([_goes(first, last, move) for move in motion.moves]))


def motion_of(frames: Sequence[Image.Image]) -> float:
    """Return how much things of all kinds move: 1 minus the IoU of successive silhouettes, in [0, 1]."""
    pixels = [np.asarray(frame.convert("RGB"), np.float32) for frame in frames]
    seen = [np.abs(frame - np.array(BACKGROUND)).max(axis=2) > SEEN for frame in pixels]
    return float(np.mean([1 - (a & b).sum() / max(1, (a | b).sum()) for a, b in pairwise(seen)]))


def _count(reading: Reading, move: Move) -> int:
    return sum((thing.colour, thing.shape) == (move.colour, move.shape) for thing in reading.things)


def _goes(first: Reading, last: Reading, move: Move) -> bool:
    places = [[(t.x, t.y) for t in reading.things if t.colour == move.colour] for reading in (first, last)]
    if not all(places):
        return False
    way = np.mean(places[1], axis=0) - np.mean(places[0], axis=0)
    return bool(way @ np.array(DIRECTIONS[move.direction]) >= FAR)


def identity_feedback(
    seed: int,
    method: Method = "none",
    on: str = "video-validation",
    prompts: int = 192,
    drawn: int = 640,
    pairs: int = 440,
    updates: int = 15,
    lr: float = 5e-6,
    jump: int = 3,
) -> dict[str, Sequence[float]]:
    """Return what clips of two things show after training.

    Args:
        seed: of the pairs that are learnt from, the training and the clips that are measured.
        method: the use of the pairs; none: the generator stays as it ships.
        on: the split of prompts.
        prompts: of two things, that are measured, with one clip each.
        drawn: prompts of which the generator draws two clips, once for all seeds.
        pairs: that are learnt from, drawn by chance from all that are ordered.
        updates: of the generator; with feedback three on each draw of 32 clips.
        lr: of its optimizer.
        jump: of `latent_refl`: the last steps, one of which is followed in an update.

    Returns:
        Of each clip: `identity`, `motion`, `direction` and `score`, the checker's partial credit; with feedback
        also `accuracy`, that of the reward model on pairs that it has not seen.
    """
    policy, found = _loaded(), dict[str, Sequence[float]]()
    if method != "none":
        every, frames = ordered_pairs(drawn)
        own = subset(every, pairs, seed)
        if method == "imitation":
            aligned_pictures.train(policy, "sft", own, seed, updates, lr, beta=0.0, temperature=1.0)
        else:
            with TemporaryDirectory() as folder:
                learnt = {sample.id for sample in own.samples}
                found["accuracy"] = [_feedback(policy, Path(folder), frames, learnt, seed, updates, lr, jump)]
    measured: dict[str, list[float]] = {"identity": [], "motion": [], "direction": [], "score": []}
    chosen = of_two(on)[:prompts]
    for start in range(0, len(chosen), ROWS):
        requests = [RolloutRequest(sample, 1, row) for row, sample in enumerate(chosen[start : start + ROWS])]
        with torch.no_grad():
            rollout = policy.rollout(requests, 100_000 * seed + start)
        for sample, frames in zip(rollout.samples, rollout.media, strict=True):
            motion = Motion.from_dict(sample.answer)
            measured["identity"].append(identity_of(frames, motion))
            measured["motion"].append(motion_of(frames))
            measured["direction"].append(direction_of(frames, motion))
            measured["score"].append(judge_clip(frames, motion).score)
    return {**found, **measured}


def of_two(split: str) -> list[Sample]:
    """Return the prompts of a split that name two things."""
    return [sample for sample in samples(split) if len(sample.answer["moves"]) == 2]


@cache
def ordered_pairs(drawn: int) -> tuple[OrderedPairs, list[Sample]]:
    """Return the ordered ones of all pairs that the generator draws, as latents, and as samples of frames."""
    policy, prompts = _loaded(), of_two("video-train")[:drawn]
    kept, frames, latents, values = list[Sample](), list[Sample](), [], []
    for start in range(0, len(prompts), ROWS // 2):
        rows = prompts[start : start + ROWS // 2]
        with torch.no_grad():
            rollout = policy.rollout([RolloutRequest(sample, 2, row) for row, sample in enumerate(rows)], start)
        assert rollout.clean is not None
        for row, sample in enumerate(rows):
            clips = rollout.media[2 * row : 2 * row + 2]
            scores = torch.tensor([identity_of(clip, Motion.from_dict(sample.answer)) for clip in clips])
            best = int(scores.argmax())
            if scores[best] - scores[1 - best] < LEAST:
                continue
            kept.append(sample)
            latents.append(rollout.clean[2 * row : 2 * row + 2][[best, 1 - best]])
            values.append(scores[[best, 1 - best]])
            chosen, rejected = ([picture_uri(frame) for frame in clips[number]] for number in (best, 1 - best))
            frames.append(Sample(id=sample.id, prompt=sample.prompt, chosen=chosen, rejected=rejected))
    return OrderedPairs(kept, torch.stack(latents), torch.stack(values)), frames


def _feedback(
    policy: PipelinePolicy,
    folder: Path,
    frames: Sequence[Sample],
    learnt: Collection[str],
    seed: int,
    updates: int,
    lr: float,
    jump: int,
) -> float:
    """Train a reward model on the pairs with ids in `learnt`, and the generator by it.

    Returns the accuracy of the reward model on the other pairs.
    """
    write_samples([pair for pair in frames if pair.id in learnt], folder / "pairs.jsonl")
    write_samples([pair for pair in frames if pair.id not in learnt][:UNSEEN], folder / "others.jsonl")
    write_samples(of_two("video-train"), folder / "prompts.jsonl")
    recipe = load_reward_recipe(
        "shapes-motions",
        [
            f"data={{path: '{folder / 'pairs.jsonl'}', validation: '{folder / 'others.jsonl'}'}}",
            "axes=[identity]",
            "encoder.layers=[up_blocks.0, up_blocks.1]",
            "encoder.noise={low: 0.05, high: 0.35, draws: 2}",
            "encoder.prompt_components=0",  # they are the same on both sides of a pair, which a linear head compares
            "head.hidden=0",
            "training.steps=1000",
            "training.weight_decay=1.0",
            f"seed={seed}",
        ],
    )
    model = train_reward(recipe, folder / "model")
    reward = f"{{name: learned_latents, args: {{model: '{model.folder}'}}}}"
    train(
        load_config(
            "shapes-video",
            [
                *QUIET,
                f"seed={seed}",
                f"run.dir={folder / 'run'}",
                f"algorithm={{name: latent_refl, jump: {jump}, levels: 2}}",
                f"rewards=[{reward}]",
                f"data={{path: '{folder / 'prompts.jsonl'}', validation: '{folder / 'prompts.jsonl'}', groups: 16, "
                "group_size: 2, micro_batch: 32}",
                f"optimizer.lr={lr}",
                f"training={{iterations: {updates // 3}, epochs: 3}}",
            ],
        ),
        policy=policy,
    )
    return float(model.quality.accuracy["identity"])


def _loaded() -> PipelinePolicy:
    """Return the generator as it ships."""
    config = load_config("shapes-video")
    policy = build_policy(config.policy, config.sampling, config.media)
    assert isinstance(policy, PipelinePolicy)
    return policy
