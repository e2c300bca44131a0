"""linear_logprob against plain torch in float64: values, gradients, precision, and what is never computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmrl_kernels.ops.linear_logprob import linear_logprob, linear_logprob_entropy, sizes
from mmrl_kernels.ops.linear_logprob.reference import softmax_rows
from mmrl_kernels.ops.linear_logprob.spec import SPEC, cost


@pytest.fixture(params=[1, 40], ids=["a row a chunk", "several rows a chunk"])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that small inputs take many chunks and tiles, the last ones ragged."""
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", request.param * 1000)
    monkeypatch.setitem(sizes.TILE_BYTES, "cpu", request.param * 400)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 1)
    yield


def make_inputs(n: int, h: int, v: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    hidden, weight, bias = torch.randn(n, h), torch.randn(v, h), torch.randn(v)
    return *(each.to(dtype).requires_grad_() for each in (hidden, weight, bias)), torch.randint(v, (n,))


def naive(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    suppressed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    logits = hidden.double() @ weight.double().T
    logits = (logits if bias is None else logits + bias.double()) / temperature
    if suppressed is not None:
        logits = logits.index_fill(1, suppressed, -math.inf)
    distribution = torch.distributions.Categorical(logits=logits)
    return logits.log_softmax(1).gather(1, targets[:, None])[:, 0], distribution.entropy()


def relative_error(ours: Tensor, truth: Tensor) -> float:
    ours, truth = ours.detach().double(), truth.detach()
    return float((ours - truth).abs().max() / truth.abs().max().clamp(min=1e-300))


class LargestTensor(TorchDispatchMode):
    """Counts the numbers in the largest tensor that any operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.numbers = max(self.numbers, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor)), 0)
        return result


SHAPES = [(1, 8, 11), (63, 64, 257), (301, 33, 1031)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("n, h, v", SHAPES)
@pytest.mark.parametrize("temperature, suppressing, biased", [(1.0, False, False), (0.7, True, True)])
def test_linear_logprob_equals_torch_in_float64(
    n: int, h: int, v: int, temperature: float, suppressing: bool, biased: bool
) -> None:
    hidden, weight, bias, targets = make_inputs(n, h, v)
    suppressed = torch.tensor([0, v - 1]) if suppressing else None
    targets = targets.clamp(1, v - 2)
    inputs = [hidden, weight, bias] if biased else [hidden, weight]
    options = {"bias": bias if biased else None, "temperature": temperature, "suppressed": suppressed}
    ours, entropy = linear_logprob_entropy(hidden, weight, targets, **options)
    truth, true_entropy = naive(hidden, weight, targets, **options)
    assert relative_error(ours, truth) < 2e-6
    assert relative_error(entropy, true_entropy) < 2e-5
    assert not entropy.requires_grad
    assert torch.equal(linear_logprob(hidden, weight, targets, **options), ours)
    slope = torch.randn(n)
    slope[::3] = 0
    gradients = torch.autograd.grad(ours, inputs, slope)
    for gradient, true_gradient in zip(gradients, torch.autograd.grad(truth, inputs, slope.double()), strict=True):
        assert relative_error(gradient, true_gradient.double()) < 5e-6
    wrong = linear_logprob(hidden, weight, 1 + targets % (v - 2), **options)
    assert relative_error(wrong, truth) > 1e-2, "the comparison cannot fail"


@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
@pytest.mark.usefixtures("small_chunks")
def test_gradcheck_with_any_frozen_operand(needed: tuple[int, int, int]) -> None:
    *operands, targets = make_inputs(5, 3, 13, torch.float64)
    operands = [each.detach().requires_grad_(bool(own)) for each, own in zip(operands, needed, strict=True)]
    suppressed = torch.tensor([2])
    targets = targets.where(targets != 2, 3)

    def scored(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_logprob(hidden, weight, targets, bias=bias, temperature=1.3, suppressed=suppressed)

    assert torch.autograd.gradcheck(scored, operands)
    assert scored(*operands).dtype == torch.float64


def test_frozen_layer_reuses_logits_with_equal_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, targets = make_inputs(20, 16, 50)
    (both, _) = torch.autograd.grad(linear_logprob(hidden, weight, targets).sin().sum(), [hidden, weight])
    from mmrl_kernels.ops.linear_logprob import autograd

    monkeypatch.setattr(autograd, "_backward", None)
    frozen = linear_logprob(hidden, weight.detach(), targets).sin().sum()
    torch.testing.assert_close(torch.autograd.grad(frozen, [hidden])[0], both)


def test_no_gradient_is_prepared_under_no_grad(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrl_kernels.ops.linear_logprob.head import Gradients

    monkeypatch.setattr(Gradients, "add_", None)
    hidden, weight, _, targets = make_inputs(9, 4, 20)
    with torch.no_grad():
        assert not linear_logprob(hidden, weight.detach(), targets).requires_grad


def test_zero_gradient_rows_are_skipped_in_backward() -> None:
    hidden, weight, _, targets = make_inputs(12, 8, 30)
    poisoned = hidden.detach().clone()
    poisoned[::2] = math.nan  # as padding may hold
    poisoned.requires_grad_()
    slope = torch.randn(12)
    slope[::2] = 0
    found = torch.autograd.grad(linear_logprob(poisoned, weight, targets), [poisoned, weight], slope)
    wanted = torch.autograd.grad(linear_logprob(hidden, weight, targets), [hidden, weight], slope)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_error_is_that_of_rounded_logits(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 64_000)
    monkeypatch.setattr(sizes, "columns_per_block", lambda vocabulary, width: 100)
    n, h, v = 150, 64, 499
    sizes_and_scales = (((n, h), 1), ((v, h), 4), ((v,), 1))
    rounded = [(torch.randn(size) / scale).to(dtype) for size, scale in sizes_and_scales]
    hidden, weight, bias = (each.float().requires_grad_() for each in rounded)
    targets = torch.randint(v, (n,))
    slope = torch.full((n,), 1e-7)  # of a mean over a large batch: float16 holds no product with it
    with torch.autocast("cpu", dtype=dtype):
        ours = linear_logprob(hidden, weight, targets, bias=bias)
    assert torch.equal(ours, linear_logprob(*rounded[:2], targets, bias=rounded[2]))
    truth = naive(hidden, weight, targets, bias)[0]
    allowed = SPEC.tolerances[dtype]
    assert ours.dtype == torch.float32
    assert ((ours - truth).abs() <= allowed.absolute + allowed.relative * truth.abs()).all()
    found = torch.autograd.grad(ours, [hidden, weight, bias], slope)
    wanted = torch.autograd.grad(truth, [hidden, weight, bias], slope.double())
    for own, true_gradient in zip(found, wanted, strict=True):
        assert relative_error(own, true_gradient.double()) < (0.02 if dtype == torch.bfloat16 else 0.005)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_softmax_of_half_precision_logits_is_float32(dtype: torch.dtype) -> None:
    logits, targets = (torch.randn(50, 300) * 5).to(dtype), torch.randint(300, (50,))
    truth = logits.double().log_softmax(1)
    log_probs, entropy = softmax_rows(logits, targets, entropy=True, residual=True)
    assert entropy is not None
    assert relative_error(log_probs, truth.gather(1, targets[:, None])[:, 0]) < 1e-6
    assert relative_error(entropy, -(truth.exp() * truth).sum(1)) < 1e-6
    residual = truth.exp().scatter_add(1, targets[:, None], -torch.ones(50, 1).double())
    torch.testing.assert_close(logits, residual.to(dtype))


def test_weight_gradients_accumulate_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, 512 equal chunks of one row would stop growing the sum at 256 times the first."""
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 1)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 1)
    hidden = torch.ones(512, 4, dtype=torch.bfloat16)
    weight = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)
    (found,) = torch.autograd.grad(linear_logprob(hidden, weight, torch.zeros(512, dtype=torch.long)).sum(), weight)
    assert found.tolist() == [[256.0] * 4, [-256.0] * 4]


