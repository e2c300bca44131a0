"""The choice of a checkpoint by entropy, by rewards and by place: by hand, and of a run that is trained."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl_shapeworld.reasoning.picked_checkpoints import Trajectory, picked_checkpoint, trajectory

RUN = ("few", "development", "validation", 4, 2, 8, 2)  # four iterations, a checkpoint every second one, 8 prompts


def test_each_criterion_picks_its_own_checkpoint():
    found = Trajectory((5, 10, 15, 20), 10, (0.2, 0.4, 0.9, 0.8), (0.7, 0.6, 0.5, 0.7), {})
    assert [
        found.picked(pick) for pick in ("critical_entropy", "training_reward", "validation_reward", "first", "last")
    ] == [
        *(10, 15, 20, 5, 20),
    ]  # of two equal ones, the later


@pytest.mark.slow
def test_a_run_is_read_as_it_was_trained_once():
    found = trajectory(3, *RUN)
    assert found is trajectory(3, *RUN) and found.steps == (2, 4) and found.by_entropy in found.steps
    assert all(values.shape == (8,) and set(values.tolist()) <= {0.0, 0.5, 1.0} for values in found.heldout.values())
    assert not np.array_equal(found.heldout[2], found.heldout[4])
    answered = picked_checkpoint(3, "last", *RUN)
    assert answered == {"right": found.heldout[4].tolist(), "step": [4.0]}
    assert found.training_rewards[0] == pytest.approx(0.8, abs=0.2)  # the base has 0.75
