"""Tiny pipelines as policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmrl.config.policy import LoraConfig
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny

MakePolicy = Callable[..., PipelinePolicy]


@pytest.fixture
def make_policy() -> MakePolicy:
    """`make_policy("sd3", train="full", steps=4)`; what is not the policy's own argument goes to its sampling."""

    def make(name: str, train: str = "lora", denoisers: tuple[str, ...] = (), **sampling: Any) -> PipelinePolicy:
        return PipelinePolicy(
            tiny.build(name),
            tiny.sampling(name, **sampling),
            train=train,  # type: ignore[arg-type]
            lora=LoraConfig(rank=4, alpha=8),
            denoisers=denoisers,
        )

    return make


@pytest.fixture
def requests() -> list[RolloutRequest]:
    """Two prompts of different group sizes."""
    return [
        RolloutRequest(Sample("0", prompt="a red circle"), n=2, group=0),
        RolloutRequest(Sample("1", prompt="a big blue square"), n=1, group=7),
    ]
