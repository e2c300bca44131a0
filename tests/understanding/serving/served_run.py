"""Training runs of a tiny model whose rollouts are served, and what each optimizer step learnt from."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmrl.config.train import TrainConfig
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.importance_correction import ImportanceCorrection
from mmrl.workflows.train import train
from tests.understanding.media import as_png, picture

GROUPS, GROUP_SIZE, ITERATIONS = 3, 4, 2
REWARD = '''
def low_bytes(item):
    """The share of even bytes: what a model of random weights can learn at once."""
    text = item.text.encode("utf-8", "replace")
    return sum(byte % 2 == 0 for byte in text) / max(1, len(text))
'''
QUICK = {"connect": 2.0, "silence": 6.0, "request": 3.0, "update": 20.0}
"""For servers that do not answer; on a busy machine a healthy one may be as slow."""
PATIENT = {"connect": 20.0, "silence": 30.0, "request": 30.0, "update": 60.0}
"""For servers that answer, with a fault or without."""


@dataclass
class Outcome:
    """The updates of a run before it ended."""

    folder: Path
    error: str | None = None
    gaps: list[float] = field(default_factory=list)  # mean |engine - trainer| of each rollout that was learnt from
    groups: list[int] = field(default_factory=list)  # that were learnt from, in order
    rows: int = 0  # learnt from

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of finished iterations."""
        path = self.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["kind"] == "train"]


def served_config(model: Path, root: Path, servers: dict[str, Any], train: str = "lora", **changes: Any) -> TrainConfig:
    """Return the configuration of a run of two iterations of three groups of four answers."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "reward.py").write_text(REWARD, encoding="utf-8")
    samples = [
        {"id": f"sample-{n}", "prompt": f"What is {n}?", "images": [as_png(picture(n))] if n % 3 else []}
        for n in range(2 * GROUPS)
    ]
    (root / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples), encoding="utf-8")
    settings: dict[str, Any] = {
        "name": "served",
        "policy": {"kind": "vlm", "model": str(model), "train": train, "device": "cpu"},
        "sampling": {"kind": "tokens", "max_new_tokens": 6, "temperature": changes.pop("temperature", 1.0)},
        "algorithm": {"name": "grpo", "mismatch": {"cap": 2.0}},
        "rewards": [{"name": f"{root / 'reward.py'}:low_bytes"}],
        "data": {
            "path": str(root / "data.jsonl"),
            "groups": GROUPS,
            "group_size": GROUP_SIZE,
            "micro_batch": GROUP_SIZE,
        },
        "optimizer": {"lr": 0.02},
        "training": {"iterations": ITERATIONS, "save_every": 1},
        "run": {"dir": str(root / "run"), "display": "quiet", "servers": {"timeouts": PATIENT} | servers},
    }
    return TrainConfig.model_validate(settings | changes, strict=False)


def train_served(config: TrainConfig, monkeypatch: Any, before: Callable[[int], None] | None = None) -> Outcome:
    """Train, and record each rollout that is learnt from; `before` is called before those of an iteration are
    sampled, with its number from 0."""
    outcome = Outcome(Path(config.run.dir))
    raw: dict[int, float] = {}
    correct, backward = ImportanceCorrection.correct, PolicyGradient.backward

    def spy_correct(self: Any, rollout: Any) -> Any:
        with torch.no_grad():
            own = self.policy.score_recording(rollout.recording)
        corrected, weights = correct(self, rollout)
        raw[id(corrected.recording)] = float((own - rollout.log_probs).abs()[rollout.mask].mean())
        return corrected, weights

    def spy_backward(self: Any, batch: Any, *rest: Any) -> None:
        outcome.gaps.append(raw[id(batch.rollout.recording)])
        outcome.groups += sorted(set(batch.rollout.group_index.tolist()))
        outcome.rows += batch.rollout.rows
        backward(self, batch, *rest)

    monkeypatch.setattr(ImportanceCorrection, "correct", spy_correct)
    monkeypatch.setattr(PolicyGradient, "backward", spy_backward)
    if before is not None:
        from mmrl.understanding.vlm_policy import VLMPolicy

        announce, iterations = VLMPolicy.announce, iter(range(ITERATIONS * 10))

        def spy_announce(self: Any, calls: Any) -> None:
            before(next(iterations))
            announce(self, calls)

        monkeypatch.setattr(VLMPolicy, "announce", spy_announce)
    try:
        train(config)
    except (RuntimeError, ValueError) as err:  # the errors for people
        outcome.error = str(err)
    return outcome
