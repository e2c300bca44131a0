"""An experiment on the order of prompts: by the angles of the base's hidden states, or at random.

Half of the prompts are calculations that the base sometimes does, and half are far too long for it.
"""

from __future__ import annotations

import math
from contextlib import closing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from mmrl.algorithms.advantages import grpo_advantages
from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards
from mmrl.config import load_config
from mmrl.data.angle_prompts import ANGLE
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.policy import StepOutputs
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import stream_seed
from mmrl.training.rollouts.collect import reward_inputs
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.workflows.prompt_angles import with_angles
from mmrl.workflows.train import train

PROMPTS = 400
"""The number of prompts of training."""
ANSWERS = 8
"""The answers to a prompt."""
QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000", "evaluation.greedy=false")

Floats = NDArray[np.float64]


def learnt_from(
    seed: int,
    order: Literal["angles", "random"] = "random",
    iterations: int = 24,
    every: int = 8,
    too_long: float = 0.5,
    on: str = "shapeworld:sums-validation",
    settings: dict[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Train on prompts in an order, and return how fast answers to others become right.

    Args:
        seed: of the run.
        order: around a place in the ranking by angles that moves (`data.prompts: angle_concentration`), or shuffled.
        iterations: of the run.
        every: the iterations between two evaluations.
        too_long: the share of the prompts of training that the base cannot do.
        on: the samples that are evaluated.
        settings: of `angle_concentration`.

    Returns:
        `numeric`: for each evaluated prompt the share of the evaluations after training began in which its answer is
        right, and `last` whether it is in the last one. `correlation`: Spearman's, over prompts and before training, of
        the norm of a prompt's gradient with its angle, or with its place in a random order.
    """
    norms, angles = prompt_gradients(seed, too_long)
    places = angles if order == "angles" else np.random.default_rng(stream_seed(seed, "order")).random(len(norms))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(_ranked(too_long), path)
        chosen = {"name": "angle_concentration", **(settings or {})} if order == "angles" else {"name": "shuffled"}
        prompts = ", ".join(f"{key}: {value}" for key, value in chosen.items())
        overrides = (
            *(f"data.path={path}", f"data.prompts={{{prompts}}}", f"data.validation={on}"),
            *(f"training.iterations={iterations}", f"evaluation.every={every}"),
            *(f"seed={seed}", f"run.dir={folder}/run"),
        )
        run = train(load_config("shapes-reasoning", [*QUIET, *overrides]))
        after = [step for step in evaluation_steps(run) if step]
        right = np.stack([Evaluation.load(run, step, images=False).by_prompt("numeric")[:, 0] for step in after])
    return {
        "numeric": right.mean(axis=0, dtype=float).tolist(),
        "last": right[-1].astype(float).tolist(),
        "correlation": [float(spearmanr(places, norms).statistic)],
    }


@cache
def prompt_gradients(seed: int, too_long: float, count: int = 128) -> tuple[Floats, Floats]:  # [count], [count]
    """Return the norm of the GRPO gradient of some prompts, each with 8 answers of the base, and their angles.

    The loss is the mean over tokens of advantage times log-probability; it is 0 where all answers are equally right.
    """
    chosen = np.random.default_rng(stream_seed(seed, "prompts")).permutation(len(_ranked(too_long)))[:count]
    ranked = [_ranked(too_long)[place] for place in chosen]
    config = load_config("shapes-reasoning")
    policy = cast(VLMPolicy, build_policy(config.policy, config.sampling, config.media))
    samples = prepare_samples(policy, config.policy, config.answers, config.sampling, ranked)
    parameters = list(policy.parameters_to_train().values())
    norms = []
    with closing(build_rewards(config, samples, SharedLoader())) as suite:
        for number, sample in enumerate(samples):
            rollout = policy.rollout([RolloutRequest(sample, ANSWERS, 0)], seed=stream_seed(seed, "answers") + number)
            totals = torch.from_numpy(suite.score(reward_inputs(rollout)).values[TOTAL])
            advantages = grpo_advantages(totals, rollout.group_index, std="group", ddof=0)
            weights = advantages[:, None] * rollout.mask / rollout.mask.sum()

            def visit(outputs: StepOutputs, weights: Tensor = weights) -> None:
                (-(outputs.log_probs * weights).sum()).backward()

            policy.replay(rollout, range(rollout.mask.shape[1]), visit)
            norms.append(
                math.sqrt(sum(float(each.grad.square().sum()) for each in parameters if each.grad is not None))
            )
            for each in parameters:
                each.grad = None
    return np.array(norms), np.array([float(sample.metadata[ANGLE]) for sample in ranked])


@cache
def _ranked(too_long: float) -> list[Sample]:
    """Return the prompts of training with their angles under the base, which all seeds share."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(partly_too_long(too_long), path)
        return with_angles(load_config("shapes-reasoning", [f"data.path={path}"]))


def partly_too_long(share: float) -> list[Sample]:
    """Return calculations of 2 to 6 operands and a share in [0, 1) of 14 to 20, which the base cannot do."""
    long = [sample for place, sample in enumerate(load_samples("shapeworld:sums-mostly-hard")) if place % 5]
    solvable = load_samples("shapeworld:sums-train")
    if not share:
        return solvable[:PROMPTS]
    count = min(len(long), round(share * PROMPTS))
    return [*solvable[: round(count * (1 - share) / share)], *long[:count]]
