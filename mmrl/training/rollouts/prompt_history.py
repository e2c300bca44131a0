"""Advantages against what a prompt has earned so far, as DDPO takes them (arXiv:2305.13301)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmrl.config.algorithm import AdvantageConfig
from mmrl.config.section import Section


def build_history(config: Section | None) -> PromptHistory | None:
    """None where advantages are against something else."""
    if not isinstance(config, AdvantageConfig) or config.name != "running":
        return None
    return PromptHistory(config.history.buffer, config.history.min_count)


class PromptHistory:
    """The last rewards of each prompt, by its id.

    A prompt needs no group of its own: its earlier pictures are what a new one is compared with. Until it has enough,
    the batch is.
    """

    def __init__(self, buffer: int, min_count: int) -> None:
        self._buffer, self._min_count = buffer, min_count
        self._rewards: dict[str, deque[float]] = {}

    def advantages(self, rewards: Tensor, ids: Sequence[str]) -> Tensor:  # [B] -> [B]; 0 where unscored
        """Each reward minus its prompt's mean, over its spread plus 1e-6; both count the new rewards too."""
        scored = rewards.isfinite()
        for reward, id, known in zip(rewards.tolist(), ids, scored.tolist(), strict=True):
            if known:
                self._rewards.setdefault(id, deque(maxlen=self._buffer)).append(reward)
        batch = rewards[scored].double()
        result = torch.zeros(len(rewards), dtype=torch.float64)
        for row, id in enumerate(ids):
            if scored[row]:
                own = torch.tensor(list(self._rewards[id]), dtype=torch.float64)
                compared = own if len(own) >= self._min_count else batch
                if compared.max() > compared.min():  # equal numbers differ from their mean by rounding alone
                    result[row] = (rewards[row].double() - compared.mean()) / (compared.std(correction=0) + 1e-6)
        return result.float()

    def state_dict(self) -> dict[str, list[float]]:
        """The rewards, oldest first; floats survive JSON exactly."""
        return {id: list(rewards) for id, rewards in self._rewards.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rewards = {id: deque(rewards, maxlen=self._buffer) for id, rewards in state.items()}
