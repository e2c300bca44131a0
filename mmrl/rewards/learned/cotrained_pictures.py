"""`cotrained_pictures`: a discriminator of pictures that is trained in a run on what came of them (RAD-2).

A generator draws several candidates and the discriminator chooses one. Its choice is a policy, the softmax of its
scores over a group, and a rule says what each candidate is worth: so it is trained by a policy gradient, while no
reward reaches the candidates themselves. The generator then follows by imitation of what is chosen (`rejection_sft`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, attempt
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.learned.cotrained import SavedHeads
from mmrl.rewards.learned.learned_reward import LearnedReward

if TYPE_CHECKING:
    from torch import Tensor


class CotrainedPicturesReward(SavedHeads, LearnedReward):
    """The score of a reward model of pictures that learns in each iteration which of a group a rule prefers.

    It starts as `learned`. After an iteration has been scored, its heads take `updates` steps that raise the expected
    outcome of a picture that is chosen with softmax(score / temperature) among those of its group; outcomes are those
    of the rule, standardised in each group (GRPO). Groups of equal outcomes teach nothing, and evaluations change
    nothing. With `updates: 0` it is frozen. The present heads are saved with each checkpoint.
    """

    name, source = "cotrained_pictures", "RAD-2, arXiv:2604.15308"

    def __init__(
        self,
        model: str,
        rule: str,
        rule_args: Mapping[str, Any] | None = None,
        updates: int = 4,
        lr: float = 1e-3,
        temperature: float = 1.0,
        axis: str | None = None,
        pessimism: float = 0.0,
        device: str = "auto",
    ) -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote, with an encoder of the kind `clip`.
            rule: the reward that says what came of a picture, such as `geneval`.
            rule_args: its arguments.
            updates: steps on the groups of an iteration, all groups in each.
            lr: of the steps (AdamW, begun anew in each iteration).
            temperature: of the choice, in standard deviations of the scores.
            axis: as of `learned`.
            pessimism: as of `learned`.
            device: "auto" is the GPU if there is one.
        """
        super().__init__(model, axis, None, pessimism, device)
        if updates < 0 or lr <= 0 or temperature <= 0:
            values = f"updates is {updates}, lr {lr} and temperature {temperature}"
            raise RewardError(f"{self.name}: {values}; expected 0 or more steps, a rate and a temperature above 0")
        self._rule = load(rule, **(rule_args or {}))
        self._updates, self._lr, self._temperature = updates, lr, temperature

    def learn(self, items: Sequence[RewardInput]) -> Mapping[str, float]:
        """Update the heads on the pictures of an iteration.

        Returns:
            `groups` that were learnt from; `chosen` and `mean`, the outcome of a picture that is chosen, and of all.
        """
        if not self._updates:
            return {}
        import torch

        from mmrl.algorithms import grpo_advantages
        from mmrl.rewards.learned.preference_losses import choice_loss

        opened = [attempt(answer_image, item.image, errors=FAULTS) for item in items]
        values = torch.from_numpy(self._rule.score(items).values[self._rule.name]).float()
        rows = [row for row, image in enumerate(opened) if not isinstance(image, Exception) and values[row].isfinite()]
        if not rows:
            return {"groups": 0.0}
        values = values[rows] * self._rule.spec.sign
        names = list(dict.fromkeys(items[row].group for row in rows))
        groups = torch.tensor([names.index(items[row].group) for row in rows])
        advantages = grpo_advantages(values, groups, std="group", ddof=0)
        taught = {int(group) for group in groups[advantages != 0]}
        self._learnt += 1
        if not taught:
            return {"groups": 0.0}
        with torch.no_grad():
            features = self.features([opened[row] for row in rows], [items[row] for row in rows])
        index = groups.to(features.device)
        with torch.no_grad():
            before = -choice_loss(self._choice(features), values.to(features), index).mean()
        parameters = [each.requires_grad_() for head in self.heads for each in head.parameters()]
        optimizer = torch.optim.AdamW(parameters, lr=self._lr)
        for _ in range(self._updates):
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = choice_loss(self._choice(features), advantages.to(features), index).mean()
            torch.autograd.backward(loss)
            optimizer.step()
        for each in parameters:
            each.requires_grad_(False)
        return {"groups": float(len(taught)), "chosen": before.item(), "mean": values.mean().item()}

    def _choice(self, features: Tensor) -> Tensor:  # [B, F] -> [B]
        return self._scores.score_and_spread(features)[0] / self._temperature
