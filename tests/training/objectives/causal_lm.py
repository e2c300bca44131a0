"""A small language model of transformers as a policy: prompts and answers are given, so it only replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from mmrl.data.sample import Sample
from mmrl.policy import Capability, DecisionCallback, StepOutputs
from mmrl.rollout import Rollout

VOCABULARY, PROMPT = 23, 3


def build_model(seed: int = 0) -> LlamaForCausalLM:
    """Return a model of one layer, in float64."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).double()


class CausalLM:
    """Log-probs of answers by an ordinary forward pass. The reference is the model with its first weights moved."""

    capabilities = frozenset({Capability.LOG_PROBS, Capability.TEACHER_FORCE})

    def __init__(self, model: LlamaForCausalLM, reference_shift: float = 0.02) -> None:
        self.model = model
        self.version = 0
        noise = torch.Generator().manual_seed(99)
        first = next(iter(model.parameters()))
        self.moved = first.detach() + reference_shift * torch.randn(first.shape, generator=noise).double()

    def log_probs(self, prompts: Tensor, answers: Tensor) -> Tensor:
        """[B, T]."""
        logits = self.model(input_ids=torch.cat([prompts, answers], 1)).logits[:, PROMPT - 1 : -1]
        return logits.log_softmax(-1).gather(2, answers[..., None])[..., 0]

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        assert list(step_indices) == list(range(rollout.log_probs.shape[1]))
        visit(StepOutputs(tuple(step_indices), self.log_probs(*rollout.recording)))

    @contextmanager
    def reference(self) -> Iterator[None]:
        first = next(iter(self.model.parameters()))
        live, first.data = first.data, self.moved
        try:
            yield
        finally:
            first.data = live

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())


def random_rollout(policy: CausalLM, lengths: Sequence[int], seed: int, spread: float = 0.3) -> Rollout:
    """Random prompts and answers. The log-probs "as sampled" are the model's own, moved by noise of this spread."""
    draw, rows, width = torch.Generator().manual_seed(seed), len(lengths), max(lengths)
    prompts = torch.randint(2, VOCABULARY, (rows, PROMPT), generator=draw)
    answers = torch.randint(2, VOCABULARY, (rows, width), generator=draw)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        now = policy.log_probs(prompts, answers)
    return Rollout(
        samples=[Sample(str(row)) for row in range(rows)],
        group_index=torch.arange(rows) // 2,
        log_probs=now + spread * torch.randn(rows, width, generator=draw).double(),
        mask=mask,
        channel=torch.zeros(rows, width, dtype=torch.long),
        media=[""] * rows,
        policy_version=-1,
        recording=(prompts, answers),
    )
