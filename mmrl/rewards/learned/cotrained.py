"""`cotrained`: a reward model of texts that goes on learning during a run (Cooper, arXiv:2508.05613).

A policy finds what a frozen reward model is wrong about. Here a rule, which seldom calls a wrong answer right, confirms
some of the policy's own answers of each iteration; the reward model learns to prefer these to other answers of the same
prompt, that the rule does not confirm.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mmrl.nested_state import state_of_part
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.learned.learned_text import LearnedTextReward

if TYPE_CHECKING:
    from mmrl.rewards.learned.score_head import ScoreHead


class SavedHeads:
    """A reward whose heads learn during a run: they are saved with each checkpoint, as safetensors in base64.

    It stands before the reward of a folder among the bases of a class; `learn` counts iterations in `_learnt`.
    """

    name: ClassVar[str]
    scheduled: ClassVar[bool] = True
    learns: ClassVar[bool] = True
    heads: Sequence[ScoreHead]
    _learnt: int = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the heads, and the number of iterations that they learnt from."""
        from safetensors.torch import save

        tensors = {
            f"{number}.{name}": value.detach().cpu().contiguous()
            for number, head in enumerate(self.heads)
            for name, value in head.state_dict().items()
        }
        return {"learnt": self._learnt, "heads": base64.b64encode(save(tensors)).decode()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned; without one the heads stay those of the folder.

        Raises:
            RewardError: it is of other heads.
        """
        if not state:
            return
        from safetensors import SafetensorError
        from safetensors.torch import load as read

        try:
            tensors = read(base64.b64decode(state["heads"]))
            for number, head in enumerate(self.heads):
                head.load_state_dict(state_of_part(tensors, f"{number}."))
        except (KeyError, ValueError, RuntimeError, SafetensorError) as err:
            raise RewardError(f"{self.name}: the saved heads do not fit those of the model's folder: {err}") from None
        self._learnt = int(state["learnt"])


class CotrainedReward(SavedHeads, LearnedTextReward):
    """The score of a reward model of texts that learns in each iteration which answers a rule confirms.

    It starts as `learned_text`. After an iteration has been scored, each group gives pairs of an answer that the rule
    confirms and one that it does not, and the heads take `updates` steps on them. Evaluations change nothing. With
    `updates: 0` it is frozen. The present heads are saved with each checkpoint.
    """

    name, source = "cotrained", "Cooper, arXiv:2508.05613"

    def __init__(
        self,
        model: str,
        rule: str,
        rule_args: Mapping[str, Any] | None = None,
        at_least: float = 1.0,
        updates: int = 4,
        pairs: int = 8,
        lr: float = 1e-3,
        axis: str | None = None,
        pessimism: float = 0.0,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote, with an encoder of the kind `text`.
            rule: the reward that confirms answers, such as `numeric`.
            rule_args: its arguments.
            at_least: the value of the rule from which on an answer is confirmed; of one whose lower values are better,
                up to which.
            updates: steps on the pairs of an iteration, all pairs in each.
            pairs: the most pairs of a group, drawn by chance.
            lr: of the steps (AdamW, begun anew in each iteration).
            axis: as of `learned_text`; all axes learn.
            pessimism: as of `learned_text`.
            device: where it computes.
            seed: of the pairs that are drawn.
        """
        super().__init__(model, axis, pessimism, device)
        if min(updates, pairs) < 0 or pairs == 0 or lr <= 0:
            values = f"updates is {updates}, pairs {pairs} and lr {lr}"
            raise RewardError(f"{self.name}: {values}; expected 0 or more steps, 1 or more pairs, and a rate above 0")
        self._rule, self._at_least = load(rule, **(rule_args or {})), at_least
        self._updates, self._pairs, self._lr, self._seed = updates, pairs, lr, seed

    def learn(self, items: Sequence[RewardInput]) -> Mapping[str, float]:
        """Update the heads on the answers of an iteration; return `pairs`, and the share `in_order` before."""
        if not self._updates:
            return {}
        import torch

        from mmrl.rewards.learned.head_training import JudgedPairs, axis_logits, pair_loss
        from mmrl.seeds import fold_in

        comparable = [item for item in items if item.text is not None and self.compared_with(item) is not None]
        sign = self._rule.spec.sign
        values = sign * self._rule.score(comparable).values[self._rule.name]
        groups = [item.group for item in comparable]
        found = confirmed_pairs(values, groups, sign * self._at_least, self._pairs, fold_in(self._seed, self._learnt))
        self._learnt += 1
        if not found:
            return {"pairs": 0.0}
        features = self.features(comparable)
        right, wrong = (features[list(rows)] for rows in zip(*found, strict=True))
        data = JudgedPairs(right, wrong, torch.ones(len(found), self.heads[0].shape.axes, device=right.device))
        with torch.no_grad():
            ordered = torch.stack([axis_logits(head, data) for head in self.heads]).mean(0) > 0
        for head in self.heads:
            head.requires_grad_(True)
            optimizer = torch.optim.AdamW(head.parameters(), lr=self._lr)
            for _ in range(self._updates):
                optimizer.zero_grad()
                with torch.enable_grad():
                    loss = pair_loss(axis_logits(head, data), data.sides, None, 0.0)
                torch.autograd.backward(loss)
                optimizer.step()
            head.requires_grad_(False)
        return {"pairs": float(len(found)), "in_order": ordered.float().mean().item()}


def confirmed_pairs(
    values: NDArray[np.floating[Any]],  # [B]; NaN where the rule failed
    groups: Sequence[int],  # B of them
    at_least: float,
    most: int,  # pairs of a group
    seed: int,
) -> list[tuple[int, int]]:
    """Return rows of pairs within groups: an answer whose value reaches a threshold, and one whose does not.

    Answers of unknown value are in no pair. A group with more pairs than `most` gives as many, drawn by chance.

    >>> confirmed_pairs(np.array([1.0, 0.0, 1.0, 0.0, np.nan]), [0, 0, 1, 1, 1], 1.0, 8, seed=0)
    [(0, 1), (2, 3)]
    """
    chance = np.random.default_rng(seed)
    found: list[tuple[int, int]] = []
    for group in dict.fromkeys(groups):
        rows = [row for row, own in enumerate(groups) if own == group]
        right = [row for row in rows if values[row] >= at_least]
        wrong = [row for row in rows if values[row] < at_least]
        pairs = list(product(right, wrong))
        if len(pairs) > most:
            pairs = [pairs[place] for place in sorted(chance.permutation(len(pairs))[:most].tolist())]
        found += pairs
    return found
