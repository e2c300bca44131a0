"""An experiment on Cascade RL: calculations are learnt from stored answers of the base, from the policy's own, or both.

The offline stage is MPO: the base answers each prompt several times, and right answers are paired with wrong ones. The
online stage is GSPO, on the prompts that are of medium difficulty by the stored answers. Each stage is a run with a new
optimizer, and the second goes on with the weights that the first left. What counts is the number of answers that are
sampled to learn from, of both stages together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from mmrl.build.datasets import load_samples
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.workflows.prompt_filter import solved_sometimes
from mmrl.workflows.sampled_pairs import sampled_pairs
from mmrl_shapeworld.reasoning.trained_sums import answered, sums_config, trained_policy, untrained_policy

BASE = ("policy.model=shapeworld:remainders", "sampling.max_new_tokens=96", "training.max_replay_gap=3.0e-4")
"""The bound on the replay gap is that of other runs on long chains."""
MOSTLY_HARD = "shapeworld:remainders-mostly-hard"
"""The prompts of training, of which one in five has as many operands as the base knows; it never does the others."""
MEDIUM = (0.2, 0.8)
"""The paper's bounds on the share of right answers to a prompt of the online stage."""
GROUPS, GROUP_SIZE = 16, 8
"""The prompts of an iteration of GSPO, and the answers to each."""
PAIRS = 32
"""The pairs of an update of MPO."""


def cascaded_answers(
    seed: int,
    offline: int,
    online: int,
    updates: int = 48,
    learnt: str = MOSTLY_HARD,
    heldout: str = "shapeworld:remainders-development",
    offline_lr: float = 2e-4,
    online_lr: float = 1e-3,
    evaluated: int = 512,
) -> dict[str, Sequence[float]]:
    """Answer held-out calculations after an offline stage, an online one, or one after the other.

    Args:
        seed: of the stored answers, of both stages and of the answers in the end.
        offline: answers of the base that are stored, equally many for each prompt; 0: there are none.
        online: answers that the policy gives and learns from, to prompts of medium difficulty by the stored answers,
            and without these to all; 0: there is no online stage.
        updates: of the offline stage, with 32 pairs each; 0: the stored answers tell the difficulty of prompts alone.
        learnt: the samples whose prompts both stages learn from.
        heldout: the samples that are answered in the end.
        offline_lr: the learning rate of MPO.
        online_lr: the learning rate of GSPO.
        evaluated: how many of these are answered, once each.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    policy = untrained_policy(*BASE)
    pairs, prompts = stored_answers(seed, learnt, offline) if offline else ((), load_samples(learnt))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "learnt.jsonl"
        if pairs and updates:
            write_samples(pairs, path)
            data = f"data={{path: {path}, groups: {PAIRS}}}"
            run = ("algorithm.name=mpo", f"optimizer.lr={offline_lr}", f"training.iterations={updates}")
            trained_policy(*BASE, f"seed={seed}", data, *run, policy=policy)
        if iterations := online // (GROUPS * GROUP_SIZE):
            write_samples(prompts, path)
            data = f"data={{path: {path}, groups: {GROUPS}, group_size: {GROUP_SIZE}}}"
            run = ("algorithm.name=gspo", f"optimizer.lr={online_lr}", f"training.iterations={iterations}")
            trained_policy(*BASE, f"seed={seed}", data, *run, policy=policy)
    return answered(policy, load_samples(heldout)[:evaluated], seed)


@cache
def stored_answers(seed: int, learnt: str, count: int) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the pairs of that many answers of the base, and the prompts of medium difficulty by them."""
    config = sums_config(*BASE, f"seed={seed}", f"data.path={learnt}")
    found = sampled_pairs(config, count // len(load_samples(learnt)))
    return found.pairs, solved_sometimes(config, found.answered, 1.0, *MEDIUM).kept
