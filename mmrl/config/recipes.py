"""Recipes that ship with the package: find, list and copy them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mmrl
from mmrl.components import Registry
from mmrl.errors import ConfigError
from mmrl.suggestions import did_you_mean

TASKS: dict[str, str | None] = {
    "text-to-image": "quickstart",
    "edit": "flux-kontext-dev-lora",
    "inpaint": "sd15-inpaint-lora",
    "text-to-video": "wan21-1-3b-lora",
    "image-to-video": None,
    "token-image": "shapes-ar",
}
"""{task of a generator: the recipe it starts from}; None: none ships yet. A VLM task's recipe has the task's name."""
VLM_TASKS: Registry[Any] = Registry("mmrl.tasks", "task", {})
"""VLM tasks of other packages and of files; the built-in ones are in `mmrl.understanding.tasks.definitions`."""
PROTOCOLS, STUDIES, REWARD_MODELS = "evaluation", "studies", "reward_models"
"""The folders of protocols, of studies and of recipes of reward models, beside those of recipes of policies."""


@dataclass(frozen=True)
class Recipe:
    """A YAML file that `mmrl train` takes."""

    name: str
    """The file's name without its suffix; unique among the shipped recipes."""
    path: Path

    @property
    def description(self) -> str:
        """The first comment line."""
        with self.path.open(encoding="utf-8") as lines:
            first = next((line for line in lines if line.strip()), "")
        return first.lstrip("#").strip() if first.startswith("#") else ""


def recipes_folder() -> Path:
    """`_configs` inside an installed package; `configs` beside the package in a checkout."""
    package = Path(mmrl.__file__).parent
    inside = package / "_configs"
    return inside if inside.is_dir() else package.parent / "configs"


def list_recipes() -> list[Recipe]:
    """Return every shipped recipe, sorted by folder and name."""
    folder = recipes_folder()
    files = sorted(folder.rglob("*.yaml"))
    return [Recipe(path.stem, path) for path in files if path.parent.name not in (PROTOCOLS, STUDIES, REWARD_MODELS)]


def list_reward_recipes() -> list[Recipe]:
    """Return every shipped recipe of a reward model, sorted by name; `mmrl train reward` takes these."""
    return [Recipe(path.stem, path) for path in sorted((recipes_folder() / REWARD_MODELS).glob("*.yaml"))]


def find_any_recipe(recipe: str) -> Recipe:
    """Return the shipped recipe of a reward model with the name, or else what `find_recipe` returns."""
    return next((each for each in list_reward_recipes() if each.name == recipe), None) or find_recipe(recipe)


def find_recipe(recipe: str) -> Recipe:
    """Return the recipe of a YAML path, of a shipped recipe's name, or of a task (also `path/to/file.py:Task`).

    Raises:
        ConfigError: it is none of them, or the task has no recipe.
    """
    if recipe in VLM_TASKS:
        start = VLM_TASKS.load(recipe).recipe
        if start is None:
            raise ConfigError(
                f"the task {recipe} has no recipe to start from: set Task.recipe to a name or a YAML path"
            )
        return find_recipe(start)
    if Path(recipe).suffix in (".yaml", ".yml") or "/" in recipe:
        path = Path(recipe)
        if not path.is_file():
            if (renamed := path.with_name(kebab_case(path.name))).is_file():
                _warn_of_renamed(recipe, str(renamed))
                return Recipe(renamed.stem, renamed)
            raise ConfigError(f"there is no file {recipe}: {_nearest_name(path.stem)}")
        return Recipe(path.stem, path)
    shipped = {each.name: each for each in list_recipes()}
    if recipe not in shipped and kebab_case(recipe) in shipped:
        _warn_of_renamed(recipe, kebab_case(recipe))
        return shipped[kebab_case(recipe)]
    name = TASKS.get(recipe, recipe)
    if name is None:
        started = ", ".join(task for task, starter in TASKS.items() if starter)
        raise ConfigError(f"no recipe ships for the task {recipe} yet; tasks that have one: {started}")
    if name not in shipped:
        if name in [each.name for each in list_reward_recipes()]:
            raise ConfigError(f"{name} is a recipe of a reward model: mmrl train reward {name}")
        raise ConfigError(f"{recipe} is neither a YAML file, nor a shipped recipe, nor a task: {_nearest_name(recipe)}")
    return shipped[name]


def copy_recipe(recipe: str, to: Path | None = None) -> Path:
    """Copy a shipped recipe to a file or into a folder (default: here), never over another file."""
    source = find_any_recipe(recipe).path
    target = Path(source.name) if to is None else to
    if target.is_dir():
        target /= source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("x", encoding="utf-8") as file:
        file.write(source.read_text(encoding="utf-8"))
    return target


def kebab_case(name: str) -> str:
    """Return a recipe's present name: `flux_dev_lora` is `flux-dev-lora` now."""
    return name.replace("_", "-")


def _warn_of_renamed(old: str, new: str) -> None:
    warnings.warn(f"the recipe {old} is called {new} now; the old name is read until the next release", FutureWarning,
                  stacklevel=3)  # fmt: skip


def _nearest_name(wrong: str) -> str:
    known = {each.name for each in list_recipes()} | {task for task, starter in TASKS.items() if starter}
    return did_you_mean(wrong, sorted(known), count=3, likeness=0.5) or "`mmrl recipes list` names all"
