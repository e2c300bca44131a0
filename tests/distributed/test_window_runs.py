"""Runs with parameters that are divided over processes: the numbers of one process, also when resumed by others."""

from __future__ import annotations

import pytest

from tests.distributed.group import start_group
from tests.distributed.test_equal_numbers import BOUND, CASES, FURTHER, largest_difference, tensors, train

DIVIDED = "run.place=window"
DAILY = "diffusion-nft"
"""An old policy and a moving average."""
COMPARED = ("flow-grpo", "vlm-grpo", "flow-grpo-lora", "flow-grpo-bf16", "learned-noise", "awm", "max-kl", "vlm-lora")


@pytest.mark.slow  # `test_window` compares every run
@pytest.mark.parametrize("case", [DAILY, *COMPARED])
def test_divided_parameters_give_the_numbers_of_one_process(fork_server, tmp_path, case):
    words = (CASES | FURTHER)[case]
    alone = train(fork_server, tmp_path / "1", 1, *words)
    divided = train(fork_server, tmp_path / "2", 2, *words, DIVIDED)
    assert "place: window" in (divided / "config.yaml").read_text()
    for part in ("parameters", "optimizer", "objective", "average"):
        if (divided / f"checkpoints/step-5/trainer/{part}.safetensors").exists():
            assert tensors(alone, part).keys() == tensors(divided, part).keys()
    print(f"{case}: {largest_difference(alone, divided):.1e}")
    assert largest_difference(alone, divided) <= BOUND


@pytest.mark.slow
def test_runs_go_on_with_other_layouts_and_counts(fork_server, tmp_path):
    words = FURTHER[DAILY]
    whole = train(fork_server, tmp_path / "1", 1, *words)
    short = [word.replace("iterations: 5", "iterations: 3") for word in words]
    run = train(fork_server, tmp_path / "2", 2, *short, DIVIDED)
    for count, iterations, place in ((3, 4, "window"), (1, 5, "auto")):
        changes = [f"training.iterations={iterations}", f"run.place={place}"]
        group = start_group(fork_server, tmp_path / "2", count, "train", "--resume", "run", *changes)
        assert group.wait() == [0] * count, group.output_text()
    assert largest_difference(whole, run) <= BOUND
