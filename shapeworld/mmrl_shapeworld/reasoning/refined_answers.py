"""An experiment on answers that are improved again and again: each step reads the answer of the step before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.data.attempt_starts import AttemptStarts
from mmrl.data.proposers import Parent
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.run.run_folder import load_run
from mmrl.understanding import VLMPolicy
from mmrl.workflows.train import train
from mmrl_shapeworld.reasoning import calculation_splits
from mmrl_shapeworld.reasoning.traces import WAIT

RECIPE, MODEL = "shapes-reasoning", "shapeworld:sums-twice"


def refined_answers(
    seed: int,
    on: str = "sums-validation",
    prompts: int = 256,
    depth: int = 6,
    trained_depth: int = 3,
    train_on: Mapping[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Train a policy that reads its last answer, and let it answer several times.

    Args:
        seed: of training.
        on: the split of calculations.
        prompts: the number of them.
        depth: the answers to a calculation, each after the one before.
        trained_depth: the most answers that training has seen.
        train_on: keys of the recipe `shapes-reasoning` by dotted name; None: the policy is not trained.

    Returns:
        For each calculation `right-1` to `right-DEPTH`: 1 if that answer is right, else 0; `last`, the same of the last
        answer; `past`, that less the one after `trained_depth` answers; `gain`, that less the first.
    """
    policy = reasoner(None) if train_on is None else trained(seed, json.dumps(dict(train_on), sort_keys=True))
    return measured(policy, on, prompts, depth, trained_depth)


@lru_cache(maxsize=1)  # arms that differ in how they are measured share it
def trained(seed: int, keys: str) -> VLMPolicy:
    """Return the policy that a run with these keys, as JSON, has trained."""
    with TemporaryDirectory() as folder:
        own = {
            "seed": seed,
            "policy.model": MODEL,
            "run.dir": f"{folder}/run",
            "run.display": "quiet",
            "data.validation": None,
            "evaluation": {},
        }
        settings = own | json.loads(keys)
        return reasoner(train(load_config(RECIPE, [f"{key}={json.dumps(value)}" for key, value in settings.items()])))


def reasoner(run: Path | None) -> VLMPolicy:
    """Return the policy that a run has trained; None: the one that ships."""
    config = load_config(RECIPE, [f"policy.model={MODEL}"])
    policy = cast(VLMPolicy, build_policy(config.policy, config.sampling))
    if run is not None:
        policy.load(load_run(run).checkpoint())
    return policy


def measured(policy: VLMPolicy, on: str, prompts: int, depth: int, trained_depth: int) -> dict[str, list[float]]:
    """Return the measures of `refined_answers` for a policy; the noise of a step is always the same."""
    samples: Sequence[Sample] = calculation_splits.samples(on)[:prompts]
    right: list[list[float]] = []
    with_answers = AttemptStarts(message=WAIT, keep="last")
    suite = RewardSuite([(load("numeric"), 1.0)])
    for step in range(depth):
        found = evaluate(policy, samples, suite, draws=1, batch=prompts, seed=1000 * (step + 1))
        right.append(found.values["numeric"].astype(float).tolist())
        samples = [
            cast(Sample, with_answers.propose(Parent(sample, 1.0, str(answer), step), np.random.default_rng()))
            for sample, answer in zip(samples, found.answers, strict=True)
        ]
    suite.close()

    def over(place: int) -> list[float]:
        return [last - before for last, before in zip(right[-1], right[place], strict=True)]

    return {f"right-{step}": values for step, values in enumerate(right, start=1)} | {
        "last": right[-1],
        "past": over(min(trained_depth, depth) - 1),
        "gain": over(0),
    }