def test_autocast_computes_in_bfloat16_with_float32_gradients() -> None:
    hidden, weight, bias, targets = make_inputs(40, 32, 200)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_logprob(hidden, weight, targets, bias=bias)
        mixed = linear_logprob(hidden.bfloat16(), weight, targets, bias=bias)  # as a model under autocast hands it over
        found = torch.autograd.grad(ours.sum(), [hidden, weight, bias])
    rounded = [each.detach().bfloat16().requires_grad_() for each in (hidden, weight, bias)]
    expected = linear_logprob(rounded[0], rounded[1], targets, bias=rounded[2])
    assert torch.equal(ours, expected)
    assert torch.equal(mixed, expected)
    assert [each.dtype for each in found] == [torch.float32] * 3
    for own, wanted in zip(found, torch.autograd.grad(expected.sum(), rounded), strict=True):
        torch.testing.assert_close(own, wanted.float(), atol=0.02, rtol=0.01)
    exact = linear_logprob(hidden, weight, targets, bias=bias)
    assert not torch.equal(ours, exact), "autocast changed nothing"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        double = linear_logprob(hidden.double(), weight.double(), targets)
    assert double.dtype == torch.float64


def test_suppressed_targets_have_log_prob_minus_infinity_without_gradient() -> None:
    *operands, targets = make_inputs(6, 4, 10, torch.float64)
    suppressed = torch.tensor([3, 7])
    targets[:2] = 3
    ours = linear_logprob(operands[0], operands[1], targets, suppressed=suppressed)
    truth = naive(operands[0], operands[1], targets, suppressed=suppressed)[0]
    assert ours[:2].tolist() == [-math.inf, -math.inf]
    torch.testing.assert_close(ours, truth)
    slope = torch.ones(6, dtype=torch.float64)
    for own, wanted in zip(
        torch.autograd.grad(ours, operands[:2], slope), torch.autograd.grad(truth, operands[:2], slope), strict=True
    ):
        torch.testing.assert_close(own, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_uninitialised_buffers_do_not_change_results(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, targets = make_inputs(30, 8, 60, dtype)

    def results() -> tuple[Tensor, ...]:
        plain, entropy = linear_logprob_entropy(hidden, weight, targets)
        biased = linear_logprob(hidden, weight, targets, bias=bias)
        return plain, entropy, biased, *torch.autograd.grad((plain + biased).sum(), [hidden, weight, bias])

    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 1000)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 1)
    clean = results()
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: Tensor) -> Tensor:
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    torch.testing.assert_close(results(), clean, rtol=0, atol=0)


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e4, 1e4 - 3.0, -1e4], [-3e4, -3e4, -3e4]])
    log_probs, entropy = softmax_rows(logits.clone(), torch.tensor([1, 2]), entropy=True, residual=False)
    torch.testing.assert_close(log_probs, logits.double().log_softmax(1)[[0, 1], [1, 2]].float())
    assert entropy is not None
    assert entropy[1].item() == pytest.approx(math.log(3))


