"""`linear_logprob` against plain torch, and against Liger's chunked loss where that is installed.

Plain torch is F.linear, log_softmax, gather, the loss and its backward pass. Every candidate gives the same gradients,
which is checked first. Memory is net: what a call takes beyond its inputs, less the gradients that it must return.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from lines import Line
from measure import Measured, compare
from torch import Tensor

from mmrl_kernels.ops.linear_logprob import linear_logprob

try:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss
except ImportError:
    LigerFusedLinearGRPOLoss = None

_log = logging.getLogger(__name__)

MIB = 2**20
HINTED = "linear_logprob, gradient hint"
SHAPES = {  # answers, tokens an answer, H, V
    "cpu": {"text 2048x512x32000": (8, 256, 512, 32_000), "VLM 1024x576x49280": (8, 128, 576, 49_280)},  # SmolVLM-256M
    "cuda": {"VLM 8192x2048x151936": (16, 512, 2048, 151_936), "text 16384x4096x128256": (16, 1024, 4096, 128_256)},
}
SMOKE = {"smoke 64x32x500": (4, 16, 32, 500)}

Gradients = tuple[Tensor, ...]
Calls = dict[str, Callable[[], Gradients]]


def lines(device: str, smoke: bool) -> Iterator[Line]:
    """Float32 on a CPU and bfloat16 on a GPU: forward with backward."""
    if LigerFusedLinearGRPOLoss is None:
        _log.warning("Liger is not installed: line left out")
    shapes = SMOKE if smoke else SHAPES[device]
    for number, (name, sizes) in enumerate(shapes.items()):
        yield from _lines_of(name, Case.make(*sizes, device), smoke, everything=number == 0)


@dataclass(frozen=True)
class Case:
    """Rows as an update sees them: answers one after the other, the policy a little off the one that sampled."""

    hidden: Tensor  # [N, H]
    weight: Tensor  # [V, H]
    targets: Tensor  # [N]
    answers: int
    old: Tensor  # [N]
    advantages: Tensor  # [answers]

    @classmethod
    def make(cls, answers: int, tokens: int, width: int, vocabulary: int, device: str) -> Case:
        torch.manual_seed(0)
        dtype, rows = torch.float32 if device == "cpu" else torch.bfloat16, answers * tokens
        hidden = torch.randn(rows, width, device=device, dtype=dtype)
        weight = torch.randn(vocabulary, width, device=device, dtype=dtype) / width**0.5
        targets = torch.randint(vocabulary, (rows,), device=device)
        moved = 0.05 * torch.randn(rows, device=device)
        return cls(
            hidden.requires_grad_(),
            weight.requires_grad_(),
            targets,
            answers,
            linear_logprob(hidden.detach(), weight.detach(), targets) + moved,
            torch.randn(answers, device=device),
        )

    @property
    def per_row(self) -> Tensor:
        return self.advantages.repeat_interleave(len(self.hidden) // self.answers)

    @property
    def weights(self) -> Tensor:
        return torch.full_like(self.old, 1 / len(self.old))

    def folded(self, rows: Tensor) -> Tensor:
        """[answers, tokens, ...]."""
        return rows.unflatten(0, (self.answers, -1))

    def gradients(self, loss: Tensor) -> Gradients:
        return torch.autograd.grad(loss, [each for each in (self.hidden, self.weight) if each.requires_grad])

    @property
    def returned_mib(self) -> float:
        """The size of the gradients that any candidate must return."""
        return sum(each.nbytes for each in (self.hidden, self.weight) if each.requires_grad) / MIB


def _lines_of(name: str, case: Case, smoke: bool, everything: bool) -> Iterator[Line]:
    torch._dynamo.reset()  # else a second shape is compiled for all shapes, which fails at these sizes (torch 2.11)
    one_pass: Calls = {
        "plain torch": partial(_naive, case),
        "linear_logprob": partial(_logprob, case),
        HINTED: partial(_logprob, case, grad_hint=True),
    }
    if case.hidden.is_cuda:
        one_pass["torch.compile of plain torch"] = partial(_naive, case, torch.compile(_plain_log_probs, dynamic=False))
    yield from _measured(f"{name}, clip", case, one_pass, smoke)
    if LigerFusedLinearGRPOLoss is not None:
        liger = LigerFusedLinearGRPOLoss(beta=0.0, use_ref_model=False, compiled=not smoke)
        calls = {"Liger": partial(_liger_clip, case, liger), HINTED: one_pass[HINTED]}
        yield from _measured(f"{name}, clip", case, calls, smoke)
    if not everything:
        return
    frozen = Case(**{**vars(case), "weight": case.weight.detach()})
    calls = {
        "plain torch": partial(_naive, frozen),
        "linear_logprob": partial(_logprob, frozen),
    }
    yield from _measured(f"{name}, clip, frozen layer", frozen, calls, smoke)


def _naive(case: Case, log_probs: Callable[[Case], Tensor] | None = None) -> Gradients:
    return case.gradients(_clip_of(case, (log_probs or _plain_log_probs)(case)))


def _logprob(case: Case, grad_hint: bool = False) -> Gradients:
    """As trainers call it; `grad_hint` passes the derivative of the loss to the forward pass."""

    def loss_grad(log_probs: Tensor, rows: Tensor) -> Tensor:
        with torch.enable_grad():
            free = log_probs.detach().requires_grad_()
            return torch.autograd.grad(_clip_of(case, free, rows), free)[0]

    hint = loss_grad if grad_hint else None
    return case.gradients(_clip_of(case, linear_logprob(case.hidden, case.weight, case.targets, grad_hint=hint)))


def _liger_clip(case: Case, liger: torch.nn.Module) -> Gradients:
    hidden, targets, old = (case.folded(each) for each in (case.hidden, case.targets, case.old))
    mask = torch.ones_like(old)
    return case.gradients(liger(hidden, case.weight, targets, mask, case.advantages, old_per_token_logps=old)[0])


def _plain_log_probs(case: Case) -> Tensor:
    logits = F.linear(case.hidden, case.weight)
    return logits.float().log_softmax(-1).gather(1, case.targets[:, None])[:, 0]


def _clip_of(case: Case, log_probs: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
    ratio, gain = (log_probs - case.old[rows]).exp(), case.per_row[rows]
    return -(case.weights[rows] * torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)).sum()


def _measured(name: str, case: Case, calls: Calls, smoke: bool) -> list[Line]:
    """Compare each candidate with the first."""
    baseline = next(iter(calls))
    expected_gradients = calls[baseline]()
    for candidate, call in calls.items():
        for got, expected in zip(call(), expected_gradients, strict=True):
            error = float((got - expected).norm() / expected.norm())
            allowed = 1e-4 if got.dtype == torch.float32 else 5e-2
            if error > allowed:
                raise RuntimeError(f"{name}, {candidate}: its gradient is {error:.1e} off that of {baseline}")
    del expected_gradients, got, expected
    measured = compare(calls, turns=1 if smoke else 5, device=case.hidden.device.type)
    return [
        _line(name, candidate, baseline, measured, case.returned_mib, not smoke and not case.hidden.is_cuda)
        for candidate in measured
        if candidate != baseline
    ]


def _line(
    case: str, candidate: str, baseline: str, measured: Mapping[str, Measured], returned_mib: float, gated: bool
) -> Line:
    own, base = measured[candidate], measured[baseline]
    peak, base_peak = own.peak_mib - returned_mib, base.peak_mib - returned_mib
    gate, passed = None, None
    if gated and baseline == "Liger":
        gate, passed = ">= 1.3x Liger", own.ratio >= 1.3
    elif gated:
        slowest = 1.35 if candidate == "linear_logprob" else 1.1  # 4 GEMMs instead of 3
        gate = f"time <= {slowest}x, net memory <= 1/8"
        passed = own.ratio >= 1 / slowest and peak <= base_peak / 8
    title = f"{case}; memory net of gradients"
    return Line(
        candidate.partition(",")[0], title, candidate, baseline, own.seconds, own.ratio, peak, base_peak, gate, passed
    )
