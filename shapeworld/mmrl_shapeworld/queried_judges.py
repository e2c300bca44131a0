"""Experiments for the studies of OneReward: a judge of two tasks with a mask, with a query or without one.

A generator that confuses the two tasks draws pictures; pairs of them are labelled by one criterion each, and a judge
learns from these. One run then reinforces both tasks at once: the reward is the probability that a picture beats one of
the generator as it began. Rules measure what comes of it, and no reward is computed from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from mmrl.build.policies import AnyPolicy, build_policy
from mmrl.config import load_config
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout_request import RolloutRequest
from mmrl.workflows.train import train
from mmrl.workflows.train_reward import TrainedReward, load_reward_recipe, train_reward
from mmrl_shapeworld.inpainting import Hole
from mmrl_shapeworld.mask_tasks import CRITERIA, MaskCheck, TaskName, judge_mask, samples
from mmrl_shapeworld.scenes import picture_uri

Reading = Literal["none", "subject", "prompt", "query"]
READS: Mapping[Reading, Mapping[str, Any]] = {
    "subject": {"prompt": "subject", "query": []},
    "prompt": {"prompt": "prompt", "query": []},
    "query": {"prompt": "subject", "query": ["task", "criterion"]},
}
"""The texts that a judge reads: the named thing, the prompt with its verb, or the thing, the task and a criterion."""
EVALUATION_SEED = 1234
"""The seed of the noise of all pictures that are measured."""
JUDGED, DRAWS = 256, 4
"""Training samples whose pictures are judged in pairs, and pictures of each."""
UNSEEN = 64
"""Those of them, the last ones, whose pairs no judge learns from."""
LEAST: Mapping[str, float] = {"alignment": 0.2, "structure": 0.1, "residue": 0.03}
"""The least difference by a criterion that labels a pair."""


def mask_tasks_by_judge(
    seed: int,
    on: str,
    reads: Reading,
    pairs: int = 400,
    judge_steps: int = 300,
    iterations: int = 20,
    lr: float = 2e-4,
    prompts: int = 192,
) -> dict[str, Sequence[float]]:
    """Train a judge, and a generator by it, and measure both.

    Args:
        seed: of the pairs, of the judge and of the run.
        on: the split that is measured, such as masks-validation.
        reads: what the judge reads; none: there is no training, and the generator is measured as it began.
        pairs: that a judge learns from, half of them of each task.
        judge_steps: updates of the judge.
        iterations: of the run.
        lr: of the generator's optimizer.
        prompts: samples that are measured, half of them of each task.

    Returns:
        Of each fill `fill_iou` and `alignment`; of each removal `residue`; of each sample `done`, 1 if its task is, and
        `kept`, the share of the rest that still stands. `judged`: the share of unseen pairs of both tasks that the
        judge orders rightly.
    """
    if reads == "none":
        return {**started(on, prompts), "judged": [0.5]}
    with TemporaryDirectory() as place:
        judge = trained_judge(seed, reads, pairs, judge_steps, Path(place))
        config = _config(
            f"seed={seed}",
            "algorithm={name: diffusion_nft, beta: 0.3, num_noise_levels: 2, advantage: {std: batch, clip: 5.0}}",
            "models={start: {of: policy}}",
            f"rewards=[{{name: learned_wins, args: {{model: '{judge.folder}', reference: start}}}}]",
            f"optimizer={{lr: {lr}}}",
            f"training={{iterations: {iterations}, updates: 1, save_every: 1000}}",
            f"run={{dir: '{place}/run', display: quiet, pictures: 0}}",
        )
        policy = build_policy(config.policy, config.sampling, config.media)
        train(config, policy=policy)
    return {**measured(policy, on, prompts), "judged": [judge.quality.accuracy["overall"]]}


def judge_accuracy(
    seed: int, on: str, reads: Reading, pairs: int = 400, judge_steps: int = 300, prompts: int = 64
) -> dict[str, Sequence[float]]:
    """Train a judge, and measure it alone.

    Args:
        seed: of the pairs and of the judge.
        on: the split to whose samples the generator draws the pairs that are judged.
        reads: what the judge reads.
        pairs: that it learns from, half of them of each task.
        judge_steps: its updates.
        prompts: samples of the split.

    Returns:
        `accuracy`: the share of pairs of both tasks that it orders rightly.
    """
    with TemporaryDirectory() as place:
        judge = trained_judge(seed, reads, pairs, judge_steps, Path(place), judged_pairs(on, prompts))
    return {"accuracy": [judge.quality.accuracy["overall"]]}


@cache
def started(on: str, prompts: int) -> dict[str, list[float]]:
    """Return the measures of the generator before it is trained, which are the same for all seeds."""
    return measured(_generator(), on, prompts)


def measured(policy: AnyPolicy, on: str, prompts: int) -> dict[str, list[float]]:
    """Return what the rules of each task say of one picture for each sample, drawn from the same noise for all."""
    suite = RewardSuite([WeightedReward(MaskCheck())])
    found = evaluate(policy, samples(on)[:prompts], suite, draws=1, batch=1, seed=EVALUATION_SEED)
    suite.close()
    fills = [row for row, source in enumerate(found.sources) if source == "fill"]
    removals = [row for row, source in enumerate(found.sources) if source == "removal"]
    values = {name: found.values[f"{MaskCheck.name}_{name}"].astype(float) for name in MaskCheck.measures}
    return {
        "fill_iou": values["fill_iou"][fills].tolist(),
        "alignment": values["alignment"][fills].tolist(),
        "residue": values["residue"][removals].tolist(),
        "done": values["done"].tolist(),
        "kept": values["kept"].tolist(),
    }


def trained_judge(
    seed: int, reads: Reading, pairs: int, steps: int, place: Path, judged: Sequence[Sample] | None = None
) -> TrainedReward:
    """Return a judge that learns from pairs drawn by chance, equally many of each task.

    It is measured on the pairs `judged`, or else on those of training samples of which it sees none.
    """
    every = judged_pairs("masks-train", JUDGED)
    unseen = {sample.id for sample in samples("masks-train")[JUDGED - UNSEEN : JUDGED]}
    chance = np.random.default_rng(seed)
    seen = [each for each in every if each.metadata["of"] not in unseen]
    chosen = [pair for task in CRITERIA for pair in _of_task(seen, task, pairs // 2, chance)]
    if judged is None:
        drawn = [pair for task in CRITERIA for pair in _of_task(every, task, 400, np.random.default_rng(0))]
        judged = [each for each in drawn if each.metadata["of"] in unseen]
    paths = []
    for name, some in (("pairs", chosen), ("unseen", judged)):
        paths.append(place / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(asdict(each)) + "\n" for each in some), encoding="utf-8")
    keys = (
        f"encoder={json.dumps({'model': 'shapeworld', 'region': 'mask_image', **READS[reads]})}",
        f"data={{path: '{paths[0]}', validation: '{paths[1]}'}}",
        f"training={{steps: {steps}}}",
        f"seed={seed}",
    )
    return train_reward(load_reward_recipe("onereward-clip-vit-l", keys), place / "judge")


def _of_task(pairs: Sequence[Sample], task: TaskName, count: int, chance: np.random.Generator) -> list[Sample]:
    """Return pairs of a task, as many of each of its criteria."""
    found = []
    for criterion in CRITERIA[task]:
        own = [each for each in pairs if each.task == task and each.metadata["criterion"] == criterion]
        found += [own[row] for row in chance.permutation(len(own))[: count // len(CRITERIA[task])]]
    return found


@cache
def judged_pairs(split: str, count: int) -> list[Sample]:
    """Return all pairs of pictures to the first samples of a split that a criterion of their task orders.

    The generator draws them as it begins, once in a process.
    """
    policy = _generator()
    found = []
    for row, sample in enumerate(samples(split)[:count]):
        with torch.no_grad():
            pictures = policy.rollout([RolloutRequest(sample, DRAWS, row)], 7_000 + row).media
        verdicts = [judge_mask(picture, Hole.from_dict(sample.answer)) for picture in pictures]
        uris = [picture_uri(picture) for picture in pictures]
        for criterion in sample.metadata["criterion"]:
            order = sorted(range(DRAWS), key=lambda place: verdicts[place].by(criterion))
            for worse, better in ((order[0], order[-1]), (order[0], order[1]), (order[-2], order[-1])):
                if verdicts[better].by(criterion) - verdicts[worse].by(criterion) >= LEAST[criterion]:
                    facts = {**sample.metadata, "criterion": criterion, "of": sample.id}
                    id = f"{sample.id}-{criterion}-{better}-{worse}"
                    found.append(
                        replace(sample, id=id, chosen=uris[better], rejected=uris[worse], answer=None, metadata=facts)
                    )
    return found


def _generator() -> AnyPolicy:
    config = _config()
    return build_policy(config.policy, config.sampling, config.media)


def _config(*overrides: str) -> TrainConfig:
    shared = (
        "policy.model=shapeworld:masks",
        "data={path: 'shapeworld:masks-train', validation: null, groups: 6, group_size: 12, micro_batch: 12}",
        "sampling={steps: 6, guidance_scale: 1.0}",
        "evaluation={}",
    )
    return load_config("shapes-inpaint", [*shared, *overrides])
