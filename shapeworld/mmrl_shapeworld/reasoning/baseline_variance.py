"""An experiment on the baseline of least variance: the spread of gradients of a fixed policy, and steps to a target."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from mmrl.algorithms.advantages import rloo_advantages
from mmrl.algorithms.optimal_baseline import optimal_baseline_advantages
from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards
from mmrl.config import load_config
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import stream_seed
from mmrl.training.rollouts.collect import reward_inputs
from mmrl.training.rollouts.gradient_norms import answer_gradient, recorded_squared_norms
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.workflows.train import train

ANSWERS, GROUP, REGROUPINGS = 64, 8, 50
"""Answers to a prompt whose gradients are computed, answers of a group, and random divisions into groups."""
QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000", "evaluation.greedy=false")


def learnt_with(
    seed: int,
    advantage: dict[str, Any],
    changes: dict[str, Any] | None = None,
    target: float = 0.6,
    iterations: int = 40,
    every: int = 4,
    prompts: int = 16,
    family: str = "remainders",
    on: str = "validation",
) -> dict[str, list[float]]:
    """Measure the gradient's variance with a baseline, train with it, and return both.

    Args:
        seed: of answers and run.
        advantage: the keys of `algorithm.advantage`. `rloo` compares with the mean of the others, `optimal_baseline`
            with their weighted mean.
        changes: further keys of the run's configuration, by dotted name.
        target: the share of right answers that counts as reached.
        iterations: of the run; 0: do not train.
        every: the iterations between two evaluations.
        prompts: the number whose gradients are measured, all of which have right and wrong answers; 0: do not measure.
        family: of calculations, which names model and data sets.
        on: the split that is evaluated.

    Returns:
        `log_variance`: the natural logarithm of the variance of the gradient of a group of 8 answers, the trace of its
        covariance, for each prompt. `correlation`: Spearman's over answers, of exact squared norms with recorded ones,
        for each prompt. `numeric`: for each evaluated prompt the share of the evaluations after training began in which
        it is answered rightly, and `last` whether it is in the last one. `steps`: the iterations until `target` was
        reached, at the resolution of the evaluations; one evaluation more than there were if it was not.
    """
    found: dict[str, list[float]] = {}
    if prompts:
        norms = advantage.get("norms", "exact") if advantage["name"] == "optimal_baseline" else None
        found = _variances(answer_gradients(seed, prompts, family), norms, seed)
    if not iterations:
        return found
    with TemporaryDirectory() as folder:
        keys: dict[str, Any] = {
            "algorithm": {"name": "grpo", "aggregate": "constant", "advantage": advantage},
            "data.validation": f"shapeworld:{family}-{on}",
            "training.iterations": iterations,
            "evaluation.every": every,
            "seed": seed,
            "run.dir": f"{folder}/run",
            **(changes or {}),
        }
        run = train(load_config("shapes-reasoning", [*_of(family), *(f"{k}={json.dumps(v)}" for k, v in keys.items())]))
        after = [step for step in evaluation_steps(run) if step]
        right = np.stack([Evaluation.load(run, step, images=False).by_prompt("numeric")[:, 0] for step in after])
    shares = right.mean(axis=1, dtype=float)
    reached = [step for step, share in zip(after, shares, strict=True) if share >= target]
    return {
        **found,
        "numeric": right.mean(axis=0, dtype=float).tolist(),
        "last": right[-1].astype(float).tolist(),
        "steps": [float(reached[0] if reached else iterations + every)],
    }


def _of(family: str) -> tuple[str, ...]:
    return (*QUIET, f"policy.model=shapeworld:{family}", f"data.path=shapeworld:{family}-train")


def _variances(
    gradients: Sequence[tuple[Tensor, Tensor, Tensor]], norms: str | None, seed: int
) -> dict[str, list[float]]:
    """Return the measures of each prompt with a baseline by these norms; None: the plain mean."""
    variances, correlations = [], []
    for rewards, products, recorded in gradients:
        exact = products.diagonal()
        weights = {"exact": exact, "recorded": recorded, None: None}[norms]
        variances.append(math.log(group_variance(rewards, products, weights, seed)))
        correlations.append(float(spearmanr(exact, recorded).statistic))
    return {"log_variance": variances, "correlation": correlations}


def group_variance(
    rewards: Tensor,  # [N] float64
    products: Tensor,  # [N, N] float64, the inner products of the answers' gradients
    squared_norms: Tensor | None,  # [N]; None: answers are compared with the plain mean
    seed: int,
    group: int = GROUP,
) -> float:
    """Return the variance of the mean over a group of advantage times gradient, over random divisions into groups.

    An answer is compared with the others of its group, so that both baselines give a gradient without bias.
    """
    generator, total, count = torch.Generator().manual_seed(stream_seed(seed, "groups")), 0.0, len(rewards)
    index = torch.arange(count) // group
    for _ in range(REGROUPINGS):
        order = torch.randperm(count, generator=generator)
        drawn = rewards[order]
        if squared_norms is None:
            advantages = rloo_advantages(drawn, index)
        else:
            advantages = optimal_baseline_advantages(drawn, index, squared_norms[order])
        weights = torch.nn.functional.one_hot(index).T * advantages / group  # [groups, N]
        inner = weights @ products[order][:, order] @ weights.T
        groups = len(inner)
        total += float(inner.diagonal().sum() - inner.sum() / groups) / (groups - 1)
    return total / REGROUPINGS


@cache
def answer_gradients(seed: int, prompts: int, family: str) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return rewards [N], inner products of gradients [N, N] and recorded norms [N] of the base's answers to prompts.

    Prompts of training are drawn; those whose answers are all right or all wrong are passed over.
    """
    config = load_config("shapes-reasoning", _of(family))
    policy = cast(VLMPolicy, build_policy(config.policy, config.sampling, config.media))
    every = load_samples(f"shapeworld:{family}-train")
    order = np.random.default_rng(stream_seed(seed, "prompts")).permutation(len(every))[: 8 * prompts]
    samples = prepare_samples(policy, config.policy, config.answers, config.sampling, [every[each] for each in order])
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    with closing(build_rewards(config, samples, SharedLoader())) as suite:
        for number, sample in enumerate(samples):
            if len(found) == prompts:
                break
            rollout = policy.rollout([RolloutRequest(sample, ANSWERS, 0)], seed=stream_seed(seed, "answers") + number)
            rewards = torch.from_numpy(suite.score(reward_inputs(rollout)).values[TOTAL]).double()
            if rewards.min() < rewards.max():
                gradients = _gradients(policy, rollout)
                found.append((rewards, (gradients @ gradients.T).double(), recorded_squared_norms([rollout]).double()))
    return found


def _gradients(policy: VLMPolicy, rollout: Rollout) -> Tensor:
    """Return [N, P] the gradient of each answer's log-probability in all trained parameters."""
    parameters = list(policy.parameters_to_train().values())
    rows = []
    for row in range(rollout.rows):
        pairs = zip(answer_gradient(policy, rollout.select([row])), parameters, strict=True)
        rows.append(torch.cat([(torch.zeros_like(own) if grad is None else grad).flatten() for grad, own in pairs]))
    return torch.stack(rows)