def test_empty_batches_have_zero_gradients() -> None:
    _, weight, _, _ = make_inputs(1, 4, 10)
    hidden = torch.zeros(0, 4, requires_grad=True)
    ours, entropy = linear_logprob_entropy(hidden, weight, torch.zeros(0, dtype=torch.long))
    assert ours.shape == entropy.shape == (0,)
    assert torch.autograd.grad(ours.sum(), [weight])[0].abs().sum() == 0


@pytest.mark.parametrize("rows, vocabulary", [(1, 7), (2048, 32_000), (10_000, 151_936), (5, 262_144), (4097, 999)])
def test_chunks_are_even_and_within_their_bytes(rows: int, vocabulary: int) -> None:
    count = sizes.rows_per_chunk(rows, vocabulary, 4, "cpu")
    assert 1 <= count <= rows
    assert count * vocabulary * 4 <= sizes.CHUNK_BYTES["cpu"] or count <= sizes.FEWEST_ROWS
    chunks = -(-rows // count)
    assert chunks * count - rows < chunks


def test_logits_of_all_rows_are_never_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 400_000)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 1)
    hidden, weight, _, targets = make_inputs(2000, 8, 1000)
    with LargestTensor() as largest:
        torch.autograd.grad(linear_logprob(hidden, weight, targets).sum(), [hidden, weight])
    assert 90_000 <= largest.numbers <= 100_000
    with LargestTensor() as largest:
        naive(hidden, weight, targets)
    assert largest.numbers == 2_000_000


def test_frozen_layer_halves_the_operations() -> None:
    whole, frozen = cost(100, 64, 1000, 4), cost(100, 64, 1000, 4, frozen=True)
    assert whole.flops == 2 * frozen.flops == 8 * 100 * 64 * 1000
    assert whole.bytes > frozen.bytes


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden": torch.zeros(2, 3, 4)}, r"hidden: expected \[N, H\], got \[2, 3, 4\]; flatten"),
        ({"weight": torch.zeros(5, 3)}, r"weight: expected \[V, H\] with H=4"),
        ({"weight": torch.zeros(5, 4).half()}, "weight: expected float32, as hidden is, got float16; cast one"),
        ({"targets": torch.zeros(3, dtype=torch.long)}, r"targets: expected \[N\] with N=2"),
        ({"targets": torch.zeros(2)}, "targets: expected int64, got float32"),
        ({"targets": torch.tensor([0, -100])}, r"targets: expected ids in \[0, 5\), got -100 to 0; drop padding"),
        ({"bias": torch.zeros(4)}, r"bias: expected \[V\] with V=5"),
        ({"suppressed": torch.tensor([5])}, r"suppressed: expected ids in \[0, 5\)"),
        ({"suppressed": torch.tensor(1)}, r"suppressed: expected \[S\]"),
        ({"temperature": 0.0}, "temperature: expected a number > 0, got 0.0"),
    ],
)
def test_linear_logprob_rejects_wrong_inputs_with_the_expected_shape(change: dict[str, object], message: str) -> None:
    inputs = {"hidden": torch.zeros(2, 4), "weight": torch.zeros(5, 4), "targets": torch.zeros(2, dtype=torch.long)}
    with pytest.raises(ValueError, match=message):
        linear_logprob(**{**inputs, **change})  # type: ignore[arg-type]
