"""A transition and an image-token model from outside the package: checked by the configuration, trained, exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrl.build.config_checks import check
from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.export.export import export
from mmrl.generation.diffusion.scheduler_families import FlowFamily, NativeFamily, check_transition
from mmrl.workflows.train import train
from tests.plugins.test_registry import offer

TRANSITION = '''
"""A transition whose noise fades with sigma'."""

from dataclasses import dataclass
from typing import ClassVar

from mmrl.generation import Transition


@dataclass(frozen=True)
class FadingODE(Transition):
    """Euler's step of the ODE plus noise of spread noise_level sigma'^power sqrt(-dt)."""

    families: ClassVar[frozenset[str]] = frozenset({"flow"})
    noise_level: float
    power: float = 1.0

    def moments(self, x, velocity, sigma, sigma_next):
        dt = sigma_next - sigma
        return x + velocity * dt, self.noise_level * sigma_next**self.power * (-dt) ** 0.5
'''
IMAGE_MODEL = '''
"""An image-token model that mirrors the images of its codes."""

from PIL import ImageOps

from mmrl.generation.image_tokens.vq_causal_lm import VQCausalLM


class Mirrored(VQCausalLM):
    """A causal language model whose images are mirrored."""

    def decode(self, codes):
        return [ImageOps.mirror(image) for image in super().decode(codes)]

    def snippet(self, request):
        return super().snippet(request) + "\\nimage = image.transpose(0)"
'''
SHORT = (
    *("data.groups=2", "data.group_size=2", "data.validation=null", "data.heldout=null", "evaluation={}"),
    *("training.iterations=1", "run.display=quiet", "run.pictures=0"),
)
DENOISING = (*SHORT, "sampling.steps=3", "sampling.window={}", "data.micro_batch=2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with both files, offered by an installed distribution as well."""
    (tmp_path / "fading.py").write_text(TRANSITION)
    (tmp_path / "mirrored.py").write_text(IMAGE_MODEL)
    offer(tmp_path, "fading-noise", "fading_ode = fading:FadingODE", group="mmrl.transitions")
    offer(tmp_path, "mirrored-images", "mirrored = mirrored:Mirrored", group="mmrl.image_token_models")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("fading", "mirrored"):
        sys.modules.pop(name, None)


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "train"]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["fading_ode", "fading.py:FadingODE"])
def test_custom_transition_trains(folder, name):
    transition = [f"sampling.transition.name={name}", "sampling.transition.args={power: 2.0}"]
    config = load_config("flow-grpo", [*DENOISING, *transition, "run.dir=run"])
    check(config)
    (row,) = rows(train(config))
    assert row["replay_gap"] == 0 and row["grad_norm"] > 0


@pytest.mark.integration
def test_custom_transition_noise_level_trains(folder):
    learned = "sampling.transition={name: fading_ode, noise_level: 0.7, learned: {low: 0.1, high: 0.9}}"
    run = train(load_config("flow-grpo", [*DENOISING, learned, "run.dir=run"]))
    assert rows(run)[0]["replay_gap"] == 0
    assert list(run.rglob("exploration_noise.safetensors"))


def test_custom_transition_declares_families_and_fields(folder):
    config = load_config("flow-grpo", ["sampling.transition.name=fading_ode"]).sampling.transition
    check_transition(config, FlowFamily())
    with pytest.raises(ConfigError, match=r"fading_ode does not fit the pipeline's scheduler, .*: choose ode, native"):
        check_transition(config, NativeFamily())
    with pytest.raises(ConfigError, match=r"args\.strength is not a field of FadingODE: its fields are power"):
        check(load_config("flow-grpo", ["sampling.transition.name=fading_ode", "sampling.transition.args.strength=1"]))
    with pytest.raises(ConfigError, match=r"got 'fading_od', expected .* or fading_ode: did you mean fading_ode"):
        load_config("flow-grpo", ["sampling.transition.name=fading_od"])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["mirrored", "mirrored.py:Mirrored"])
def test_custom_image_token_model_trains_and_exports(folder, name):
    run = train(load_config("shapes-ar", [*SHORT, f"policy.architecture={name}", "run.dir=run"]))
    (row,) = rows(run)
    assert row["replay_gap"] < 1e-4 and row["grad_norm"] > 0
    export(str(run), folder / "exported")
    card = (folder / "exported" / "README.md").read_text()
    assert "image = image.transpose(0)" in card and (folder / "exported" / "image_tokens.json").is_file()
