"""An experiment for the study of VARGPT-v1.1: rounds of SFT and DPO while the resolution of pictures grows.

A generator that draws scale by scale learns at 16 pixels, which are its first three scales, and then at 32. At each
resolution it imitates true pictures, and then either learns by DPO from pairs of pictures that it drew, where the one
that follows the caption better by the checker is chosen, or goes on to imitate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.rollout_request import RolloutRequest
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.workflows.train import train
from mmrl_shapeworld.budgeted_runs import QUIET
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.observer import agreement, load
from mmrl_shapeworld.splits import samples

Method = Literal["none", "sft", "last", "alternating"]
SIZES = (16, 32)
SHARP = 0.5
"""The temperature, of 1, 0.7 and 0.5, at which the generator is best before training."""


def growing_resolution(
    seed: int,
    method: Method = "none",
    on: str = "pictured-validation",
    prompts: int = 384,
    imitated: int = 12,
    preferred: int = 24,
    rows: int = 96,
    groups: int = 24,
    sft_lr: float = 2.5e-4,
    dpo_lr: float = 1e-4,
    beta: float = 0.1,
) -> dict[str, Sequence[float]]:
    """Return how pictures of 32 pixels follow their captions after training.

    Args:
        seed: of the training and of the pictures that are measured.
        method: none: the generator stays as it ships. sft: all iterations imitate. alternating: at each resolution SFT
            is followed by DPO. last: DPO has all of its iterations at the end, at 32 pixels.
        on: the split of captions.
        prompts: of them that are measured, with one picture each.
        imitated: iterations of SFT at each resolution.
        preferred: iterations of DPO after them, or of SFT in its place.
        rows: true pictures of an iteration of SFT.
        groups: of eight pictures of an iteration of DPO; the best and the worst are a pair.
        sft_lr: of the optimizer while it imitates.
        dpo_lr: of the optimizer in DPO.
        beta: of DPO.

    Returns:
        Of each caption's picture: `score`, the checker's partial credit, and `strict`, 1 if it is exactly right; and
        `observed`, the probability by a network of which no reward is made that the named things are there. The same of
        a picture at temperature 0.5, where the generator is best before training: `sharp_score` and so on.
    """
    with TemporaryDirectory() as folder:
        model = "shapeworld:scales"
        for number, (algorithm, size, count) in enumerate(_stages(method, imitated, preferred)):
            where = Path(folder) / str(number)
            imitates = algorithm == "sft"
            path = "pictured-imitated" if imitates else "pictured-train"
            config = load_config(
                "shapes-scales",
                [
                    *QUIET,
                    "evaluation={prompts: 8, samples: 1}",
                    f"seed={1000 * seed + number}",
                    f"run.dir={where}",
                    f"policy.model={model}",
                    f"policy.size=[{size}, {size}]",
                    "algorithm={name: sft}" if imitates else f"algorithm={{name: online_dpo, beta: {beta}}}",
                    f"data={{path: 'shapeworld:{path}', validation: 'shapeworld:{on}', "
                    f"groups: {rows if imitates else groups}, group_size: 8}}",
                    f"optimizer={{lr: {sft_lr if imitates else dpo_lr}, betas: [0.9, 0.95]}}",
                    f"training={{iterations: {count}}}",
                ],
            )
            model = str(Checkpoints(train(config)).path())
        return _measured(model, seed, on, prompts)


def _stages(method: Method, imitated: int, preferred: int) -> list[tuple[str, int, int]]:
    """Return the algorithm, the side of pictures and the iterations of each stage."""
    if method == "none":
        return []
    small, large = SIZES
    if method == "last":
        return [("sft", small, imitated), ("sft", large, imitated), ("dpo", large, 2 * preferred)]
    second = "sft" if method == "sft" else "dpo"
    return [stage for size in (small, large) for stage in (("sft", size, imitated), (second, size, preferred))]


def _measured(model: str, seed: int, on: str, prompts: int) -> dict[str, Sequence[float]]:
    config = load_config("shapes-scales", [f"policy.model={model}"])
    policy, network = build_policy(config.policy, config.sampling, config.media), load()
    chosen = samples(on)[:prompts]
    captions = [Caption.from_dict(sample.answer) for sample in chosen]
    found: dict[str, Sequence[float]] = {}
    for prefix, temperature in (("", 1.0), ("sharp_", SHARP)):
        sampling = ImageTokenSamplingConfig(temperature=temperature)
        requests = [RolloutRequest(sample, 1, row, sampling=sampling) for row, sample in enumerate(chosen)]
        pairs = list(zip(policy.rollout(requests, 100_000 * seed).media, captions, strict=True))
        verdicts = [judge(picture, caption) for picture, caption in pairs]
        found[f"{prefix}score"] = [verdict.score for verdict in verdicts]
        found[f"{prefix}strict"] = [float(verdict.strict) for verdict in verdicts]
        found[f"{prefix}observed"] = [agreement(network, picture, caption) for picture, caption in pairs]
    return found
