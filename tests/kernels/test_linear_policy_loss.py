"""linear_policy_loss against mmrl's own losses on logits in float64, and against the losses' formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.aggregation import aggregation_weights
from mmrl.algorithms.kl import kl_k3
from mmrl.algorithms.policy_losses import cispo_policy_loss, clipped_policy_loss
from mmrl.algorithms.preference import dpo_loss, sequence_log_ratio
from mmrl_kernels.ops.linear_logprob import linear_logprob, sizes
from mmrl_kernels.ops.linear_policy_loss import CISPO, DPO, GSPO, Clip, PolicyLoss, linear_policy_loss
from mmrl_kernels.ops.linear_policy_loss.spec import cost

B, T, H, V = 6, 9, 16, 70
LENGTHS = torch.tensor([9, 1, 5, 7, 2, 8])
MASK = torch.arange(T) < LENGTHS[:, None]
SUPPRESSED = torch.tensor([0, 3])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 5 rows, so that answers are cut anywhere and the last chunk is ragged; tiles of 2."""
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 5 * V * 4)
    monkeypatch.setitem(sizes.TILE_BYTES, "cpu", 2 * V * 8)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 5)


class Batch:
    """A ragged batch: [B, T] for the losses of mmrl, the same flat for the kernel."""

    def __init__(self, dtype: torch.dtype = torch.float64, spread: float = 0.5, policy: str = "sequence") -> None:
        self.hidden = torch.randn(B, T, H, dtype=dtype)
        self.hidden[~MASK] = math.nan  # padding may hold anything
        self.hidden.requires_grad_()
        self.weight = (torch.randn(V, H, dtype=dtype) / 2).requires_grad_()
        self.bias = torch.randn(V, dtype=dtype).requires_grad_()
        self.tokens = torch.randint(4, V, (B, T))
        now = self.log_probs().detach()
        self.old = (now + spread * torch.randn_like(now)).where(MASK, math.nan)
        self.reference = (now + 0.3 * torch.randn_like(now)).where(MASK, math.nan)
        self.advantages = torch.randn(B, 1, dtype=dtype).expand(B, T)
        self.weights = aggregation_weights(MASK, policy).to(dtype)  # type: ignore[arg-type]
        self.sequence = torch.arange(B)[:, None].expand(B, T)

    @property
    def operands(self) -> list[Tensor]:
        return [self.hidden, self.weight, self.bias]

    def log_probs(self) -> Tensor:
        logits = (self.hidden.where(MASK[..., None], 0.0) @ self.weight.T + self.bias) / 0.9
        return logits.index_fill(-1, SUPPRESSED, -math.inf).log_softmax(-1).gather(-1, self.tokens[..., None])[..., 0]

    def fused(self, loss: Any, **given: Any) -> PolicyLoss:
        names = {
            "old_log_probs": self.old,
            "advantages": self.advantages,
            "sequence_index": self.sequence,
            "reference_log_probs": self.reference,
        }
        known = {name: names[name].flatten() for name in loss.needs}
        if given.get("kl_coef"):
            known["reference_log_probs"] = self.reference.flatten()
        return linear_policy_loss(
            self.hidden.flatten(0, 1),
            self.weight,
            self.tokens.flatten(),
            loss,
            weights=self.weights.flatten(),
            bias=self.bias,
            temperature=0.9,
            suppressed=SUPPRESSED,
            **{**known, **given},
        )


def clip(batch: Batch, **options: Any) -> tuple[Tensor, Tensor]:
    found = clipped_policy_loss(batch.log_probs(), batch.old, batch.advantages, MASK, 0.2, 0.3, **options)
    return found.loss, found.clipped


def cispo(batch: Batch, low: float | None) -> tuple[Tensor, Tensor]:
    found = cispo_policy_loss(batch.log_probs(), batch.old, batch.advantages, MASK, low, 0.3)
    return found.loss, found.clipped


def dpo(batch: Batch, smoothing: float) -> tuple[Tensor, Tensor]:
    ratios = sequence_log_ratio(batch.log_probs(), batch.reference, MASK)
    terms = dpo_loss(ratios[::2], ratios[1::2], 0.3, smoothing).repeat_interleave(2)
    return terms[:, None].expand(B, T), torch.zeros_like(MASK)


KINDS: list[tuple[Any, Callable[[Batch], tuple[Tensor, Tensor]]]] = [
    (Clip(0.2, 0.3), clip),
    (Clip(0.2, 0.3, dual=1.5), lambda batch: clip(batch, dual=1.5)),
    (CISPO(0.2, 0.3), lambda batch: cispo(batch, 0.2)),
    (CISPO(None, 0.3), lambda batch: cispo(batch, None)),
    (GSPO(0.2, 0.3), lambda batch: clip(batch, importance="sequence")),
    (DPO(0.3), lambda batch: dpo(batch, 0.0)),
    (DPO(0.3, label_smoothing=0.1), lambda batch: dpo(batch, 0.1)),
]
each_kind = pytest.mark.parametrize("loss, plain", KINDS, ids=[str(kind[0]) for kind in KINDS])


