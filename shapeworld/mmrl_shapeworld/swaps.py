"""Things to swap in a clip: one of two moving things becomes another, which a reference picture shows.

A mask marks the thing in one frame of the source clip, or in all of them; no text says anything. The new thing must
move as the old one did, and all else must stay. Rules judge a clip by the motion of its source.

`shapeworld:swap-train`, `swap-development` and `swap-validation` have a mask in one frame, `swap-validation-masked` and
`swap-development-masked` the same swaps with masks in all frames.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.data.media.uris import data_uri
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.captions import SEEN_KINDS, Kind
from mmrl_shapeworld.checker import Seen, read
from mmrl_shapeworld.motion import FRAMES, PIXELS, draw_clip, sample_clip, sample_motion
from mmrl_shapeworld.scenes import Scene, Thing, draw, picture_uri, thing_mask
from mmrl_shapeworld.similarity import dilate
from mmrl_shapeworld.task_rewards import moving_frames

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 0.12
"""The largest distance of a thing from its place, in shares of the picture's side, at which it is the thing."""
SIZE = 0.12
"""The largest difference of its side."""
LEAKS = 0.4
"""The share of pairs of clips whose new thing keeps the old one's colour or shape."""
MASKED = "-masked"
"""The end of the name of a split with masks in all frames."""
SPLITS = {"swap-train": (91, 512), "swap-development": (92, 128), "swap-validation": (93, 256)}
"""Seed and size of each split; settings are chosen on development, validation is for results."""
NAMES = (*SPLITS, *(f"{name}{MASKED}" for name in SPLITS))


