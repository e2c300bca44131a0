"""The recipes that ship: each loads, fits together and says what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import mmrl
from mmrl.config import BatchPlan, ConfigError, copy_recipe, find_recipe, list_recipes, load_config
from mmrl.config.recipes import PROTOCOLS, REWARD_MODELS, STUDIES, TASKS, recipes_folder

OTHERS = (PROTOCOLS, STUDIES, REWARD_MODELS)
FILES = sorted(path for path in recipes_folder().rglob("*.y*ml") if path.parent.name not in OTHERS)


def test_recipes_have_the_name_of_their_file():
    assert FILES
    assert [recipe.path for recipe in list_recipes()] == FILES
    assert len({path.stem for path in FILES}) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipes_load_and_have_a_batch_plan_and_description(path):
    config = load_config(path.stem)
    assert config == load_config(str(path))
    assert config.name == path.stem
    BatchPlan.of(config)
    description = find_recipe(path.stem).description
    assert 20 < len(description) <= 120
    assert description.endswith(".")


def test_tasks_find_their_recipe():
    assert find_recipe("text-to-image").name == "quickstart"
    assert {recipe for recipe in TASKS.values() if recipe} <= {recipe.name for recipe in list_recipes()}


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "image-to-video",
            "no recipe ships for the task image-to-video yet; tasks that have one: text-to-image, edit,",
        ),
        ("quikstart", "did you mean quickstart?"),
        ("text-to-imge", "did you mean text-to-image"),
        ("nowhere/quickstart.yaml", "there is no file nowhere/quickstart.yaml: did you mean quickstart?"),
        ("shapes-preferences", "is a recipe of a reward model: mmrl train reward shapes-preferences"),
        (
            "xyzzy",
            "nor a task: `mmrl recipes list` names all",
        ),
    ],
)
def test_unknown_recipes_are_reported_with_the_known_ones(name, message):
    with pytest.raises(ConfigError) as caught:
        find_recipe(name)
    assert message in str(caught.value)


def test_recipe_copy_is_equal_and_overwrites_no_file(tmp_path):
    copied = copy_recipe("quickstart", tmp_path)
    assert copied == tmp_path / "quickstart.yaml"
    assert load_config(str(copied)) == load_config("quickstart")
    copied.write_text("mine")
    for to in (tmp_path, copied):
        with pytest.raises(FileExistsError):
            copy_recipe("quickstart", to)
    assert copied.read_text() == "mine"
    assert copy_recipe("quickstart", tmp_path / "new" / "a.yaml").is_file()


def test_installed_package_contains_the_recipes(tmp_path, monkeypatch):
    package = tmp_path / "mmrl"
    (package / "_configs" / "quickstart").mkdir(parents=True)
    (package / "_configs" / "quickstart" / "only.yaml").write_text("\nname: only\n")
    monkeypatch.setattr(mmrl, "__file__", str(package / "__init__.py"))
    assert recipes_folder() == Path(package / "_configs")
    (recipe,) = list_recipes()
    assert recipe.name == "only"
    assert recipe.description == ""
