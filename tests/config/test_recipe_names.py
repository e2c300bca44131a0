"""Names of recipes: kebab-case, with the names of before as aliases."""

from __future__ import annotations

import re

import pytest

from mmrl.config import find_recipe, list_recipes, load_config
from mmrl.config.recipes import TASKS, recipes_folder

RENAMED = ["flow_grpo", "sd35_medium_lora", "wan21_1_3b_lora", "shapes_clip_judge", "b2_diffurl_sd15"]


def test_recipe_names_are_kebab_case():
    names = [recipe.name for recipe in list_recipes()]
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in [*names, *TASKS]), names


@pytest.mark.parametrize("name", RENAMED)
def test_old_names_and_paths_find_the_recipe_with_a_warning(name):
    recipe = find_recipe(name.replace("_", "-"))
    for old in (name, str(recipe.path.with_name(f"{name}.yaml"))):
        with pytest.warns(FutureWarning, match=f"the recipe .*{name}.* is called .*{recipe.name}.* now"):
            assert find_recipe(old).path == recipe.path
        with pytest.warns(FutureWarning):
            assert load_config(old) == load_config(recipe.name)
    assert recipe.path.is_relative_to(recipes_folder())
