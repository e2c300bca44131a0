"""Every tiny vision-language model: the checks of `vlm_matrix`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mmrl.understanding.vlm_support import proven
from tests.understanding import tiny_vlms as tiny
from tests.understanding.vlm_matrix import CHECKS, BuiltVLM, build
from tests.understanding.vlm_record import facts_of
from tests.understanding.vlm_representatives import features, representatives


def names() -> list[Any]:
    """Return a parameter for each family, marked `breadth` unless it is a representative."""
    rare = [name for name in tiny.TAKES if name not in representatives()]
    return [pytest.param(name, marks=pytest.mark.breadth) if name in rare else name for name in tiny.TAKES]


@pytest.fixture(scope="module", params=names())
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuiltVLM:
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_every_family(built, check):
    check(built)


def test_file_of_what_is_proven_says_what_was_seen(built):
    seen = replace(facts_of(built), served=proven()[built.name].served)  # that one is of the parity matrix
    assert proven()[built.name] == seen, "python -m tests.understanding.vlm_record writes it anew"


def test_proven_types_are_those_of_the_matrix():
    assert set(tiny.TAKES) == set(proven())


def test_representatives_cover_every_combination_once():
    chosen = [features(name) for name in representatives()]
    everyday = {features(name) for name in (*tiny.FAMILIES, *(n for n, row in tiny.ROWS.items() if not row.heavy))}
    assert len(chosen) == len(set(chosen))
    assert set(chosen) | {features(name) for name in tiny.FAMILIES} == everyday
    assert 8 <= len(chosen) <= 24
