"""A policy that writes answers without a model, questions from three sources, and runs that were evaluated on them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from PIL import Image

from mmrl.data import Sample
from mmrl.data.media.uris import data_uri
from mmrl.data.sample import RewardChoice
from mmrl.evaluation import evaluate
from mmrl.policy import Capability
from mmrl.rewards import InvalidAnswer, Reward, WeightedReward
from mmrl.rewards.core.routing import RoutedRewards, distinct_choices
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

SIZES = {"counting": 3, "maths": 2, "clips": 1}
"""Sources, and how many of every six questions come from each."""
GREEDY = "greedy"


class ExactAnswer(Reward):
    """1 for the right answer. What is no number cannot be read; `unscorable` questions bring the scorer down."""

    name, needs, range = "exact", ("text", "references.answer"), (0.0, 1.0)

    def score_one(self, item):
        if "unscorable" in item.prompt:
            raise ConnectionError("judge down")
        if not item.text.strip().isdigit():
            raise InvalidAnswer(f"no number: {item.text[:20]!r}")
        return float(int(item.text) == item.references["answer"])


class Near(Reward):
    """1 for the right number, less the further from it; besides, whether it was given in digits."""

    name, needs, range = "near", ("text", "references.answer"), (0.0, 1.0)

    def score_one(self, item):
        digits = "".join(c for c in item.text if c.isdigit())
        near = 1 / (1 + abs(int(digits or 99) - item.references["answer"]))
        return {"near": near, "near_digits": float(bool(digits))}


class Brief(Reward):
    """1 for a single character, less for more; watched, never trained on."""

    name, needs, range = "brief", ("text",), (0.0, 1.0)

    def score_one(self, item):
        return 1 / max(1, len(item.text))


REWARDS = {"exact": ExactAnswer, "near": Near, "brief": Brief}


def load(name: str, **args: object) -> Reward:
    """In the place of the registry."""
    return REWARDS[name](**args)


@dataclass
class WritePolicy:
    """Writes the right number where chance, or greedily the question's own difficulty, is below the source's skill."""

    skill: dict[str, float]
    wrong: str = "seven"
    capabilities = frozenset({Capability.LOG_PROBS})
    version = 0

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        samples = [request.sample for request in requests for _ in range(request.n)]
        chance = np.random.default_rng(seed).random(len(samples))
        if requests[0].sampling == GREEDY:
            chance = np.array([np.random.default_rng(int(sample.id[1:])).random() for sample in samples])
        known = [luck < self.skill[sample.source] for luck, sample in zip(chance, samples, strict=True)]
        media = [str(sample.answer) if right else self.wrong for right, sample in zip(known, samples, strict=True)]
        groups = torch.tensor([request.group for request in requests for _ in range(request.n)])
        empty = torch.zeros(len(samples), 0)
        ids = [list(text.encode()) for text in media]
        return Rollout(samples, groups, empty, empty.bool(), empty.long(), media, self.version, token_ids=ids)


def png(colour: str, size: tuple[int, int] = (8, 6)) -> str:
    """A picture of one colour as a data URI."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return data_uri(buffer.getvalue(), "image/png")


def gif(colours: Sequence[str]) -> str:
    """A video of one frame a colour."""
    buffer, frames = io.BytesIO(), [Image.new("RGB", (8, 8), colour) for colour in colours]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=500)
    return data_uri(buffer.getvalue(), "image/gif")


def questions(count: int = 12) -> list[Sample]:
    """Return samples: of each six, three with an image (`exact`), two of text (`near`, weight 2), one with a video."""
    sources = [source for source, share in SIZES.items() for _ in range(share)]
    output: dict[str, dict[str, tuple[str, ...]]] = {
        "counting": {"images": (png("red"),)},
        "maths": {},
        "clips": {"videos": (gif(["red", "lime", "blue"]),)},
    }
    requested = {
        "counting": (RewardChoice("exact"),),
        "maths": (RewardChoice("near", weight=2.0),),
        "clips": (RewardChoice("exact"),),
    }
    return [
        Sample(id=f"q{n}", prompt=f"{s} question {n}?", source=s, answer=n % 10, rewards=requested[s], **output[s])
        for n, s in ((n, sources[n % len(sources)]) for n in range(count))
    ]


def routed(samples: Sequence[Sample]) -> RoutedRewards:
    """Each sample's own rewards, and `brief` watched."""
    return RoutedRewards([], distinct_choices(samples), load=load, monitored=[WeightedReward(Brief(), weight=0.0)])


def write_run(
    folder: Path,
    before: dict[str, float],
    after: dict[str, float],
    greedy: tuple[dict[str, float], dict[str, float]] | None = None,
    samples: Sequence[Sample] = (),
    wrong: str = "seven",
    iterations: int = 4,
) -> Path:
    """A run whose policy had the skill `before` and then `after`, evaluated for real; its training curves are made up.

    `greedy` are the skills of a second set, drawn greedily.
    """
    samples = samples or questions(120)
    folder.mkdir()
    config = {
        "name": "questions",
        "policy": {"kind": "vlm", "model": "tiny"},
        "sampling": {"temperature": 1.0, "max_new_tokens": 8},
        "evaluation": {"rewards": ["brief"]},
        "run": {"pictures": 6},
        "training": {"iterations": iterations},
    }
    rewards = routed(samples)
    lines: list[dict[str, object]] = []
    sets = [(folder, "", (before, after), None)] + ([(folder / "greedy", "greedy_", greedy, GREEDY)] if greedy else [])
    for place, prefix, skills, sampling in sets:
        place.mkdir(exist_ok=True)
        (place / "config.yaml").write_text(yaml.safe_dump(config))
        for step, skill in zip((0, iterations), skills, strict=True):
            policy = WritePolicy(skill, wrong)
            found = evaluate(
                policy, samples, rewards, draws=1, batch=32, seed=5, sampling=sampling, step=step, pictures=6
            )
            found.save(place, pictures=6)
            lines.append({"kind": "evaluation", "step": step} | {prefix + k: v for k, v in found.metrics().items()})
    rewards.close()
    for step in range(1, iterations + 1):
        done = step / iterations
        curves: dict[str, float] = {"reward/total": done, "reward/exact": done, "length": 5 - done, "entropy": 1 - done}
        for source in SIZES:
            curves |= {
                f"reward_by_source/{source}": done,
                f"length_by_source/{source}": 5.0,
                f"valid_share_by_source/{source}": 1.0,
                f"zero_variance_share_by_source/{source}": done / 2,
            }
        lines.append({"kind": "train", "step": step} | curves)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def skills(counting: float, maths: float, clips: float) -> dict[str, float]:
    return {"counting": counting, "maths": maths, "clips": clips}
