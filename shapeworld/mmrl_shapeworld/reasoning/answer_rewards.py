"""Rewards for answers to sums whose reward model is trained when they are loaded, in seconds, from pairs of answers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from mmrl.rewards.learned.cotrained import CotrainedReward
from mmrl.rewards.learned.hybrid import HybridReward
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.reasoning.answer_pairs import NAMES


class CotrainedAnswers(CotrainedReward):
    """The reward `cotrained` with a reward model of sums, and the rule `numeric`.

    With `pairs: answer-pairs-direct` the reward model has only seen answers without thoughts, so that it is wrong about
    most of what a policy that thinks may write.
    """

    name = "cotrained_answers"

    def __init__(self, data: str = "answer-pairs-direct", updates: int = 4, seed: int = 0) -> None:
        """
        Args:
            data: the pairs that the reward model is trained from.
            updates: as of `cotrained`; 0 freezes it.
            seed: of the reward model, and of the pairs that it learns from in the run.
        """
        assert data in NAMES, data
        with TemporaryDirectory() as folder:
            overrides = [f"data.path=shapeworld:{data}", f"seed={seed}"]
            trained = train_reward(load_reward_recipe("shapes-answers", overrides), Path(folder) / "model")
            super().__init__(str(trained.folder), "numeric", updates=updates, seed=seed)


class HybridAnswers(HybridReward):
    """The reward `hybrid` of the rule `numeric` and a reward model that compares answers with the right number.

    With `data: answer-pairs-direct` the reward model has only seen answers without thoughts, as in `CotrainedAnswers`.
    """

    name = "hybrid_answers"

    def __init__(self, data: str = "answer-pairs-train", trust: float = 1.0, seed: int = 0) -> None:
        """
        Args:
            data: the pairs that the reward model is trained from.
            trust: the confidence in the rule, where a sample has an answer; 0 leaves the reward model alone.
            seed: of the reward model.
        """
        assert data in NAMES, data
        with TemporaryDirectory() as folder:
            overrides = [f"data.path=shapeworld:{data}", f"seed={seed}"]
            trained = train_reward(load_reward_recipe("shapes-answers", overrides), Path(folder) / "model")
            model = {"model": str(trained.folder)}
            super().__init__("numeric", "learned_text", model_args=model, if_right=trust, if_wrong=trust)