@dataclass(frozen=True)
class Swap:
    """A source clip, the number of the thing that goes, what comes, and the frame in which a mask marks the former."""

    source: tuple[Scene, ...]  # one scene a frame, with the same things in the same order
    which: int
    kind: Kind  # colour and shape of the new thing
    marked: int
    portrait: Thing  # the new thing in its reference picture

    def __str__(self) -> str:
        thing = self.source[0].things[self.which]
        return f"{thing.colour} {thing.shape} to {self.kind[0]} {self.kind[1]}"

    @property
    def wanted(self) -> tuple[Thing, ...]:
        """The new thing in each frame."""
        colour, shape = self.kind
        return tuple(replace(scene.things[self.which], colour=colour, shape=shape) for scene in self.source)

    @property
    def target(self) -> tuple[Scene, ...]:
        """The scenes after the swap."""
        return tuple(
            Scene(tuple(new if place == self.which else thing for place, thing in enumerate(scene.things)))
            for scene, new in zip(self.source, self.wanted, strict=True)
        )

    def masks(self, all_frames: bool = False) -> list[NDArray[np.bool_]]:
        """[pixels, pixels] for each frame: True on the thing that goes, in the marked frame or in all."""
        found = [thing_mask(scene.things[self.which], PIXELS) for scene in self.source]
        return [mask if all_frames or frame == self.marked else mask & False for frame, mask in enumerate(found)]

    def conditions(self, all_frames: bool = False) -> dict[str, Any]:
        """Return the clip, its masks and the reference picture, for `Sample.conditions`."""
        masks = [Image.fromarray(mask).convert("L") for mask in self.masks(all_frames)]
        return {
            "video": _gif_uri(draw_clip(self.source)),
            "mask": [picture_uri(mask) for mask in masks],
            "reference_images": [picture_uri(draw(Scene((self.portrait,))))],
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {
            "source": [[vars(thing) for thing in scene.things] for scene in self.source],
            "which": self.which,
            "kind": list(self.kind),
            "marked": self.marked,
            "portrait": vars(self.portrait),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Swap:
        """Return the swap of `as_dict`."""
        source = tuple(Scene(tuple(Thing(**thing) for thing in things)) for things in data["source"])
        colour, shape = data["kind"]
        return cls(source, data["which"], (colour, shape), data["marked"], Thing(**data["portrait"]))


@dataclass(frozen=True)
class SwapVerdict:
    """The scores of a clip after a swap."""

    identity: float  # [0, 1]: the share of frames in which the new thing is seen with its colour and shape
    motion: float  # [0, 1]: the share of frames in which some thing of the right size is where the old one was
    similarity: float  # [0, 1]: 1 less the mean difference, around the thing, from its reference laid to its place
    background_error: float  # [0, 1]: mean squared difference from the source clip outside of old and new thing


def sample_swap(rng: np.random.Generator, kinds: tuple[Kind, ...] = SEEN_KINDS) -> Swap:
    """A clip of two things of different kinds, and a third kind that one of them becomes."""
    while True:
        motion = sample_motion(rng, kinds)
        if len(motion.moves) == 2:
            break
    present = {(move.colour, move.shape) for move in motion.moves}
    others = [kind for kind in kinds if kind not in present]
    colour, shape = others[int(rng.integers(len(others)))]
    side = float(rng.uniform(0.34, 0.6))
    x, y = (float(each) for each in rng.uniform(side / 2 + 0.05, 0.95 - side / 2, 2))
    return Swap(
        source=tuple(sample_clip(motion, rng)),
        which=int(rng.integers(2)),
        kind=(colour, shape),
        marked=int(rng.integers(FRAMES)),
        portrait=Thing(colour, shape, x, y, side),
    )


def sample_pair(rng: np.random.Generator) -> tuple[Swap, tuple[Scene, ...]]:
    """A swap and the second clip of a pair to learn from, as a machine would make it.

    In `LEAKS` of the pairs the new thing keeps the colour or the shape of the old one.
    """
    swap = sample_swap(rng)
    if rng.random() >= LEAKS:
        return swap, swap.target
    old = swap.source[0].things[swap.which]
    colour, shape = swap.kind
    kind = (old.colour, shape) if rng.random() < 0.5 else (colour, old.shape)
    return swap, replace(swap, kind=kind).target


def judge_swap(frames: Sequence[Image.Image], swap: Swap) -> SwapVerdict:
    """Judge a clip by reading each of its frames."""
    found = [_at(read(frame).things, wanted) for frame, wanted in zip(frames, swap.wanted, strict=True)]
    identity = [thing is not None and (thing.colour, thing.shape) == swap.kind for thing in found]
    clip = _tensor(frames)
    return SwapVerdict(
        identity=float(np.mean(identity)),
        motion=float(np.mean([thing is not None for thing in found])),
        similarity=float(similarity(clip, swap)),
        background_error=float(background_error(clip, swap)),
    )


def similarity(clip: Tensor, swap: Swap) -> Tensor:  # [F, 3, H, W] in [0, 1] -> []
    """Return 1 less the mean absolute difference from the new thing at its place, around it, with a gradient."""
    pixels = clip.shape[-1]
    ideal = _tensor([draw(Scene((thing,)), pixels) for thing in swap.wanted])
    return 1 - _mean_in((clip - ideal.to(clip)).abs(), _around(swap, pixels))


def background_error(clip: Tensor, swap: Swap) -> Tensor:  # [F, 3, H, W] in [0, 1] -> []
    """Return the mean squared difference from the source clip outside of both things, with a gradient."""
    pixels = clip.shape[-1]
    return _mean_in((clip - _tensor(draw_clip(swap.source, pixels)).to(clip)) ** 2, ~_around(swap, pixels))


def _around(swap: Swap, pixels: int) -> NDArray[np.bool_]:
    """[F, H, W]: the old and the new thing, and what is within two pixels of 32."""
    both = [scene.things[swap.which] for scene in swap.source], swap.wanted
    masks = [thing_mask(old, pixels) | thing_mask(new, pixels) for old, new in zip(*both, strict=True)]
    return np.stack([dilate(mask, max(1, pixels // 16)) for mask in masks])


def _mean_in(values: Tensor, mask: NDArray[np.bool_]) -> Tensor:  # [F, 3, H, W] -> []
    """Return the mean over the pixels of a mask."""
    import torch

    return values.transpose(0, 1)[:, torch.from_numpy(mask).to(values.device)].mean()


def _tensor(frames: Sequence[Image.Image]) -> Tensor:
    """[F, 3, H, W] float32 in [0, 1]."""
    import torch

    stacked = np.stack([np.asarray(frame.convert("RGB"), np.float32) for frame in frames])
    return torch.from_numpy(stacked / 255).permute(0, 3, 1, 2)


def _gif_uri(frames: Sequence[Image.Image]) -> str:
    """A data URI of a clip, exact for as few colours as scenes have. Neighbouring frames must differ."""
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=100)
    return data_uri(buffer.getvalue(), "image/gif")


def _at(things: Sequence[Seen], wanted: Thing) -> Seen | None:
    """Return the thing nearest to a place within `NEAR` and about as large; None where there is none."""
    near = [
        (max(abs(thing.x - wanted.x), abs(thing.y - wanted.y)), number)
        for number, thing in enumerate(things)
        if abs(thing.side - wanted.side) <= SIZE
    ]
    distance, number = min(near, default=(1.0, 0))
    return things[number] if distance <= NEAR else None


def samples(split: str) -> list[Sample]:
    """Return a split as data; no clip of one occurs in another.

    Raises:
        KeyError: there is no such split.
    """
    base = split.removesuffix(MASKED)
    return [
        Sample(
            id=f"{split}-{number:05d}",
            prompt="",
            conditions=swap.conditions(all_frames=split != base),
            answer=swap.as_dict(),
            source="swap",
        )
        for number, swap in enumerate(_swaps(base))
    ]


@cache  # drawing takes seconds
def _swaps(split: str) -> tuple[Swap, ...]:
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    return tuple(sample_swap(rng) for _ in range(size))


class SwapSimilarity(Reward):
    """Score a clip after a swap by the similarity of the new thing with its reference, in [0, 1].

    Further scores are identity, motion and the error of the background, as in `SwapVerdict`.
    """

    name = "swap_similarity"
    source = "docs/shapeworld.md"
    needs = ("video", "references.answer")
    range = (0.0, 1.0)
    differentiable = True

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one clip."""
        verdict = judge_swap(moving_frames(item), Swap.from_dict(item.references["answer"]))
        return {
            self.name: verdict.similarity,
            "swap_identity": verdict.identity,
            "swap_motion": verdict.motion,
            "swap_background_error": verdict.background_error,
        }

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """Return the similarities [B] of clips [B, F, 3, H, W], with gradients."""
        import torch

        swaps = [Swap.from_dict(item.references["answer"]) for item in batch]
        return torch.stack([similarity(clip, swap) for clip, swap in zip(images, swaps, strict=True)])


class SwapBackground(Reward):
    """Score a clip after a swap by the mean squared difference of its background from the source clip, in [0, 1]."""

    name = "swap_background"
    source = "docs/shapeworld.md"
    needs = ("video", "references.answer")
    range = (0.0, 1.0)
    direction = "lower"
    differentiable = True

    def score_one(self, item: RewardInput) -> float:
        """Judge one clip."""
        return float(background_error(_tensor(moving_frames(item)), Swap.from_dict(item.references["answer"])))

    def score_tensor(self, images: Tensor, batch: Sequence[RewardInput]) -> Tensor:
        """Return the errors [B] of clips [B, F, 3, H, W], with gradients."""
        import torch

        swaps = [Swap.from_dict(item.references["answer"]) for item in batch]
        return torch.stack([background_error(clip, swap) for clip, swap in zip(images, swaps, strict=True)])
