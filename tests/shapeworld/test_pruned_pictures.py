"""Pictures of pruned denoisers: nothing changes without pruning, and arms differ in the units that go."""

from __future__ import annotations

import pytest

from mmrl_shapeworld.pruned_pictures import pruned_pictures

SMALL = {"updates": 2, "prompts": 8}


@pytest.mark.slow
def test_arms_differ_in_their_units_alone():
    whole, magnitude, chance = (
        pruned_pictures(0, "development", units, **SMALL) for units in ("whole", "magnitude", "random")
    )
    assert whole["difference"] == [0.0] * 8 and whole["kept"] == [0.0]
    assert max(whole["total"]) <= 1 and sum(whole["total"]) > sum(chance["total"])
    assert min(magnitude["difference"]) > 0.01 and magnitude["difference"] != chance["difference"]


@pytest.mark.slow  # draws twice through all steps; gates and recomputed steps are tested on tiny pipelines
def test_recomputed_steps_learn_the_same_gates_in_less_memory():
    stored, recomputed = (
        pruned_pictures(0, "development", "end_to_end", recomputed=each, **SMALL) for each in (False, True)
    )
    assert stored["difference"] == recomputed["difference"] and recomputed["kept"][0] < 0.3 * stored["kept"][0]
