"""docs/samplers.md shows keys that exist, names every choice and every metric."""

from __future__ import annotations

import json
import re
from typing import get_args

import pytest

from mmrl.config import data as sections
from mmrl.config.controller import CONTROLLERS, ControllerConfig
from mmrl.config.data import AnswersConfig, Curve, DataConfig
from mmrl.config.growing import PROPOSERS
from mmrl.config.loading.load import parse_config
from mmrl.config.starts import STARTS, StartsConfig
from mmrl.data.jsonl import read_samples
from mmrl.data.prompts import PromptSampler, VarianceAwareSampler
from mmrl.rewards import available
from mmrl.training.rollouts.advantage_estimator import DifficultyWeighting
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.group_sampling import AdaptiveGroupSampler, DynamicGroupSampler
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay
from mmrl.training.rollouts.replay_buffer import SelectiveReplay
from tests.training.rollouts.test_offline import paired_samples
from tests.training.token_run import collect, source

BASE = "name: a\npolicy: {kind: pipeline, model: m}\nrewards: [{name: ocr}]\n"


@pytest.fixture(scope="module")
def page(repository):
    return (repository / "docs" / "samplers.md").read_text(encoding="utf-8")


def blocks(page, language):
    return [block.strip().splitlines() for block in re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)]


def test_yaml_lines_of_the_page_are_valid(page):
    lines = [line for block in blocks(page, "yaml") for line in block]
    assert len(lines) >= 9
    for line in lines:
        rest = (
            f"data: {{path: x}}\n{line}\n"
            if line.startswith(("pretraining", "stages"))
            else f"data:\n  path: x\n  {line}\n"
        )
        parse_config(BASE + rest, "docs/samplers.md")
    documented_keys = {word for line in lines for word in re.findall(r"\w+(?=:)", line)}
    for name, section in vars(sections).items():
        if name.endswith("Config") and isinstance(section, type) and section not in (AnswersConfig, DataConfig):
            assert set(section.model_fields) <= documented_keys, name


def test_page_names_every_choice(page):
    names = [
        section.model_fields["name"].default
        for name, section in vars(sections).items()
        if name.endswith("Config") and isinstance(section, type) and "name" in section.model_fields
        if section not in (StartsConfig, ControllerConfig)
    ]
    assert len(names) == 18
    by_name = [*STARTS.built_in, *PROPOSERS.built_in, *CONTROLLERS.built_in]
    assert all(f"`{name}`" in page for name in [*names, *by_name, *get_args(Curve)])


def test_page_data_can_be_read_and_its_rewards_exist(page, tmp_path):
    (lines,) = blocks(page, "json")
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    chosen = [each.name for sample in read_samples(tmp_path / "a.jsonl") for each in sample.rewards]
    assert len(chosen) == 3 and set(chosen) <= set(available())
    assert [json.loads(line)["source"] for line in lines] == ["boxes", "sums"]


def test_page_explains_every_metric(page):
    samplers = [
        {
            "group_sampler": DynamicGroupSampler(4, 6, 2),
            "replay": SelectiveReplay(64, 1.0, 0),
            "prompts": VarianceAwareSampler(paired_samples(), 4, 0),
        },
        {
            "group_sampler": AdaptiveGroupSampler(6, 2, 6, 1.0, 3, 3, 0),
            "weighting": DifficultyWeighting(("hard",), 1.0),
        },
        {"demonstrations": MixedDemonstrations(1.0, None, 0), "replay": RecomposedReplay(64, 0.5, 1.0, (1.0, 1.0), 0)},
    ]
    metrics = set()
    for parts in samplers:
        made = source(**({"prompts": PromptSampler(paired_samples(), 4, 0)} | parts))
        metrics |= {name for n in range(3) for name in collect(made, n).metrics}
    named = set(re.findall(r"`([\w/<>]+)`", page.partition("## What is logged")[2]))
    plain = {re.sub(r"(by_source)/.*", r"\1/<source>", name) for name in metrics if not name.startswith("reward/")}
    assert plain - named == set()
