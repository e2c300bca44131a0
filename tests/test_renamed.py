"""Names of the last release still work, each with one FutureWarning that names the new one."""

from __future__ import annotations

from importlib import import_module

import pytest

RENAMED = [
    ("mmrl.rewards", "Part", "WeightedReward"),
    ("mmrl.generation", "TapeError", "ReplayError"),
    ("mmrl.understanding", "Written", "GeneratedTokens"),
    ("mmrl.training", "Trainer", "TrainingLoop"),
    ("mmrl.assemble", "train", "train"),
    ("mmrl.assemble", "sample_images", "sample_images"),
]


@pytest.mark.parametrize(("package", "old", "new"), RENAMED)
def test_old_name_warns_and_is_the_new_object(package, old, new):
    with pytest.warns(FutureWarning, match=rf"{package}.{old} is now \S+\.{new}; the old name goes"):
        found = getattr(import_module(package), old)
    assert found.__name__ == new


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'mmrl.rewards' has no attribute 'Nothing'"):
        _ = import_module("mmrl.rewards").Nothing
