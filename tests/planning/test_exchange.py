"""The bytes that the prediction says two processes exchange are those that they report."""

from __future__ import annotations

import json

import pytest

from mmrl.config import load_config
from mmrl.planning.assumptions import Assumptions
from mmrl.planning.phase_measurement import measure
from mmrl.planning.prediction import exchange_seconds
from tests.distributed.test_equal_numbers import CASES, FURTHER, SHORT, train

ONE_BYTE_A_SECOND = Assumptions(bandwidth=1e-9, node_bandwidth=1e-9, latency=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["replicas", "window"])
@pytest.mark.parametrize("case", ["diffusion-nft", "vlm-grpo"])
def test_two_processes_exchange_the_predicted_bytes(fork_server, tmp_path, case, place):
    """Two processes gather a tensor in the time of half of it, and add up in the time of all of it.

    Reported are whole tensors, each once: the gradients of an update count twice in the time of `replicas`, half a time
    in that of a gather. Rollouts and metrics travel as objects, which are not reported.
    """
    recipe, *words = (CASES | FURTHER)[case]
    run = train(fork_server, tmp_path, 2, recipe, *words, "training.iterations=3", f"run.place={place}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    reported = [row["exchanged_mib"] * 2**20 for row in rows if row["kind"] == "train"][-1]

    work = measure(load_config(recipe, [*SHORT, *words]), repeats=1).work
    seconds = exchange_seconds(work, ONE_BYTE_A_SECOND, 2, place) - work.calls * work.experience_bytes / 2
    assert (seconds if place == "replicas" else 2 * seconds) == pytest.approx(reported, rel=0.02)
