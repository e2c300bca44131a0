"""Runs whose parameters are never whole: the numbers of one process, and the configurations that are turned away."""

from __future__ import annotations

import diffusers
import pytest
import torch

from mmrl.build.config_checks import check_processes
from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints
from tests.distributed.test_equal_numbers import BOUND, CASES, FURTHER, largest_difference, tensors, train

STRICT = "run.place=strict"
DAILY = "diffusion-nft"
"""An old policy and a moving average."""
COMPARED = ("flow-grpo", "flow-grpo-lora-kl", "learned-noise", "awm", "diffusion-nft-lora")
LORA = {
    "flow-grpo-lora-kl": (*FURTHER["flow-grpo-lora"], "algorithm={name: grpo, kl: {coef: 0.01}}"),
    "diffusion-nft-lora": (*FURTHER["diffusion-nft"], "policy.train=lora"),
}


@pytest.mark.slow
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


UNEQUAL = {
    "run.place: strict is for diffusion and flow models": ("shapes-vlm",),
    "algorithm.name: run.place strict trains by": ("quickstart", "algorithm={name: online_dpo}"),
    "data.group_sampling: dynamic": (
        "flow-grpo", "data.group_sampling={name: dynamic, max_rounds: 2}",
    ),
    "data.replay: run.place strict": ("flow-grpo", "data.replay={name: selective}"),
    "data.demonstrations: run.place strict": ("flow-grpo", "data.demonstrations={share: 0.5}"),
    "training.max_kl: ": ("flow-grpo", "training.max_kl=1"),
    "sampling.branch: ": ("flow-grpo", "sampling.window={}", "sampling.branch={at: [1]}",
        "algorithm={name: branch_grpo}"),
    "data.micro_batch: .* 2 processes, and an update is 3 calls": (
        "flow-grpo", "data.groups=3", "data.group_size=4", "data.micro_batch=4", "training.updates=1"
    ),
    "data.micro_batch: a reward compares": (
        "flow-grpo", "data.groups=4", "data.group_size=4", "data.micro_batch=2", "training.updates=1",
        "rewards=[{name: diversity}]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", UNEQUAL)
def test_unequal_calls_are_refused_by_their_key_before_a_model_is_loaded(message):
    recipe, *words = UNEQUAL[message]
    config = load_config(recipe, overrides=[*words, STRICT])
    with pytest.raises(ConfigError, match=f"(?m)^{message}.*window$"):
        check_processes(config, 2)
    check_processes(config.model_copy(update={"run": config.run.model_copy(update={"place": "window"})}), 2)


@pytest.mark.slow
def test_processes_with_fewer_evaluation_calls_repeat_one(fork_server, tmp_path):
    """Three calls of two rows for two processes."""
    words = (*FURTHER[DAILY], "training={iterations: 1}", "data.validation=shapeworld:development",
             "evaluation={prompts: 6, samples: 1, batch: 2, diversity_prompts: 0}")  # fmt: skip
    alone = train(fork_server, tmp_path / "1", 1, *words)
    divided = train(fork_server, tmp_path / "2", 2, *words, STRICT)
    assert largest_difference(alone, divided) <= BOUND
