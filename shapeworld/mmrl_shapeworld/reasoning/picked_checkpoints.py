"""An experiment on the choice of a checkpoint: held-out prompts are answered by the one that a criterion picks.

For each seed a policy is trained once, for all arms, and evaluated at every checkpoint, on prompts by which
one may be picked and on held-out ones. Arms differ in the criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.run_reader import HELDOUT, read_run
from mmrl.training.run.checkpoints import Checkpoints
from mmrl_shapeworld.reasoning.trained_sums import trained_policy

Pick = Literal["critical_entropy", "training_reward", "validation_reward", "first", "last"]
Rights: TypeAlias = NDArray[np.float64]
SETTINGS = (
    "policy.model=shapeworld:sums-taught",
    "rewards=[{name: numeric}, {name: critical_entropy, weight: 0, args: {words: ['-8=', '-9='], place: after}}]",
    "sampling.max_new_tokens=48",
    "optimizer.lr=1.0e-3",
)
"""A base that calculates in full and subtracts 8 and 9 wrongly by habit, without any doubt, is rewarded for right
answers. Its critical tokens are the values of these steps: there, and nowhere else, its reasoning is to turn."""


@dataclass(frozen=True)
class Trajectory:
    """The checkpoints of a run that was trained for the experiment, in order, and what they may be picked by."""

    steps: tuple[int, ...]
    by_entropy: int  # the step of the best checkpoint as the run keeps it
    training_rewards: tuple[float, ...]  # the mean of the iterations since the checkpoint before
    validation_rewards: tuple[float, ...]  # the share of right answers to the prompts for picking
    heldout: Mapping[int, Rights]  # step -> [P]

    @classmethod
    def of_run(cls, run: Path) -> Trajectory:
        """Read a finished run whose `evaluation.best` is the entropy."""
        steps = tuple(step for step in evaluation_steps(run) if step > 0)
        curve = read_run(run).curve("train", "reward/total")
        totals = dict(zip(curve.steps, curve.values, strict=True))
        spans = zip((0, *steps), steps, strict=False)
        return cls(
            steps,
            int(str(Checkpoints(run).index()["best"]).removeprefix("step-")),
            tuple(float(np.mean([totals[step] for step in range(start + 1, end + 1)])) for start, end in spans),
            tuple(float(_rights(run, step).mean()) for step in steps),
            {step: _rights(run / HELDOUT, step) for step in steps},
        )

    def picked(self, pick: Pick) -> int:
        """Return the step of the checkpoint that a criterion picks, the later one of two that are equal."""
        if pick == "critical_entropy":
            return self.by_entropy
        if pick in ("first", "last"):
            return self.steps[0 if pick == "first" else -1]
        scores = self.training_rewards if pick == "training_reward" else self.validation_rewards
        return max(zip(scores, self.steps, strict=True))[1]


def picked_checkpoint(
    seed: int,
    pick: Pick,
    learnt: str = "few",
    picking: str = "development",
    heldout: str = "validation",
    iterations: int = 60,
    every: int = 5,
    prompts: int = 192,
    samples: int = 4,
) -> dict[str, Sequence[float]]:
    """Answer held-out prompts with the checkpoint that a criterion picks.

    Args:
        seed: of the training.
        pick: `critical_entropy`: the highest entropy at critical tokens of sampled answers to the prompts for picking,
            without labels (Skywork-R1V3). `training_reward`: the highest mean reward of the iterations since the
            checkpoint before. `validation_reward`: the most right answers to the prompts for picking, by their labels.
            `first` and `last`: without looking.
        learnt: the split of sums that is learnt.
        picking: the split of the prompts for picking.
        heldout: the split of the held-out prompts.
        iterations: of training.
        every: iterations between checkpoints.
        prompts: of each of the two sets.
        samples: answers to each.

    Returns:
        `right`, the share of right answers to each held-out prompt, and `step`, the iteration of the checkpoint.
    """
    found = trajectory(seed, learnt, picking, heldout, iterations, every, prompts, samples)
    step = found.picked(pick)
    return {"right": found.heldout[step].tolist(), "step": [float(step)]}


@cache
def trajectory(
    seed: int, learnt: str, picking: str, heldout: str, iterations: int, every: int, prompts: int, samples: int
) -> Trajectory:
    """Return what a training left, always the same.

    The bound on the replay gap is that of studies with chains of 35 tokens, of which one may differ by 1e-4.
    """
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        trained_policy(
            *SETTINGS,
            f"seed={seed}",
            f"data.path=shapeworld:sums-{learnt}",
            f"data.validation=shapeworld:sums-{picking}",
            f"data.heldout=shapeworld:sums-{heldout}",
            f"training={{iterations: {iterations}, save_every: {every}, max_replay_gap: 3.0e-4}}",
            f"evaluation={{every: {every}, prompts: {prompts}, samples: {samples}, batch: 768}}",
            "evaluation.best=critical_entropy",
            run=run,
        )
        return Trajectory.of_run(run)


def _rights(folder: Path, step: int) -> Rights:  # [P] in [0, 1]
    """Return the share of right answers to each prompt of an evaluation."""
    evaluation = Evaluation.load(folder, step, images=False)
    return np.asarray(evaluation.by_prompt("total"), np.float64).mean(axis=1)
