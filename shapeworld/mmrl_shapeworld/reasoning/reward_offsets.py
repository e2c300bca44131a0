"""An experiment on rewards that differ by a constant for each prompt, and hence say the same of its answers.

A reward model of comparisons is known up to a constant for each prompt. Two runs learn from the same rewards, of which
those of one are moved by such constants; what differs after training is due to the constants alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from mmrl.config import load_config
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.numeric import Numeric
from mmrl.seeds import stream_seed
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.workflows.train import train

SIZES = (
    "data.validation=null",
    "evaluation={}",
    "data.groups=8",
    "run.display=quiet",
    "run.pictures=0",
    "sampling.max_new_tokens=24",
    "training.save_every=1000",
)


class OffsetNumeric(Numeric):
    """1 for a right number, else 0, plus a constant of the prompt: a multiple of 1/8, at most `most`."""

    name, range = "offset_numeric", (-4.0, 5.0)

    def __init__(self, most: float = 1.0) -> None:
        super().__init__()
        self.most = most

    def score_one(self, item: RewardInput) -> float:
        try:
            right = super().score_one(item)
        except InvalidAnswer:
            right = 0.0  # as a wrong number: an invalid answer would get the same reward for every prompt
        return right + prompt_offset(item.prompt, self.most)


def prompt_offset(prompt: str, most: float) -> float:
    """Return a constant in [-most, most] that the text of a prompt decides: a multiple of 1/8, which adds exactly.

    >>> prompt_offset("2+3", 0.0), prompt_offset("2+3", 1.0) == prompt_offset("2+3", 1.0)
    (0.0, True)
    """
    steps = int(8 * most)
    return (stream_seed(0, prompt) % (2 * steps + 1) - steps) / 8


def moved_rewards(seed: int, algorithm: Mapping[str, Any], iterations: int = 8, most: float = 1.0) -> dict[str, Any]:
    """Train `shapes-reasoning` twice, the second time with constants added to the rewards of each prompt.

    Args:
        seed: of both runs.
        algorithm: the section `algorithm`; a critic of the name `critic` is there for `ppo`.
        iterations: of training, with two updates in each.
        most: the largest constant.

    Returns:
        `difference`: the largest difference of a parameter of the policy after training.
    """
    plain, moved = (_parameters(seed, algorithm, iterations, each) for each in (0.0, most))
    pairs = [(values, moved[name]) for name, values in plain.items()]
    return {"difference": [max(float((one - two).abs().max()) for one, two in pairs)]}


def _parameters(seed: int, algorithm: Mapping[str, Any], iterations: int, most: float) -> Mapping[str, Tensor]:
    """Return the parameters of the policy after training with rewards that are moved by at most `most`."""
    critic = "{critic: {model: 'shapeworld:sums', train: full, head: value, optimizer: {lr: 1.0e-3}}}"
    keys = [f"algorithm.{key}={value}" for key, value in algorithm.items()]
    with TemporaryDirectory() as folder:
        config = load_config(
            "shapes-reasoning",
            [
                *SIZES,
                *keys,
                *([f"models={critic}"] if algorithm["name"] == "ppo" else []),
                f"seed={seed}",
                f"rewards=[{{name: 'mmrl_shapeworld.reasoning.reward_offsets:OffsetNumeric', args: {{most: {most}}}}}]",
                f"training.iterations={iterations}",
                "training.updates=2",
                "data.micro_batch=32",
                f"run.dir={folder}/run",
            ],
        )
        return load_file(Checkpoints(train(config)).path() / "trainer" / "parameters.safetensors")
