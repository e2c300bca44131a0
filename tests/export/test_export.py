"""Exported models load without mmrl, and compute the same outputs as the policy of the run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from mmrl.build.datasets import load_samples
from mmrl.errors import ConfigError
from mmrl.export.export import export
from mmrl.rollout_request import RolloutRequest
from tests.export.trained_runs import LOOKING, LORA, trained_run
from tests.generation.image_tokens.tiny_models import build as build_painter

PIPELINE = {
    "policy": {"model": "shapeworld", **LORA},
    "sampling": {"steps": 3, "pipeline_args": {"max_sequence_length": 1}},
}
RUNS = {
    "drawing": PIPELINE,
    "drawing_half": PIPELINE | {"policy": {"model": "shapeworld", "dtype": "bfloat16", **LORA}},
    "looking": LOOKING | {"policy": {"kind": "vlm", "model": "shapeworld", **LORA}},
    "painting": {"policy": {"kind": "image_tokens", "model": "shapeworld", "train": "full"}},
    "composite": {"policy": {"kind": "image_tokens", "model": "{painter}", **LORA}},
    "janus": {"policy": {"kind": "image_tokens", "model": "{painter}", **LORA}},
    "emu3": {"policy": {"kind": "image_tokens", "model": "{painter}", "size": [16, 24], **LORA}},
    "scales": {"policy": {"kind": "image_tokens", "model": "{painter}", "train": "full"}},
}
FAST = ("drawing", "looking", "composite")
SLOW = tuple(name for name in RUNS if name not in FAST)
GREEDY = {"kind": "image_tokens", "temperature": 0.0, "guidance_scale": 3.0}
CLOSE = {"drawing": 1e-5, "looking": 1e-5, "drawing_half": 0.01}
"""Mean difference of pixels in [0, 1], or of log-probabilities. bfloat16 rounds a merged sum once, two terms apart."""
SHIFTS = {"drawing_half": 0.15, "emu3": 0.5}
"""Larger changes where the output shows less of them: in bfloat16, and by a decoder of little contrast (Emu3's)."""
CALL = {"num_inference_steps": 3, "guidance_scale": 2.0, "output_type": "np", "max_sequence_length": 1}


def slow(name: str) -> Any:
    """The same path as a fast one, by another model or in another precision."""
    return pytest.param(name, marks=pytest.mark.slow)


class Exports:
    """A folder with exports, the outputs of the runs' policies, and the outputs without mmrl."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.own: dict[str, torch.Tensor] = {}
        self.base: dict[str, torch.Tensor] = {}
        for name in names:
            run, policy = self._run(name)
            self.own[name] = self._outputs(name, policy)
            with policy.reference():
                self.base[name] = self._outputs(name, policy)
            export(str(run), root / name)
        Image.new("RGB", (48, 48), "red").save(root / "picture.png")
        program = Path(__file__).with_name("without_mmrl.py")
        done = subprocess.run(
            [sys.executable, "-I", str(program), *names], cwd=root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.plain = {name: load_file(root / f"{name}.safetensors")["out"] for name in names}

    def _outputs(self, name: str, policy: Any) -> torch.Tensor:
        if name.startswith("drawing"):
            made = policy.pipeline("a red circle", generator=torch.Generator().manual_seed(7), **CALL)
            return torch.tensor(made.images)
        if name.startswith("looking"):
            content = [
                {"type": "image", "image": Image.new("RGB", (48, 48), "red")},
                {"type": "text", "text": "Where?"},
            ]
            options = dict(add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt")
            turn = {"role": "user", "content": content}
            inputs = dict(policy.vlm.processor.apply_chat_template([turn], **options))
            save_file(inputs, self.root / "question.safetensors")
            with torch.no_grad():
                return policy.vlm.model(**policy.vlm.to_device(inputs)).logits.float().log_softmax(-1)
        first = load_samples("shapeworld:validation")[0]
        return torch.tensor(np.asarray(policy.rollout([RolloutRequest(first, n=1, group=0)], seed=0).media[0]))

    def _run(self, name: str) -> tuple[Path, Any]:
        settings: dict[str, Any] = dict(RUNS[name])
        if settings["policy"].get("kind") == "image_tokens":
            settings["sampling"] = GREEDY
        if settings["policy"]["model"] == "{painter}":
            folder = build_painter(name, self.root / "bases" / name)
            settings["policy"] = settings["policy"] | {"model": str(folder)}
        return trained_run(self.root / "runs" / name, settings, shift=SHIFTS.get(name, 0.05))


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exports]:
    """Return a function from a run's name to the exports that contain it; each set is made once."""
    make = cache(lambda names: Exports(tmp_path_factory.mktemp("exports"), names))
    return lambda name: make(FAST if name in FAST else SLOW)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["drawing", "looking", slow("drawing_half")])
def test_exported_model_computes_the_outputs_of_the_trained_policy(name, exports):
    made = exports(name)
    gap = float((made.plain[name] - made.own[name]).abs().mean())
    learnt = float((made.plain[name] - made.base[name]).abs().mean())
    assert gap <= CLOSE[name] and learnt > 4 * gap, (gap, learnt)


@pytest.mark.integration
@pytest.mark.parametrize("training", [LORA, {"train": "full"}], ids=["lora", "full"])
def test_a_model_with_heads_is_exported_with_their_mean(tmp_path, training):
    settings = {"policy": {"kind": "vlm", "model": "shapeworld", "heads": ["short", "right"], **training}}
    run, policy = trained_run(tmp_path / "run", LOOKING | settings)
    done = export(str(run), tmp_path / "out")
    model = AutoModelForImageTextToText.from_pretrained(done.folder)
    mean = sum(policy.heads.weights.values()) / 2
    assert torch.equal(model.get_output_embeddings().weight, mean)
    assert not torch.equal(model.get_input_embeddings().weight, mean)
    card = (done.folder / "README.md").read_text()
    assert "the mean of those that were trained, one for each of short, right" in card
    if training is LORA:
        with pytest.raises(ConfigError, match=r"policy\.heads.* would be lost"):
            export(str(run), tmp_path / "adapter", lora_only=True)


@pytest.mark.parametrize("name", ["composite", slow("painting"), slow("janus"), slow("emu3"), slow("scales")])
def test_model_card_code_repeats_the_image_of_the_policy(name, exports):
    made = exports(name)
    plain, own, base = (of[name].int() for of in (made.plain, made.own, made.base))
    assert (plain - own).abs().max() <= 1, "more than the rounding of one pixel's last bit"
    assert (plain - base).abs().max() > 20
