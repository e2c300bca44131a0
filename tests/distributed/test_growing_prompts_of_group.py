"""Two processes add the samples that one adds, also from pictures that another process has drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmrl.distributed import processes
from mmrl.rollout import Rollout
from mmrl.training.rollouts.exchange import shared_media, shared_rollouts
from tests.distributed.calls_in_group import call_in_group
from tests.training.growing_prompts import growing
from tests.training.token_policy import questions
from tests.training.token_run import collect, source


def added_and_pictures(folder: Path) -> dict[str, Any]:
    """Return the samples that were added in five iterations, and a pixel of each of four pictures."""
    sampler = growing(questions())
    here = source(prompts=sampler)
    for number in range(5):
        collect(here, number)
    own = {number: drawn(number) for number in range(2) if processes.size() == 1 or number == processes.rank()}
    rollouts = shared_rollouts(own, questions())
    pictures = shared_media(rollouts, [0, 3])
    sizes = [list(rollout.media[0].size) for rollout in rollouts if hasattr(rollout.media[0], "size")]
    return {
        "added": sampler.lines(),
        "state": json.dumps(sampler.state_dict()),
        "pixels": {str(row): [*picture.size, *picture.getpixel((39, 0))] for row, picture in pictures.items()},
        "sizes": sizes,
    }


def drawn(number: int) -> Rollout:
    """Two pictures of 40 × 30 pixels, each of one colour."""
    sample = questions()[number]
    return Rollout(
        samples=[sample, sample],
        group_index=torch.tensor([number, number]),
        policy_version=0,
        log_probs=torch.zeros(2, 1),
        mask=torch.ones(2, 1, dtype=torch.bool),
        channel=torch.zeros(2, 1, dtype=torch.int64),
        media=[Image.new("RGB", (40, 30), (10 * number + row, 1, 2)) for row in range(2)],
        recording=None,
    )


def test_two_processes_add_what_one_adds(fork_server, tmp_path):
    alone = added_and_pictures(tmp_path)
    assert len(alone["added"]) == 4 and alone["pixels"] == {"0": [40, 30, 0, 1, 2], "3": [40, 30, 11, 1, 2]}
    for each in call_in_group(fork_server, tmp_path, 2, f"{__name__}:added_and_pictures"):
        assert {key: each[key] for key in ("added", "state", "pixels")} == {
            key: alone[key] for key in ("added", "state", "pixels")
        }
