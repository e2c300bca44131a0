"""Tiny models, built once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.generation.image_tokens import ImageTokenPolicy
from mmrl.rollout_request import RolloutRequest
from tests.generation.image_tokens.tiny_models import build, size_of

REQUESTS = [
    RolloutRequest(Sample("short", prompt="a dog"), n=2, group=0),
    RolloutRequest(Sample("long", prompt="two big red cats on a mat"), n=3, group=1),
]
"""Prompts of unequal length in one batch."""


@pytest.fixture(scope="session")
def painter_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """From a family's name to the folder of its tiny model."""
    root = tmp_path_factory.mktemp("painters")
    return cache(lambda name: build(name, root / name))


@pytest.fixture(scope="session")
def painter_of(painter_folder: Callable[[str], Path]) -> Callable[..., ImageTokenPolicy]:
    """From a family's name to a new policy."""

    def make(name: str, sampling: dict[str, Any] | None = None, **settings: Any) -> ImageTokenPolicy:
        config = ImageTokenConfig(
            model=str(painter_folder(name)), size=size_of(name), device="cpu", **({"train": "full"} | settings)
        )
        return ImageTokenPolicy.from_config(config, ImageTokenSamplingConfig(**(sampling or {})))

    return make


@pytest.fixture(scope="session")
def shared_painter(painter_of: Callable[..., ImageTokenPolicy]) -> Callable[[str], ImageTokenPolicy]:
    """The same, once for all tests that leave its parameters alone."""
    return cache(lambda name: painter_of(name))
