"""Advantages relative to the earlier rewards of the same prompt, as in DDPO (arXiv:2305.13301)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.section import Section


def build_history(config: Section | None) -> PromptHistory | None:
    """Build the history of `algorithm.advantage`; None where advantages are relative to something else."""
    if not isinstance(config, AdvantageConfig) or config.baseline != "history":
        return None
    return PromptHistory(config.history.buffer, config.history.min_count)


class PromptHistory:
    """The last rewards of each prompt, by its id.

    A new answer is compared with earlier answers to the prompt, so groups are not needed. Until a prompt has
    `min_count` rewards, its answers are compared with the batch.
    """

    def __init__(self, buffer: int, min_count: int) -> None:
        self._buffer, self._min_count = buffer, min_count
        self._rewards: dict[str, deque[float]] = {}

    def advantages(self, rewards: Tensor, ids: Sequence[str]) -> Tensor:  # [B] -> [B]; 0 where unscored
        """Return (reward - mean) / (std + 1e-6) over the rewards of the prompt, new ones included."""
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
        """Return the rewards, oldest first; floats survive JSON exactly."""
        return {id: list(rewards) for id, rewards in self._rewards.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._rewards = {id: deque(rewards, maxlen=self._buffer) for id, rewards in state.items()}
