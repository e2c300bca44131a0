"""The decoder of a codec and its discriminator learn in several processes what they learn in one, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.config.algorithms.decoder_turns import ReconstructionConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.distributed import processes
from mmrl.distributed.gradients import sum_gradients
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs
from mmrl.training.objectives.decoder_training import TruePictureLoss
from mmrl.training.rollouts.true_pictures import TruePictures
from tests.distributed.calls_in_group import call_in_group
from tests.training.objectives.test_decoder_training import (
    NEAR,
    OneGain,
    OneSlope,
    batch_of,
    objective_of,
    sample_of,
)
from tests.training.token_policy import TokenPolicy


class Pictures:
    """Five samples, each with a true picture of another tone."""

    def next(self):
        return [sample_of(tone, f"s{tone}") for tone in (-0.5, 0.1, 0.3, 0.6, 0.9)]


def summed(objective: Objective, batches: list[MicroBatch], parameters: list[nn.Parameter]) -> dict[str, Any]:
    """Return the sum over the processes of the gradients of an update, and its metrics."""
    metrics = MetricAccumulator()
    objective.accumulate(batches, 1.0, list(range(len(batches))), metrics)
    sum_gradients(parameters)
    found = [None if parameter.grad is None else parameter.grad.item() for parameter in parameters]
    return {"gradients": found, "metrics": metrics.over_processes().values()}


def of_an_update(folder: Path) -> dict[str, Any]:
    """Return the gradients of RankE in which the second of two calls is that of process 1, if there is one."""
    objective, decoder, judge = objective_of(
        reconstruction=1.0, adversarial=0.7, consistency=10.0, reward=1.0, best=2, best_temperature=0.5
    )
    objective.load_state_dict({"gain": torch.tensor(0.4)})
    batches = [batch_of([0.0, 1.0, 3.0, 2.0], [0, 1, 3, 2]), batch_of([0.5, 0.0, 2.0, 1.0], [3, 1, 0, 2])]
    for number, batch in enumerate(batches):
        batch.rollout.group_index += 2 * number
        if not processes.owns(number):
            batches[number] = replace(batch, rollout=replace(batch.rollout, recording=None, remote=True))
    return summed(objective, batches, [decoder.gain, judge.slope])


def of_true_pictures(folder: Path) -> dict[str, Any]:
    """Return the gradients of the stage before, which learns from five pictures in calls of two."""
    decoder, judge = OneGain(), OneSlope()
    inputs = ObjectiveInputs(TokenPolicy(), TokenSamplingConfig(), parts={"decoder": decoder, "judge": judge})
    objective = TruePictureLoss.build(ReconstructionConfig(perceptual=NEAR, discriminator="judge"), inputs)
    batches = TruePictures(Pictures(), 2).collect(0, 0.0, None).micro_batches
    calls = sum(not batch.rollout.remote for batch in batches)
    return summed(objective, batches, [decoder.gain, judge.slope]) | {"calls": calls}


@pytest.mark.parametrize("count", [2, 3])
def test_the_losses_of_a_decoder_are_dealt_and_summed(fork_server, tmp_path, count):
    alone = of_an_update(tmp_path)
    assert all(alone["gradients"]) and {"decoder/chosen", "discriminator/loss"} < alone["metrics"].keys()
    assert call_in_group(fork_server, tmp_path, count, f"{__name__}:of_an_update") == [alone] * count


def test_calls_of_true_pictures_are_dealt_and_summed(fork_server, tmp_path):
    alone = of_true_pictures(tmp_path)
    assert alone.pop("calls") == 3 and all(alone["gradients"])
    found = call_in_group(fork_server, tmp_path, 2, f"{__name__}:of_true_pictures")
    assert [each.pop("calls") for each in found] == [2, 1]
    for each in found:
        assert each["gradients"] == pytest.approx(alone["gradients"], rel=1e-6)
        assert each["metrics"] == pytest.approx(alone["metrics"], rel=1e-6)
