"""docs/judges.md: its code runs, its prompts load, and it names all that there is."""

from __future__ import annotations

import re

import numpy as np
import pytest
import yaml
from PIL import Image

from mmrl.config.rewards import RewardConfig
from mmrl.rewards import load
from mmrl.rewards.judges.templates import load_prompt, shipped
from tests.rewards.judges.fake_judge_server import FakeJudge, Sure


@pytest.fixture
def page(repository):
    return (repository / "docs" / "judges.md").read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_python_of_the_judges_page_runs(page, capsys):
    (code,) = blocks(page, "python")
    with FakeJudge(Sure(0.75)) as judge:
        names = {"image": Image.new("RGB", (8, 8))}
        exec(code.replace("http://127.0.0.1:8000/v1", judge.base_url), names)
        names["suite"].close()
    np.testing.assert_allclose(names["scores"].values["judge"], 0.75, rtol=1e-6)


def test_yaml_of_the_judges_page_is_a_recipe_and_a_prompt(page, tmp_path):
    recipe, prompt = blocks(page, "yaml")
    (config,) = [RewardConfig.model_validate(each) for each in yaml.safe_load(recipe)["rewards"]]
    assert load(config.name, **config.args).name == "judge"
    (tmp_path / "judge.yaml").write_text(prompt)
    assert load_prompt(str(tmp_path / "judge.yaml"), "point").uses("prompt")


def test_judges_page_names_every_prompt_judge_and_setting(page):
    for name in [*shipped(), "judge", "judge_pairs", "judge_checklist", "judge_ranking", "rounds", "shuffles", "soft"]:
        assert f"`{name}" in page, name
