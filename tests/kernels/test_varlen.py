import itertools
import math
import sys

import pytest
import torch

from mmrl_kernels.ops.varlen import varlen_attention, why_not_flash
from mmrl_kernels.ops.varlen.spec import SPEC, cost
from mmrl_kernels.registry import KernelError

LENGTHS = [(5, 5), (1, 7), (0, 3), (6, 2), (3, 0), (4, 9)]  # (queries, keys), ragged, some of them empty


def offsets(sizes):
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32)


def packed(heads=4, kv_heads=2, d=8, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (sum(sizes) for sizes in zip(*LENGTHS, strict=True))
    q = torch.randn(queries, heads, d, generator=generator, dtype=torch.float64).to(dtype)
    k, v = (torch.randn(keys, kv_heads, d, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    return q, k, v, *(offsets(sizes) for sizes in zip(*LENGTHS, strict=True))


def by_one_mask(q, k, v, cu_q, cu_k, causal, scale):
    """Over the whole pack with a mask of [T_q, T_k]: which sequence, and which place in it, written out."""
    group = q.shape[1] // k.shape[1]
    k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * (scale or 1 / math.sqrt(q.shape[-1]))
    seen = torch.zeros(scores.shape[1:], dtype=torch.bool)
    for s in range(len(cu_q) - 1):
        for i, j in itertools.product(range(cu_q[s], cu_q[s + 1]), range(cu_k[s], cu_k[s + 1])):
            seen[i, j] = not causal or (cu_k[s + 1] - j) >= (cu_q[s + 1] - i)
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_each_sequence_attends_to_itself_and_to_nothing_else(causal, dtype):
    q, k, v, cu_q, cu_k = packed(dtype=dtype)
    bound = SPEC.tolerances[dtype]
    out = varlen_attention(q, k, v, cu_q, cu_k, causal=causal, scale=0.3)
    due = by_one_mask(q, k, v, cu_q, cu_k, causal, 0.3)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), due, atol=bound.absolute, rtol=bound.relative)
    wrong = by_one_mask(q, k, v, cu_q, cu_k, not causal, 0.3)
    assert (wrong - out.double()).abs().max() > 0.1  # the bound can fail


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_one_big_mask_and_of_finite_differences(causal):
    q, k, v, cu_q, cu_k = packed(heads=2, kv_heads=1, d=2)
    given = [t.requires_grad_() for t in (q, k, v)]
    grad = torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad(varlen_attention(q, k, v, cu_q, cu_k, causal=causal), given, grad)
    due = torch.autograd.grad(by_one_mask(q, k, v, cu_q, cu_k, causal, None), given, grad)
    for got, expected in zip(ours, due, strict=True):
        torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(lambda *a: varlen_attention(*a, cu_q, cu_k, causal=causal), given)


def test_queries_without_a_key_get_zero_and_no_gradient():
    q, k = torch.randn(3, 1, 8, requires_grad=True), torch.randn(0, 1, 8)
    out = varlen_attention(q, k, k, offsets([3]), offsets([0]))
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert not out.any() and not grad.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's variable-length kernels run on CUDA")
@pytest.mark.parametrize("causal", [False, True])
def test_torchs_kernels_agree_with_the_loop(causal, monkeypatch):
    tensors = [t.cuda() for t in packed(dtype=torch.bfloat16)]
    results = {}
    for kernels in ("auto", "reference"):
        monkeypatch.setenv("MMRL_KERNELS", kernels)
        given = [t.detach().requires_grad_() for t in tensors[:3]]
        out = varlen_attention(*given, *tensors[3:], causal=causal)
        results[kernels] = [out, *torch.autograd.grad(out.float().square().sum(), given)]
    for fast, plain in zip(results["auto"], results["reference"], strict=True):
        torch.testing.assert_close(fast, plain, atol=3e-2, rtol=3e-2)


def test_why_torchs_kernels_do_not_serve_is_said(monkeypatch):
    assert why_not_flash(torch.zeros(1, 1, 8)) == "q is on cpu"

    class OnCuda:
        device, dtype, shape = torch.device("cuda"), torch.float32, (1, 1, 8)

    assert "float16 and bfloat16" in why_not_flash(OnCuda)
    OnCuda.dtype, OnCuda.shape = torch.bfloat16, (1, 1, 20)
    assert "multiples of 8" in why_not_flash(OnCuda)


def test_torchs_kernels_are_called_with_the_arguments_they_know(monkeypatch):
    """Without a GPU: the call binds to torch's signature, with the longest sequences and the causal window."""
    import inspect

    from torch.nn.attention import varlen as torchs

    signature, seen = inspect.signature(torchs.varlen_attn), {}

    def record(*args, **kwargs):
        seen.update(signature.bind(*args, **kwargs).arguments)
        return seen["query"]

    monkeypatch.setattr(torchs, "varlen_attn", record)
    monkeypatch.setattr(sys.modules["mmrl_kernels.ops.varlen"], "why_not_flash", lambda q: None)
    q, k, v, cu_q, cu_k = packed()
    varlen_attention(q, k, v, cu_q, cu_k, causal=True)
    assert (seen["max_q"], seen["max_k"], seen["window_size"], seen["enable_gqa"]) == (6, 9, (-1, 0), True)
    varlen_attention(q, k[:, :1], v[:, :1], cu_q, cu_k)
    assert seen["window_size"] == (-1, -1)


@pytest.mark.parametrize(
    ("change", "due"),
    [
        (lambda q, k, v, a, b: (q, k[:, :1], v, a, b), "kv_heads dividing heads"),
        (lambda q, k, v, a, b: (q, k.float(), v, a, b), "one dtype"),
        (lambda q, k, v, a, b: (q, k, v, a[:-1], b), r"\[S \+ 1\]"),
        (lambda q, k, v, a, b: (q[1:], k, v, a, b), "cu_seqlens_q: expected offsets that rise from 0 to 18"),
        (lambda q, k, v, a, b: (q, k, v, a, b.flip(0)), "cu_seqlens_k: expected offsets"),
    ],
)
def test_packs_that_do_not_fit_are_refused(change, due):
    with pytest.raises(KernelError, match=due):
        varlen_attention(*change(*packed()))


def test_causal_attention_costs_what_its_mask_lets_through():
    assert cost([(4, 4)], 1, 1, 8, 2, causal=True, training=False).flops == 4 * 8 * 10
    assert cost([(2, 5)], 1, 1, 8, 2, causal=True, training=False).flops == 4 * 8 * 9
