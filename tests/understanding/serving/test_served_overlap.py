"""Served rollouts that are sampled ahead of the update: by a thread, with a copy of the policy and its own engine."""

from __future__ import annotations

import pytest

from mmrl.workflows.train import train
from tests.understanding.serving.served_run import Outcome, served_config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overlap", "ages"),
    [
        ({"lag": 1}, [0, 1, 1]),
        pytest.param({"lag": 1, "stream": True}, [0, 1, 1], marks=pytest.mark.slow),
        pytest.param({"stream": True}, [0, 0, 0], marks=pytest.mark.slow),
    ],
)
def test_served_rollouts_have_the_age_that_the_lag_says(server, folder_of, tmp_path, overlap, ages):
    config = served_config(
        folder_of("qwen3_vl"), tmp_path, {"urls": [server.url_of("lora")]}, training={"iterations": 3, "save_every": 10}
    )
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"overlap": config.run.overlap.model_copy(update=overlap)})}
    )
    lines = Outcome(train(config)).metrics()
    assert [line["lag/updates"] for line in lines] == ages
    if "stream" not in overlap:  # the engine agrees with the parameters that sampled
        assert max(line["mismatch/engine_gap"] for line in lines) < 1e-4
    for line, age in zip(lines, ages, strict=True):
        assert (line["mismatch/mean_gap"] > 1e-3) == (age > 0)  # the parameters of the update have moved on
        assert line["served/servers"] == 1
