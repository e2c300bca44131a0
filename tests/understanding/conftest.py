"""Tiny models, built once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from mmrl.config.policy import VLMConfig
from mmrl.understanding.vlm import VLM, load_vlm
from tests.understanding.tiny_vlms import build


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """From a family's name to the folder of its tiny model."""
    root = tmp_path_factory.mktemp("families")
    return cache(lambda name: build(name, root / name))


@pytest.fixture(scope="session")
def vlm_of(folder_of: Callable[[str], Path]) -> Callable[[str], VLM]:
    """From a family's name to its tiny model, for tests that leave its parameters alone."""
    return cache(lambda name: load_vlm(VLMConfig(model=str(folder_of(name)), device="cpu")))
