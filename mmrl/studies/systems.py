"""The published systems that mmrl is to reproduce, and the table of where each stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import get_args

import yaml

from mmrl.config.recipes import list_recipes
from mmrl.errors import ConfigError
from mmrl.studies.claims import Outcome
from mmrl.studies.study import Study, list_studies
from mmrl.studies.study_result import StudyResult, decimal, interval_cell, published_result

AREAS = {
    "generation": "Generation",
    "understanding": "Understanding",
    "rewards": "Rewards",
    "algorithms": "Algorithms",
    "systems": "Systems",
}


@dataclass(frozen=True)
class System:
    """A published system."""

    key: str
    name: str
    area: str
    adds: str
    claim: str
    recipe: str | None = None
    """A recipe with its settings for a model of full size."""


def load_systems() -> tuple[System, ...]:
    """Return all systems, in the order of their file."""
    text = files("mmrl.studies").joinpath("systems.yaml").read_text(encoding="utf-8")
    return tuple(System(**row) for row in yaml.safe_load(text))


def find_system(name: str) -> System | None:
    """Return the system of a key or of a paper's name, in any case; None if there is none.

    A row's name may list several, `V-Triune, Orsta`: each of them is found, and so is a name without its addition in
    brackets.
    """
    wanted = name.strip().casefold()
    return next((system for system in load_systems() if wanted in _names_of(system)), None)


def study_of_system(name: str) -> Study | None:
    """Return the study of the system of this key or name; None if it is the name of no system.

    Raises:
        ConfigError: the system has no study yet.
    """
    if (system := find_system(name)) is None:
        return None
    found = next((study for study in list_studies() if study.config.paper.key == system.key), None)
    if found is None:
        raise ConfigError(f"{system.name} has no study yet")
    return found


def study_of_title(words: str) -> Study | None:
    """Return the study in whose paper's title these words are, in any case; None if they are in none or several."""
    wanted = words.strip().casefold()
    found = [study for study in list_studies() if wanted in study.config.paper.title.casefold()]
    return found[0] if len(found) == 1 and wanted else None


def recipe_of_system(name: str) -> str | None:
    """Return the recipe of the system of this key or name, its own or its study's; None if it is no system's name.

    Raises:
        ConfigError: the system has no recipe.
    """
    if (system := find_system(name)) is None:
        return None
    if system.recipe is not None:
        return system.recipe
    recipe = {study.config.paper.key: study.config.recipe for study in list_studies()}.get(system.key)
    if recipe is None:
        raise ConfigError(f"{system.name} has no recipe; its study uses none")
    return recipe


def published_results() -> dict[str, StudyResult]:
    """Return the published results of studies of a system, by the key of the system."""
    found = {study.config.paper.key: published_result(study.name) for study in list_studies()}
    return {key: result for key, result in found.items() if key is not None and result is not None}


def verdict_counts(results: Iterable[StudyResult]) -> dict[Outcome, int]:
    """Return how many results have each verdict."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in get_args(Outcome)}


def systems_page() -> str:
    """Return docs/systems.md: a line for each system with its recipe, its study, the verdict and the number."""
    systems, shipped = load_systems(), list_studies()
    own = [study for study in shipped if study.config.paper.key is None]
    studies = {study.config.paper.key: study for study in shipped if study.config.paper.key is not None}
    results = published_results()
    counts = verdict_counts(results.values())
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [
        "# Systems",
        "",
        "<!-- Written by `python -m tools.systems` from mmrl/studies/systems.yaml and docs/results/studies. -->",
        "",
        f"{len(systems)} published systems. {sum(counts.values())} have a study with a result: {listed}. A study is "
        "one file, which `mmrl study run NAME` runs: the claim of the paper against its own ablation, on a small world "
        "that is drawn by rules. A verdict says what was seen there, with the interval over prompts and seeds; it is "
        "no statement about the models of the paper. A study holds if all of its claims do; the difference is that of "
        "the first claim on which the verdict rests.",
    ]
    for area, title in AREAS.items():
        lines += ["", f"## {title}", "", "| system | what it adds | recipe | study | verdict | difference |",
                  "|-|-|-|-|-|-|"]  # fmt: skip
        lines += [_row(each, studies.get(each.key), results.get(each.key)) for each in systems if each.area == area]
    lines += ["", "## Studies of the suite's own", "", "Comparisons that are not of one system.", "",
              "| study | recipe | verdict | claims |", "|-|-|-|-|"]  # fmt: skip
    lines += [_own_row(study, published_result(study.name)) for study in own]
    return "\n".join(lines) + "\n"


def recipe_systems() -> dict[str, list[str]]:
    """Return the names of the systems that each recipe serves: as its own, or as the base of its study."""
    served: dict[str, list[str]] = {recipe.name: [] for recipe in list_recipes()}
    bases = {study.config.paper.key: study.config.recipe for study in list_studies()}
    for system in load_systems():
        for recipe in dict.fromkeys((system.recipe, bases.get(system.key))):
            if recipe in served:
                served[recipe].append(system.name)
    return served


def _names_of(system: System) -> set[str]:
    names = [system.key, system.name, *system.name.split(",")]
    names += [name.partition("(")[0] for name in names]
    return {name.strip().casefold() for name in names}


def _row(system: System, study: Study | None, result: StudyResult | None) -> str:
    recipe = (
        f"`{system.recipe}`" if system.recipe else f"`{study.config.recipe}`" if study and study.config.recipe else ""
    )
    if study is None or result is None:
        name = f"`{study.name}`" if study else ""
        return f"| {system.name} | {system.adds} | {recipe} | {name} | not run | |"
    link = f"[{study.name}](results/studies/{study.name}.md)"
    return f"| {system.name} | {system.adds} | {recipe} | {link} | {result.verdict} | {_difference(result)} |"


def _difference(result: StudyResult) -> str:
    """Return the differences of the first claim with the study's verdict, and how many others hold."""
    claim = next(claim for claim in result.claims if claim.verdict == result.verdict)
    holding = sum(each.verdict == "holds" for each in result.claims)
    contrasts, others = claim.contrasts, f"claims that hold: {holding} of {len(result.claims)}; " if holding else ""
    if result.verdict == "holds":
        contrasts, others = claim.contrasts[:1], ""
    return others + "; ".join(
        f"{each.label}: {decimal(each.mean, '+')}" + ("" if each.low is None else f" ({interval_cell(each)})")
        for each in contrasts
    )


def _own_row(study: Study, result: StudyResult | None) -> str:
    recipe = f"`{study.config.recipe}`" if study.config.recipe else ""
    start = f"| {study.config.paper.title}: "
    if result is None:
        return f"{start}`{study.name}` | {recipe} | | not run |"
    verdicts = [claim.verdict for claim in result.claims]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
    return f"{start}[{study.name}](results/studies/{study.name}.md) | {recipe} | {result.verdict} | {counts} |"
