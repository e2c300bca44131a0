"""Runs whose parameters are never whole: the numbers of one process, and the configurations that are turned away."""

from __future__ import annotations

import diffusers
import pytest
import torch

from mmrl.build.training_setup import check_processes
from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints
from tests.distributed.group import start_group
from tests.distributed.test_equal_numbers import BOUND, CASES, FURTHER, largest_difference, tensors, train

STRICT = "run.place=strict"
DAILY = "diffusion-nft"
"""An old policy and a moving average."""
COMPARED = ("flow-grpo", "flow-grpo-lora-kl", "flow-grpo-bf16", "learned-noise", "awm", "diffusion-nft-lora")
LORA = {
    "flow-grpo-lora-kl": (*FURTHER["flow-grpo-lora"], "algorithm={name: grpo, kl: {coef: 0.01}}"),
    "diffusion-nft-lora": (*CASES["diffusion-nft"], "policy.train=lora"),
}


@pytest.mark.parametrize("case", [DAILY, *(pytest.param(case, marks=pytest.mark.slow) for case in COMPARED)])
def test_parameters_that_are_never_whole_give_the_numbers_of_one_process(fork_server, tmp_path, case):
    words = (CASES | FURTHER | LORA)[case]
    alone = train(fork_server, tmp_path / "1", 1, *words)
    divided = train(fork_server, tmp_path / "2", 2, *words, STRICT)
    for part in ("parameters", "optimizer", "objective", "average"):
        if (divided / f"checkpoints/step-5/trainer/{part}.safetensors").exists():
            assert tensors(alone, part).keys() == tensors(divided, part).keys()
    print(f"{case}: {largest_difference(alone, divided):.1e}")
    assert largest_difference(alone, divided) <= BOUND
    if "lora" not in case:
        folders = [Checkpoints(run).path() / "transformer" for run in (alone, divided)]
        one, other = (diffusers.AutoModel.from_pretrained(str(folder)) for folder in folders)
        assert type(one) is type(other)
        assert folders[0].joinpath("config.json").read_bytes() == folders[1].joinpath("config.json").read_bytes()
        pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        assert all(torch.allclose(mine, theirs, atol=BOUND) for mine, theirs in pairs)
