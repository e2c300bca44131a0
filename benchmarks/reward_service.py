"""Measure what a reward service adds: pictures scored over HTTP on loopback, against the same reward in this process.

    python benchmarks/reward_service.py            # fails above 1.10 times the time in process
    python benchmarks/reward_service.py --smoke    # seconds: does it still run, and do both score the same?

The reward is a CLIPScore by a CLIP with the vision tower of ViT-B/32 and random weights, on pictures of 224 x 224
pixels, 32 in a batch. Scores must be equal before anything is timed. Both sides take turns, in alternating order; the
median of the ratios counts. PNG files are written, sent, read and checked on one side alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import CLIPConfig, CLIPModel

from mmrl.rewards import Reward, RewardInput, load
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP

BOUND = 1.10
ANSWERS, SIDE, TURNS = 32, 224, 7
VIT_B_32 = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 32,
}


def pictures(count: int) -> list[RewardInput]:
    """Return pictures of captions."""
    rng = np.random.default_rng(0)
    return [
        RewardInput(str(row), row, str(caption), image=draw(sample_scene(caption, rng)).resize((SIDE, SIDE)))
        for row, caption in enumerate(splits.captions("development")[:count])
    ]


def write_clip(folder: Path) -> None:
    """Write a CLIP with a large vision tower, whose tokenizer and texts are those of the shipped one."""
    shutil.copytree(CLIP, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    config = CLIPConfig.from_pretrained(CLIP)
    for name, value in (VIT_B_32 | {"image_size": SIDE}).items():
        setattr(config.vision_config, name, value)
    torch.manual_seed(0)
    CLIPModel(config).save_pretrained(folder)
    processor = (folder / "processor_config.json").read_text()
    (folder / "processor_config.json").write_text(processor.replace("32", str(SIDE)))


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Serve a CLIPScore with this model; the URL of the service."""
    command = [sys.executable, "-m", "mmrl", "rewards", "serve", "clip_score", "--arg", f"clip_score.model={model}"]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


def seconds(reward: Reward, batch: Sequence[RewardInput]) -> float:
    """Score a batch."""
    started = time.perf_counter()
    reward.score(batch)
    return time.perf_counter() - started


def main() -> None:
    """Measure, and fail above the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="the shipped CLIP, few pictures, one turn, no bound")
    smoke = parser.parse_args().smoke
    batch, turns = pictures(4 if smoke else ANSWERS), 1 if smoke else TURNS
    with tempfile.TemporaryDirectory() as folder:
        model = CLIP if smoke else Path(folder) / "clip"
        if not smoke:
            write_clip(model)
        local = load("clip_score", model=str(model))
        with served(model) as url:
            remote = load("remote", url=url, reward="clip_score")
            np.testing.assert_array_equal(
                local.score(batch).values["clip_score"], remote.score(batch).values["clip_score"]
            )
            times: dict[str, list[float]] = {"local": [], "remote": []}
            for turn in range(turns):
                sides = [("local", local), ("remote", remote)]
                for side, reward in sides if turn % 2 == 0 else reversed(sides):
                    times[side].append(seconds(reward, batch))
    ratio = median(far / near for near, far in zip(times["local"], times["remote"], strict=True))
    near, far = median(times["local"]), median(times["remote"])
    print(
        f"{len(batch)} pictures: {near:.3f} s in process, {far:.3f} s by a service, {ratio:.3f} times ({turns} turns)"
    )
    if not smoke and ratio > BOUND:
        raise SystemExit(f"a service takes {ratio:.2f} times as long; expected at most {BOUND}")


if __name__ == "__main__":
    main()
