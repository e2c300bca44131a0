"""Stages of a run: which algorithms they may have."""

from __future__ import annotations

import pytest

from mmrl.build.config_checks import check
from mmrl.config import BatchPlan, load_config
from mmrl.errors import ConfigError

STAGE = "stages=[{iterations: 2, algorithm: {name: %s}}]"


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *(("shapes-vlm", name) for name in ("rejection_sft", "online_dpo", "grpo", "sft")),
        *(("quickstart", name) for name in ("rejection_sft", "diffusion_nft", "sft", "dpo")),
    ],
)
def test_stages_imitate_prefer_or_explore(recipe, name):
    check(load_config(recipe, [STAGE % name]))


@pytest.mark.parametrize("recipe", ["quickstart", "shapes-edit"])
def test_pipelines_imitate_before_they_explore(recipe):
    check(load_config(recipe, ["pretraining={iterations: 3}"]))
    with pytest.raises(ConfigError, match="PreferenceLearning needs teacher_force"):
        check(load_config(recipe, [STAGE % "mpo"]))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("path: general.jsonl", r"pretraining\.algorithm\.path: it is for terms of a mix: .* in pretraining\.path"),
        ("weight_end: 0.5", r"pretraining\.algorithm\.weight_end: it is alone"),
    ],
)
def test_settings_of_a_term_have_no_effect_on_pretraining(setting, problem):
    words = [f"pretraining={{iterations: 3, algorithm: {{name: sft, {setting}}}}}"]
    with pytest.raises(ConfigError, match=problem):
        BatchPlan.of(load_config("shapes-vlm", words))
