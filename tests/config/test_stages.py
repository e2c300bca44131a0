"""Stages of a run: which algorithms they may have."""

from __future__ import annotations

import pytest

from mmrl.build.training_setup import check
from mmrl.config import load_config
from mmrl.errors import ConfigError

STAGE = "stages=[{iterations: 2, algorithm: {name: %s}}]"


@pytest.mark.parametrize("name", ["rejection_sft", "online_dpo", "grpo"])
def test_policies_of_tokens_may_imitate_or_prefer_their_own_answers(name):
    check(load_config("shapes-vlm", [STAGE % name]))


@pytest.mark.parametrize(
    "recipe, name, problem",
    [
        ("quickstart", "rejection_sft", "rejection_sft needs no log-probabilities, and stages do"),
        ("shapes-vlm", "sft", "use pretraining"),
    ],
)
def test_other_stages_are_refused(recipe, name, problem):
    with pytest.raises(ConfigError, match=problem):
        check(load_config(recipe, [STAGE % name]))
