"""A policy that writes short texts from a table of logits: every probability is known, and rows can be cut and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.data.sample import Sample
from mmrl.policy import Capability, DecisionCallback, StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText

END = 0


@dataclass(frozen=True)
class Written:
    """The tokens of each row, and the prompt that it answers."""

    prompts: Tensor  # [B] int64
    tokens: Tensor  # [B, T] int64; END past the end

    def select(self, rows: Sequence[int]) -> Written:
        return Written(self.prompts[list(rows)], self.tokens[list(rows)])


class TokenPolicy:
    """Token t of an answer to prompt p is drawn from softmax(logits[p, t]); token 0 ends the text.

    A text is its tokens as numbers, without the end token: "2 1 3". Samples are called s0, s1, ... by their prompt.
    """

    capabilities = frozenset(
        {Capability.LOG_PROBS, Capability.ENTROPY, Capability.TEACHER_FORCE, Capability.SELECT_ROWS}
    )

    def __init__(
        self, prompts: int = 8, length: int = 3, vocabulary: int = 4, spread: float = 0.5, seed: int = 0
    ) -> None:
        logits = spread * torch.randn(prompts, length, vocabulary, generator=torch.Generator().manual_seed(seed))
        self.logits = nn.Parameter(logits)
        self._start = logits.clone()
        self.version = 0
        self.rollouts = 0  # calls of `rollout`

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        self.rollouts += 1
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = [request.group for request in requests for _ in range(request.n)]
        prompts = torch.tensor([prompt_of(sample) for sample in samples])
        generator = torch.Generator().manual_seed(seed)
        probabilities = self.logits[prompts].detach().softmax(-1)
        tokens = torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(len(samples), -1)
        return self._rollout(samples, groups, prompts, tokens)

    def answering(self) -> AbstractContextManager[None]:
        return nullcontext()

    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        samples = [each.sample for each in targets]
        tokens = torch.full((len(targets), self.logits.shape[1]), END)
        for row, each in enumerate(targets):
            ids = [int(word) for word in each.text.split()] + [END] if each.token_ids is None else list(each.token_ids)
            kept = ids[: tokens.shape[1]]
            tokens[row, : len(kept)] = torch.tensor(kept, dtype=torch.long)
        prompts = torch.tensor([prompt_of(sample) for sample in samples])
        return self._rollout(samples, [each.group for each in targets], prompts, tokens)

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        here = list(step_indices)
        logits = self.logits[rollout.recording.prompts][:, here]
        log_probs = logits.log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        chosen = log_probs.gather(-1, rollout.recording.tokens[:, here, None])[..., 0]
        mean = log_probs.detach().mean(-1)
        visit(StepOutputs(step_indices=tuple(here), log_probs=chosen, entropy=entropy, mean_log_probs=mean))

    @contextmanager
    def reference(self) -> Iterator[None]:
        live, self.logits.data = self.logits.data, self._start
        try:
            yield
        finally:
            self.logits.data = live

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return {"logits": self.logits}

    def lr_scale(self, name: str) -> float:
        return 1.0

    def save(self, folder: Path) -> None:
        save_file({"logits": self.logits.detach()}, folder / "logits.safetensors")

    def load(self, folder: Path) -> None:
        self.logits.data.copy_(load_file(folder / "logits.safetensors")["logits"])

    def replay_gap(self, rollout: Rollout) -> float:
        gaps: list[float] = []

        def visit(now: StepOutputs) -> None:
            moved = (now.log_probs - rollout.log_probs)[rollout.mask]
            gaps.append(moved.abs().max().item())

        with torch.no_grad():
            self.replay(rollout, range(rollout.mask.shape[1]), visit)
        return max(gaps)

    def _rollout(self, samples: list[Sample], groups: list[int], prompts: Tensor, tokens: Tensor) -> Rollout:
        ended = (tokens == END).long()
        mask = (ended.cumsum(1) - ended) == 0  # up to the first end token, which is a decision
        tokens = tokens.where(mask, END)
        log_probs = self.logits[prompts].detach().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        ids = [row[keep].tolist() for row, keep in zip(tokens, mask, strict=True)]
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups),
            log_probs=log_probs.where(mask, 0.0),
            mask=mask,
            channel=torch.zeros_like(tokens),
            media=[" ".join(str(token) for token in row if token != END) for row in ids],
            policy_version=self.version,
            recording=Written(prompts, tokens),
            token_ids=ids,
        )


def prompt_of(sample: Sample) -> int:
    """The row of the table that a sample asks for: its id without the letter; of an added one, its prompt's end."""
    return int(sample.prompt.split()[-1] if "growth" in sample.metadata else sample.id[1:])


def questions(count: int = 8, **fields: object) -> list[Sample]:
    """Samples that ask for one text each, of two sources: "1 2", "2 3", "3 1", "1 2" ..."""
    return [
        Sample(
            id=f"s{n}",
            prompt=f"question {n}",
            answer=f"{n % 3 + 1} {(n + 1) % 3 + 1}",
            source="even" if n % 2 == 0 else "odd",
            **fields,  # type: ignore[arg-type]
        )
        for n in range(count)
    ]