@each_kind
@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
@pytest.mark.parametrize("policy", ["token", "sequence"])
def test_loss_gradients_and_by_products_are_those_of_plain_torch(
    loss: Any, plain: Callable[[Batch], tuple[Tensor, Tensor]], kl_coef: float, policy: str
) -> None:
    batch = Batch(policy=policy)
    found = batch.fused(loss, kl_coef=kl_coef)
    terms, clipped = plain(batch)
    if kl_coef:
        terms = terms + kl_coef * kl_k3(batch.log_probs(), batch.reference, MASK)
    truth = (batch.weights * terms.where(MASK, 0.0)).sum()
    torch.testing.assert_close(found.loss, truth)
    gradients = torch.autograd.grad(3 * found.loss, batch.operands)
    wanted = torch.autograd.grad(3 * truth, batch.operands)
    assert not gradients[0].isnan().any()
    torch.testing.assert_close(gradients, wanted)
    assert wanted[1].abs().max() > 1e-3
    now = batch.log_probs()
    torch.testing.assert_close(found.log_probs, now.where(MASK, 0.0).flatten())
    assert torch.equal(found.clipped, clipped.flatten() & MASK.flatten())
    if kl_coef or isinstance(loss, DPO):
        assert found.kl is not None
        torch.testing.assert_close(found.kl, kl_k3(now, batch.reference, MASK).flatten())
    else:
        assert found.kl is None
    assert not any(each is not None and each.requires_grad for each in found[1:])


def test_every_limit_is_met_by_the_batch_it_is_tested_on() -> None:
    batch = Batch()
    for loss, _ in KINDS[:5]:
        share = batch.fused(loss).clipped[MASK.flatten()].float().mean()
        assert 0.05 < share < 0.95, loss


@each_kind
def test_each_input_moves_the_loss(loss: Any, plain: Callable[[Batch], tuple[Tensor, Tensor]]) -> None:
    """The negative control: had an input no effect, the comparison with plain torch could not see it go wrong."""
    batch = Batch()
    kl = {} if isinstance(loss, DPO) else {"kl_coef": 0.2}
    base = batch.fused(loss, **kl)
    changes = {"weights": batch.weights.flatten() * torch.rand(B * T), "temperature": 1.1, "bias": None}
    for name in {*loss.needs, "reference_log_probs"} - {"sequence_index"}:
        own = {"old_log_probs": batch.old, "advantages": batch.advantages, "reference_log_probs": batch.reference}[name]
        changes[name] = own.flatten() + torch.randn(B * T).cumsum(0)
    if "sequence_index" in loss.needs:
        changes["sequence_index"] = batch.sequence.flatten().roll(
            T + 4
        )  # cuts answers elsewhere; new numbers alone change nothing
    for name, value in changes.items():
        arguments = {**kl, name: value}
        assert not torch.allclose(_call(batch, loss, arguments).loss, base.loss, rtol=1e-4), name


def _call(batch: Batch, loss: Any, given: dict[str, Any]) -> PolicyLoss:
    known: dict[str, Any] = {
        "old_log_probs": batch.old.flatten(),
        "advantages": batch.advantages.flatten(),
        "sequence_index": batch.sequence.flatten(),
    }
    arguments = {
        **{name: known[name] for name in loss.needs if name in known},
        "reference_log_probs": batch.reference.flatten(),
        "weights": batch.weights.flatten(),
        "bias": batch.bias,
        "temperature": 0.9,
        "suppressed": SUPPRESSED,
        **given,
    }
    return linear_policy_loss(batch.hidden.flatten(0, 1), batch.weight, batch.tokens.flatten(), loss, **arguments)


