"""The parity matrix: each family by a server and in process."""

from __future__ import annotations

from typing import Any

import pytest

from mmrl.understanding.vlm_support import proven
from tests.understanding import tiny_vlms as tiny
from tests.understanding.serving.served_parity import check_served
from tests.understanding.vlm_representatives import representatives, served_features

EVERY_DAY = {"qwen2_5_vl", "gemma3"} | representatives(served_features)


def names() -> list[Any]:
    """Return a parameter for each family, marked `breadth` unless it is tested every day."""
    return [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.breadth) for name in tiny.TAKES]


@pytest.mark.integration
@pytest.mark.parametrize("name", names())
def test_served_rollouts_equal_those_in_process(folder_of, tmp_path, name):
    _, limit = check_served(name, folder_of(name), tmp_path)
    assert proven()[name].served == limit, "python -m tests.understanding.serving.served_parity writes it anew"
