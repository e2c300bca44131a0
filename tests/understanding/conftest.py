"""Tiny models, built once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from mmrl.config.media import MediaConfig
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.understanding.vlm import VLM, load_vlm
from mmrl.understanding.vlm_policy import VLMPolicy
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


@pytest.fixture(scope="session")
def new_player(folder_of: Callable[[str], Path]) -> Callable[[str], VLMPolicy]:
    """From a family's name to a policy, all parts trained; every fourth byte ends a turn, so that turns end apart."""

    def policy(name: str) -> VLMPolicy:
        part = ModelPartConfig(train=True)
        config = VLMConfig(model=str(folder_of(name)), device="cpu", train="full", vision=part, connector=part)
        vlm = load_vlm(config)
        ends = torch.cat([vlm.ends, torch.arange(0, 256, 4)])
        sampling = TokenSamplingConfig(max_new_tokens=6, temperature=0.8)
        return VLMPolicy(replace(vlm, ends=ends), config, sampling, MediaConfig())

    return policy


@pytest.fixture(scope="module")
def player(new_player: Callable[[str], VLMPolicy]) -> Callable[[str], VLMPolicy]:
    """From a family's name to such a policy, for tests that leave its parameters alone."""
    return cache(new_player)
