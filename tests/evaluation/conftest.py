"""A policy that draws without a model, and a run folder with everything a report can show."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from mmrl.data import Sample
from mmrl.evaluation import Evaluation
from mmrl.policy import Capability
from mmrl.rewards import Reward
from mmrl.rollout import Rollout


class Redness(Reward):
    """The mean of the red channel, in [0, 1]; the scorer fails on images of an `unscorable` prompt."""

    name, needs, range = "redness", ("image",), (0.0, 1.0)

    def score_one(self, item):
        if "unscorable" in item.prompt:
            raise ConnectionError("judge down")
        return float(np.asarray(item.image, np.float32)[..., 0].mean() / 255)


@dataclass
class PaintPolicy:
    """Noise of the call's seed under a shade of red: as deterministic as a pipeline, and as quick as none."""

    shade: int = 0
    calls: list = field(default_factory=list)
    capabilities = frozenset[Capability]()
    version = 0

    def rollout(self, requests, seed):
        samples = [request.sample for request in requests for _ in range(request.n)]
        self.calls.append((seed, [(request.sample.id, request.n, request.group) for request in requests]))
        assert not torch.is_grad_enabled()
        noise = np.random.default_rng(seed).integers(0, 128, (len(samples), 8, 8, 3), dtype=np.uint8)
        noise[..., 0] += self.shade
        groups = torch.tensor([request.group for request in requests for _ in range(request.n)])
        empty = torch.zeros(len(samples), 0)
        media = [Image.fromarray(picture) for picture in noise]
        return Rollout(samples, groups, empty, empty.bool(), empty.long(), media, self.version)


@pytest.fixture
def samples():
    return [Sample(id=f"p{i}", prompt=f"picture {i}", source=("train", "new")[i % 2]) for i in range(6)]


@pytest.fixture
def make_run(tmp_path):
    """Writes a run: `redness` is trained and moves by `rise`, `heldout` is held out and moves by `heldout`."""

    def make(
        name="run",
        seed=0,
        rise=0.3,
        heldout=-0.2,
        prompts=40,
        steps=(0, 10),
        iterations=10,
        failed=0,
        prompt="a red dot",
    ):
        folder = tmp_path / name
        folder.mkdir()
        config = {
            "name": f"demo {prompt}",
            "seed": seed,
            "policy": {"model": "tiny"},
            "rewards": [{"name": "redness", "weight": 2.0}],
            "evaluation": {"rewards": ["held"]},
            "training": {"iterations": 10},
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        random = np.random.default_rng(seed)
        base = {"redness": random.uniform(0.2, 0.6, prompts), "held": random.uniform(0.3, 0.7, prompts)}
        moves = {"redness": rise, "held": heldout}
        with (folder / "metrics.jsonl").open("w") as metrics:
            for step in steps:
                done = step / 10
                noise = random.normal(0, 0.05, prompts) if step else 0
                values = {n: np.float32(base[n] + moves[n] * done + noise) for n in base}
                status = {n: ["ok"] * prompts for n in base}
                if step:
                    values["held"][:failed] = np.nan
                    status["held"][:failed] = ["error"] * failed
                images = [Image.new("RGB", (8, 8), (int(255 * v), 40, 60)) for v in values["redness"].clip(0, 1)]
                values["total"], status["total"] = 2 * values["redness"], ["ok"] * prompts
                evaluation = Evaluation(
                    step=step,
                    draws=1,
                    ids=tuple(f"p{i}" for i in range(prompts)),
                    prompts=tuple(f"{prompt} {i}" for i in range(prompts)),
                    sources=tuple(("plain", "new words")[i % 2] for i in range(prompts)),
                    values=values,
                    status=status,
                    images=images,
                )
                evaluation.save(folder, pictures=4)
                logged = evaluation.metrics() | {"evaluation/diversity": 0.5 - 0.1 * done}
                metrics.write(json.dumps({"kind": "evaluation", "step": step} | logged) + "\n")
            for step in range(1, iterations + 1):
                gauges = {
                    "reward/redness": None if step == 3 else 0.4 + 0.03 * step + random.normal(0, 0.02),
                    "reward/total": 0.8 + 0.06 * step,
                    "reward/total_std": 0.1,
                    "replay_gap": 0.0,
                    "grad_norm": 1 / step,
                    "clip_fraction": 0.01 * step,
                    "kl": 1e-4 * step,
                    "seconds/rollout": 1.5,
                    "seconds/update": 2.5,
                }
                metrics.write(json.dumps({"kind": "train", "step": step} | gauges) + "\n")
        return folder

    return make
