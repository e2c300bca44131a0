"""The table of published systems says what the files say."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config.recipes import REWARD_MODELS, find_recipe, list_recipes, recipes_folder
from mmrl.errors import ConfigError
from mmrl.studies.study import list_studies
from mmrl.studies.study_result import published_result, results_folder
from mmrl.studies.systems import (
    AREAS,
    _names_of,
    find_system,
    load_systems,
    published_results,
    recipe_of_system,
    study_of_system,
    study_of_title,
    systems_page,
    verdict_counts,
)


def test_systems_have_unique_keys_and_known_areas():
    systems = load_systems()
    assert len(systems) == len({system.key for system in systems}) == 158
    assert {system.area for system in systems} == set(AREAS)


def test_recipes_of_systems_exist():
    reward_models = (recipes_folder() / REWARD_MODELS).glob("*.yaml")
    known = {recipe.name for recipe in list_recipes()} | {path.stem for path in reward_models}
    assert [system.key for system in load_systems() if system.recipe and system.recipe not in known] == []


@pytest.mark.integration
def test_every_system_has_a_study_with_a_result():
    published = [study.config.paper.key for study in list_studies() if published_result(study.name) is not None]
    assert sorted(key for key in published if key) == sorted(system.key for system in load_systems())
    assert sum(verdict_counts(published_results().values()).values()) == 158


@pytest.mark.integration
def test_every_study_is_of_a_system():
    keys = {system.key for system in load_systems()}
    assert [study.name for study in list_studies() if study.config.paper.key not in {None, *keys}] == []


@pytest.mark.integration
def test_the_page_is_written_from_the_files(repository):
    written = (repository / "docs" / "systems.md").read_text(encoding="utf-8")
    assert written == systems_page(), "run: python -m tools.systems"


@pytest.mark.integration
def test_published_results_are_of_shipped_studies_and_state_the_verdict_of_their_claims():
    names = {study.name for study in list_studies()}
    for path in results_folder().glob("*.json"):
        assert path.stem in names
        result = published_result(path.stem)
        assert result is not None
        assert result.study == path.stem
        page = path.with_suffix(".md").read_text(encoding="utf-8")
        assert page.startswith(f"# {result.paper['title']}: ")
        assert result.origin in page


@pytest.mark.integration
def test_published_verdicts_follow_from_the_published_values():
    """Every verdict is judged again from the raw values in its file."""
    from mmrl.studies.study_result import judge_claims

    for study in list_studies():
        result = published_result(study.name)
        if result is None:
            continue
        again = judge_claims(study, result.measures, independent=study.config.recipe is not None)
        assert [claim.verdict for claim in again] == [claim.verdict for claim in result.claims], study.name


@pytest.mark.parametrize(
    "name, key",
    [("gdpo", "gdpo"), ("GDPO", "gdpo"), ("Orsta", "v-triune"), ("vlm-rl", "vlm-rl"), ("vlm-rms", "vlm-rm")],
)
def test_systems_are_found_by_key_and_by_each_of_their_names(name, key):
    system = find_system(name)
    assert system is not None
    assert system.key == key


def test_no_name_belongs_to_two_systems():
    names = [name for system in load_systems() for name in _names_of(system)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.integration
def test_a_study_with_the_name_of_a_system_is_its_own():
    studies = {study.name: study for study in list_studies()}
    for system in load_systems():
        for name in _names_of(system):
            assert name not in studies or studies[name].config.paper.key == system.key


@pytest.mark.integration
def test_the_table_has_the_difference_on_which_a_verdict_rests():
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in systems_page().splitlines() if " | " in line}
    result = published_result("limr")
    assert result is not None and [claim.verdict for claim in result.claims] == ["holds", "holds", "not told apart"]
    assert "| not told apart | claims that hold: 2 of 3; aligned = all within 0.05: -0.046 (" in rows["LIMR"]
    assert "| holds | " in rows["GDPO"] and "claims that hold" not in rows["GDPO"]


def test_words_of_a_title_name_a_study_if_no_other_has_them():
    assert study_of_title("lite ppo").name == "lite-ppo"
    assert study_of_title("reinforcement learning") is None is study_of_title("no such title")


@pytest.mark.integration
def test_systems_without_a_study_or_a_recipe_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="has no recipe; its study uses none"):
        recipe_of_system("aurora")
    assert study_of_system("no such system") is None is recipe_of_system("no such system")
    planned = replace(load_systems()[0], key="planned", name="Planned", recipe=None)
    monkeypatch.setattr("mmrl.studies.systems.load_systems", lambda: (planned,))
    with pytest.raises(ConfigError, match="Planned has no study yet"):
        study_of_system("planned")
    with pytest.raises(ConfigError, match="Planned has no recipe; its study uses none"):
        recipe_of_system("Planned")


@pytest.mark.integration
def test_commands_find_studies_and_recipes_by_the_name_of_a_system():
    runner = CliRunner()
    found = runner.invoke(app, ["study", "show", "GDPO"])
    assert found.exit_code == 0, found.output
    assert found.output == runner.invoke(app, ["study", "show", "gdpo"]).output
    recipe = runner.invoke(app, ["recipes", "show", "GDPO"])
    assert recipe.output == find_recipe("gdpo-qwen25-vl-3b").path.read_text(encoding="utf-8")
    assert runner.invoke(app, ["study", "show", "gdpoo"]).exit_code == 2
    assert runner.invoke(app, ["recipes", "show", "gdpoo"]).exit_code == 2


@pytest.mark.integration
def test_list_of_recipes_names_the_systems(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    lines = CliRunner().invoke(app, ["recipes", "list"]).output.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.split()[:1] == ["v-triune-qwen25-vl-7b"])
    assert lines[at + 1].strip() == "systems: V-Triune, Orsta"


@pytest.mark.integration
def test_systems_are_read_without_torch():
    code = "import sys; from mmrl.studies.systems import recipe_systems as f; f(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