class Afresh(torch.autograd.Function):
    """Calls a function again at every backward pass: gradcheck makes several, a one-pass loss allows one."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*operands)
        return function(*operands)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        fresh = [each.detach().requires_grad_(own) for each, own in zip(ctx.saved_tensors, needed, strict=True)]
        with torch.enable_grad():
            found = iter(
                torch.autograd.grad(ctx.function(*fresh), [each for each in fresh if each.requires_grad], slope)
            )
        return None, *(next(found) if own else None for own in needed)


@pytest.mark.parametrize("loss", [Clip(0.2, 0.3, dual=1.5), DPO(0.3)], ids=str)
@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_gradcheck_with_any_operand_frozen(loss: Any, needed: tuple[int, int, int]) -> None:
    n, rows = 8, {"advantages": torch.randn(8), "old_log_probs": torch.full((8,), -2.0)}
    rows |= {"sequence_index": torch.arange(8) // 2, "reference_log_probs": torch.full((8,), -2.0)}
    operands = [torch.randn(n, 3), torch.randn(7, 3), torch.randn(7)]
    operands = [each.double().requires_grad_(bool(own)) for each, own in zip(operands, needed, strict=True)]
    known = {name: rows[name] if name == "sequence_index" else rows[name].double() for name in loss.needs}
    known["reference_log_probs"] = rows["reference_log_probs"].double()
    targets, weights = torch.randint(7, (n,)), torch.rand(n, dtype=torch.float64)
    weights[2] = 0

    def scalar(*operands: Tensor) -> Tensor:
        hidden, weight, bias = operands
        return linear_policy_loss(
            hidden, weight, targets, loss, weights=weights, bias=bias, kl_coef=0.1, temperature=0.8, **known
        ).loss

    assert torch.autograd.gradcheck(lambda *given: Afresh.apply(scalar, *given), operands)


def test_the_entropy_is_that_of_the_logits() -> None:
    batch = Batch(torch.float32)
    logits = (batch.hidden.double() @ batch.weight.double().T + batch.bias.double()) / 0.9
    allowed = torch.ones(V).index_fill(0, SUPPRESSED, 0).bool()
    truth = torch.distributions.Categorical(logits=logits[MASK][:, allowed]).entropy()
    for loss in (Clip(0.2, 0.2), GSPO(0.2, 0.2)):
        torch.testing.assert_close(batch.fused(loss).entropy[MASK.flatten()], truth.float())


def test_token_losses_make_one_pass_and_never_hold_the_logits_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl_kernels.ops.linear_logprob.head import Head

    calls: list[int] = []
    logits_ = Head.logits_

    def counted(self: Head, out: Tensor, hidden: Tensor) -> Tensor:
        calls.append(len(hidden))
        return logits_(self, out, hidden)

    monkeypatch.setattr(Head, "logits_", counted)
    batch = Batch(torch.float32)
    batch.fused(Clip(0.2, 0.2)).loss.backward()
    rows = int(MASK.sum())
    assert sum(calls) == rows and max(calls) <= 5
    calls.clear()
    batch.fused(GSPO(0.2, 0.2)).loss.backward()
    assert rows < sum(calls) <= 2 * rows and max(calls) <= 5


def test_without_gradients_the_loss_is_the_same_and_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl_kernels.ops.linear_logprob.head import Gradients

    batch = Batch()
    wanted = batch.fused(Clip(0.2, 0.2)).loss
    monkeypatch.setattr(Gradients, "add_", None)
    with torch.no_grad():
        found = batch.fused(Clip(0.2, 0.2)).loss
    assert torch.equal(found, wanted)
    assert not found.requires_grad


def test_a_second_backward_pass_is_refused() -> None:
    batch = Batch()
    loss = batch.fused(CISPO(None, 4.0)).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="call it again for a second one"):
        loss.backward()


def test_the_gradient_that_was_summed_up_becomes_grad_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl_kernels.ops.linear_logprob.head import Gradients

    addresses: list[int] = []  # not the tensors: one that somebody else holds is copied
    zeros = Gradients.zeros

    def noted(*given: Any) -> Gradients:
        sums = zeros(*given)
        assert sums.weight is not None
        addresses.append(sums.weight.data_ptr())
        return sums

    monkeypatch.setattr(Gradients, "zeros", noted)
    batch = Batch(torch.float32)
    batch.fused(Clip(0.2, 0.2)).loss.backward()
    assert batch.weight.grad is not None
    assert [batch.weight.grad.data_ptr()] == addresses


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    batch, known = Batch(), ("weights", "old_log_probs", "advantages")
    wanted = torch.autograd.grad(batch.fused(Clip(0.2, 0.2)).loss, batch.operands)
    for first in range(0, B * T, 17):
        rows = slice(first, first + 17)
        tensors = {"weights": batch.weights, "old_log_probs": batch.old, "advantages": batch.advantages}
        linear_policy_loss(
            batch.hidden.flatten(0, 1)[rows],
            batch.weight,
            batch.tokens.flatten()[rows],
            Clip(0.2, 0.2),
            bias=batch.bias,
            temperature=0.9,
            suppressed=SUPPRESSED,
            **{name: tensors[name].flatten()[rows] for name in known},
        ).loss.backward()
    torch.testing.assert_close([each.grad for each in batch.operands], list(wanted))


def test_under_autocast_the_gradients_are_float32_of_bfloat16_gemms() -> None:
    batch = Batch(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = batch.fused(Clip(0.2, 0.2), kl_coef=0.1)
        gradients = torch.autograd.grad(found.loss, batch.operands)
        scored = linear_logprob(
            batch.hidden.flatten(0, 1),
            batch.weight,
            batch.tokens.flatten(),
            bias=batch.bias,
            temperature=0.9,
            suppressed=SUPPRESSED,
        )
    assert found.loss.dtype == found.log_probs.dtype == torch.float32
    assert torch.equal(found.log_probs[MASK.flatten()], scored[MASK.flatten()])
    exact = torch.autograd.grad(batch.fused(Clip(0.2, 0.2), kl_coef=0.1).loss, batch.operands)
    for own, wanted in zip(gradients, exact, strict=True):
        assert own.dtype == torch.float32
        assert 0 < (own - wanted).norm() / wanted.norm() < 0.2


def test_ten_updates_end_where_plain_torch_ends() -> None:
    batch, ends = Batch(torch.float32), []
    start = [each.detach().clone() for each in batch.operands]
    for fused in (True, False):
        batch.hidden, batch.weight, batch.bias = (each.clone().requires_grad_() for each in start)
        optimizer = torch.optim.SGD([batch.weight, batch.bias], lr=0.5)
        for _ in range(10):
            optimizer.zero_grad()
            loss = batch.fused(Clip(0.2, 0.3)).loss if fused else (batch.weights * clip(batch)[0]).sum()
            loss.backward()
            optimizer.step()
        ends.append(torch.cat([batch.weight.detach().flatten(), batch.bias.detach()]))
    assert (ends[0] - ends[1]).abs().max() < 1e-5
    assert (ends[0] - torch.cat([start[1].flatten(), start[2]])).abs().max() > 1e-2


def test_a_batch_of_padding_has_a_loss_of_zero_and_no_gradient() -> None:
    batch = Batch()
    batch.weights = torch.zeros_like(batch.weights)
    for loss in (Clip(0.2, 0.2), GSPO(0.2, 0.2), DPO(0.1)):
        found = batch.fused(loss)
        assert found.loss == 0
        gradients = torch.autograd.grad(found.loss, batch.operands)
        assert all((each == 0).all() for each in gradients)


def test_huge_ratios_stay_finite() -> None:
    batch = Batch()
    batch.old = torch.full_like(batch.old, -1e4)
    batch.advantages = -torch.ones(B, T, dtype=torch.float64)
    for loss in (Clip(0.2, 0.2), CISPO(None, 4.0), GSPO(0.2, 0.2)):
        gradients = torch.autograd.grad(batch.fused(loss).loss, batch.operands)
        assert all(each.isfinite().all() for each in gradients), loss


@pytest.mark.parametrize(
    "loss, change, told",
    [
        (Clip(0.2, 0.2), {"old_log_probs": None}, "Clip needs old_log_probs: give"),
        (GSPO(0.2, 0.2), {"sequence_index": None}, "GSPO needs sequence_index"),
        (DPO(0.1), {"advantages": torch.zeros(2)}, "DPO has no use for advantages"),
        (Clip(0.2, 0.2), {"kl_coef": 0.1}, "kl_coef=0.1 needs reference_log_probs"),
        (Clip(0.2, 0.2), {"weights": torch.ones(3)}, r"weights: expected \[N\] with N=2"),
        (Clip(0.2, 0.2), {"old_log_probs": torch.zeros(2).bfloat16()}, "old_log_probs: expected float32"),
        (GSPO(0.2, 0.2), {"sequence_index": torch.tensor([-1, 0])}, "sequence_index: expected ids"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_due(loss: Any, change: dict[str, Any], told: str) -> None:
    known = {"old_log_probs": torch.zeros(2), "advantages": torch.zeros(2), "reference_log_probs": torch.zeros(2)}
    known["sequence_index"] = torch.zeros(2, dtype=torch.long)
    given = {"weights": torch.ones(2), **{name: known[name] for name in loss.needs}, **change}
    with pytest.raises(ValueError, match=told):
        linear_policy_loss(torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(2, dtype=torch.long), loss, **given)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(-0.1, 0.2),
        lambda: Clip(0.2, 0.2, dual=1.0),
        lambda: CISPO(0.1, -1),
        lambda: GSPO(0.1, -1),
        lambda: DPO(0.0),
        lambda: DPO(0.1, label_smoothing=0.5),
    ],
)
def test_impossible_limits_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()


def test_a_sequence_loss_costs_a_gemm_more_unless_the_layer_is_frozen() -> None:
    flops = {
        (frozen, sequence): cost(10, 4, 100, 4, frozen=frozen, sequence=sequence).flops / (2 * 10 * 4 * 100)
        for frozen in (False, True)
        for sequence in (False, True)
    }
    assert flops == {(False, False): 3, (False, True): 4, (True, False): 2, (True, True): 2}
