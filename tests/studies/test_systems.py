"""The table of published systems says what the files say."""

from __future__ import annotations

from mmrl.config.recipes import list_recipes
from mmrl.studies.published import published_result, results_folder
from mmrl.studies.study import list_studies
from mmrl.studies.systems import AREAS, load_systems, systems_page, unknown_keys


def test_systems_have_unique_keys_and_known_areas():
    systems = load_systems()
    assert len(systems) == len({system.key for system in systems}) == 158
    assert {system.area for system in systems} == set(AREAS)


def test_recipes_of_systems_exist():
    known = {recipe.name for recipe in list_recipes()}
    assert [system.key for system in load_systems() if system.recipe and system.recipe not in known] == []


def test_every_study_is_of_a_system():
    assert unknown_keys(list_studies()) == []


def test_the_page_is_written_from_the_files(repository):
    written = (repository / "docs" / "systems.md").read_text(encoding="utf-8")
    assert written == systems_page(), "run: python -m tools.systems"


def test_published_results_are_of_shipped_studies_and_state_the_verdict_of_their_claims():
    names = {study.name for study in list_studies()}
    for path in results_folder().glob("*.json"):
        assert path.stem in names
        result = published_result(path.stem)
        assert result is not None
        assert result.study == path.stem
        assert path.with_suffix(".md").read_text(encoding="utf-8").startswith(f"# {result.paper['title']}: ")


def test_published_verdicts_follow_from_the_published_values():
    """Every verdict is judged again from the raw values in its file."""
    from mmrl.studies.study_result import judge_claims

    for study in list_studies():
        result = published_result(study.name)
        if result is None:
            continue
        again = judge_claims(study, result.measures, independent=study.config.score is None)
        assert [claim.verdict for claim in again] == [claim.verdict for claim in result.claims], study.name
