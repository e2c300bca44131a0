"""Sampling from several models at once: each token is drawn from the softmax of a weighted sum of their logits.

    with joint_logits(base, [ModelLogits(base, 1.0), ModelLogits(right, 0.5), ModelLogits(brief, 1.0)]):
        rollout = base.rollout(requests, seed)

A model that was trained by preferences to score texts token by token, an autoregressive reward model, thus guides a
base that nothing trains (GenARM, arXiv:2410.08193, equation 5: the log-probability of a token is that of the base plus
1 / beta times the reward model's), and several reward models add up, each with its weight. With the model before and
after training, and the weights 1 - scale and scale, it is the realignment of DeRa (arXiv:2402.02992).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrl.errors import ConfigError
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.rollout_engine import GrowingRows, TransformersEngine
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm_policy import VLMPolicy


@dataclass(frozen=True)
class ModelLogits:
    """A model, and the weight of its logits."""

    policy: VLMPolicy
    weight: float
    parameters: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which `policy` computes with the parameters of this model."""


@dataclass(frozen=True)
class JointRows:
    """The same rows as several models have read them."""

    members: tuple[tuple[ModelLogits, GrowingRows], ...]

    @property
    def logits(self) -> Tensor:
        """The weighted sum [B, V] of the models' logits of the next token, float32."""
        return _weighted([(model, rows.logits) for model, rows in self.members])

    def expand(self, index: Tensor) -> JointRows:
        """Return the rows at `index`, in rising order and without repetition. Invalidates these."""
        return JointRows(tuple((model, rows.expand(index)) for model, rows in self.members))

    def extend(self, tokens: Tensor) -> tuple[Tensor, JointRows]:
        """Let each model read one more token in each row. Invalidates these rows."""
        logits, longer = [], []
        for model, rows in self.members:
            with model.parameters(), model.policy.head_in_place():
                out, after = rows.extend(tokens)
            logits.append((model, out))
            longer.append((model, after))
        return _weighted(logits), JointRows(tuple(longer))


@dataclass(frozen=True)
class JointEngine(TransformersEngine):
    """An engine that draws from a weighted sum of logits; its `vlm` has the end tokens and the seed's device."""

    models: tuple[ModelLogits, ...] = ()

    def _begin(
        self, prompts: Sequence[EncodedPrompt], inputs: dict[str, Tensor], rows: Tensor, room: int
    ) -> tuple[GrowingRows, Prefix | None]:
        members = []
        for model in self.models:
            vlm = model.policy.vlm
            with model.parameters(), model.policy.head_in_place():
                prefix = prefill(vlm.model, vlm.family, vlm.to_device(inputs), prompts)
                shares = model.policy.attention.shares_prompts
                members.append((model, prefix.branch(rows, room) if shares else prefix.expand(rows)))
        return JointRows(tuple(members)), None


@contextmanager
def joint_logits(policy: VLMPolicy, models: Sequence[ModelLogits]) -> Iterator[None]:
    """While open, rollouts of `policy` draw each token from the softmax of the weighted sum of the models' logits.

    One model with the weight 1 samples exactly as by itself; models with the weight 0 are not computed.
    Log-probabilities of such rollouts are those of the sum, which a replay of `policy` does not repeat: they are for
    evaluation and use, not to be learnt from.

    Raises:
        ConfigError: no model has a weight, one has another tokenizer, or servers write the policy's answers.
    """
    used = tuple(model for model in models if model.weight)
    if not used:
        raise ConfigError("logits: no model has a weight other than 0, so there is nothing to sample from")
    if not isinstance(policy.engine, TransformersEngine):
        raise ConfigError("logits: servers write the answers of this policy, and return no logits: leave servers out")
    for model in used:
        if model.policy is not policy and (reason := policy.vlm.differs_in_tokens(model.policy.vlm)):
            raise ConfigError(f"logits: a model cannot be added to what the policy writes: {reason}")
    before = policy.engine
    policy.engine = JointEngine(policy.vlm, policy.attention.shares_prompts, used)
    try:
        yield
    finally:
        policy.engine = before


def _weighted(parts: Sequence[tuple[ModelLogits, Tensor]]) -> Tensor:
    """Return the sum of weight times logits, in float32, on the device of the first.

    Sizes of one family pad their output layers differently (Qwen2.5-VL: 151,936 and 152,064 rows for 151,665 tokens):
    what the smallest has no row for is no token, and is cut off.
    """
    device, width = parts[0][1].device, min(logits.shape[-1] for _, logits in parts)
    return torch.stack([model.weight * logits[..., :width].float().to(device) for model, logits in parts]).sum(0)
