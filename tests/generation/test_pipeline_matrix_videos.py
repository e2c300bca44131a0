"""Every tiny model that draws or edits videos: the checks of `pipeline_matrix`."""

from __future__ import annotations

import pytest

from tests.generation.pipeline_matrix import VIDEOS, Built, build, check_answers, check_replays, names


@pytest.fixture(scope="module", params=names(*VIDEOS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.slow
def test_replay_is_exact_and_trains(built):
    check_replays(built)


@pytest.mark.integration
def test_rows_depend_on_each_of_their_inputs(built):
    check_answers(built)
