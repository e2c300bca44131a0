"""An experiment on answers that are improved again and again: each step reads the answer of the step before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.data.proposers import AttemptStarts, Parent, Proposer
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.suite import RewardSuite
from mmrl.training.run.run_folder import load_run
from mmrl.understanding import VLMPolicy
from mmrl.workflows.train import train
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning.traces import WAIT
from mmrl_shapeworld.reasoning.worksheets import FilledSheets

RECIPE = "shapes-reasoning"


@dataclass(frozen=True)
class World:
    """A kind of task whose answers are improved: a model, a reward of one answer, and what the next answer reads."""

    model: str
    reward: str
    proposer: Proposer


WORLDS: Mapping[str, World] = {
    "sums": World("shapeworld:sums-twice", "numeric", AttemptStarts(message=WAIT, keep="last")),
    "worksheets": World("shapeworld:sums", "mmrl_shapeworld.reasoning.worksheets:WorksheetShare", FilledSheets()),
}
"""The worlds by the first word of the names of their splits."""


def refined_answers(
    seed: int,
    on: str = "sums-validation",
    prompts: int = 256,
    depth: int = 6,
    trained_depth: int = 3,
    train_on: Mapping[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Train a policy that reads what its last answer has left, and let it answer several times.

    Args:
        seed: of training.
        on: the split, of a world of `WORLDS`.
        prompts: the number of its samples.
        depth: the answers to a sample, each after the one before.
        trained_depth: the most answers that training has seen.
        train_on: keys of the recipe `shapes-reasoning` by dotted name; None: the policy is not trained.

    Returns:
        For each sample `right-1` to `right-DEPTH`, what that answer is worth, such as 1 for a right one and 0 for
        others; `last`, the same of the last answer; `past`, that less the one after `trained_depth` answers; `gain`,
        that less the first.
    """
    world = WORLDS[on.partition("-")[0]]
    if train_on is None:
        policy = reasoner(world, None)
    else:
        policy = trained(seed, world, json.dumps(dict(train_on), sort_keys=True))
    return measured(policy, world, on, prompts, depth, trained_depth)


@lru_cache(maxsize=1)  # arms that differ in how they are measured share it
def trained(seed: int, world: World, keys: str) -> VLMPolicy:
    """Return the policy that a run with these keys, as JSON, has trained."""
    with TemporaryDirectory() as folder:
        own = {
            "seed": seed,
            "policy.model": world.model,
            "rewards": [{"name": world.reward}],
            "run.dir": f"{folder}/run",
            "run.display": "quiet",
            "data.validation": None,
            "evaluation": {},
        }
        settings = own | json.loads(keys)
        overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        return reasoner(world, train(load_config(RECIPE, overrides)))


def reasoner(world: World, run: Path | None) -> VLMPolicy:
    """Return the policy that a run has trained, which samples as it did; None: the one that ships."""
    if run is None:
        config = load_config(RECIPE, [f"policy.model={world.model}"])
        return cast(VLMPolicy, build_policy(config.policy, config.sampling))
    made = load_run(run)
    policy = cast(VLMPolicy, build_policy(made.config.policy, made.config.sampling))
    policy.load(made.checkpoint())
    return policy


def measured(
    policy: VLMPolicy, world: World, on: str, prompts: int, depth: int, trained_depth: int
) -> dict[str, list[float]]:
    """Return the measures of `refined_answers` for a policy; the noise of a step is always the same."""
    samples: Sequence[Sample] = splits.samples(on)[:prompts]
    right: list[list[float]] = []
    suite = RewardSuite([(reward := load(world.reward), 1.0)])
    for step in range(depth):
        found = evaluate(policy, samples, suite, draws=1, batch=prompts, seed=1000 * (step + 1))
        right.append(found.values[reward.name].astype(float).tolist())
        samples = [
            cast(Sample, world.proposer.propose(Parent(sample, 1.0, str(answer), step), np.random.default_rng()))
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
