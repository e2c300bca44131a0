"""The softmax kernel of linear_logprob: compiled for a Hopper GPU, and run in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from mmrl_kernels.ops.linear_logprob.spec import OP
from mmrl_kernels.registry import KernelError, choose
from tests.kernels.gates import ON_A_GPU, compile_for_hopper, interpreted, on_a_gpu

SCRIPT = """
import math
import torch
from mmrl_kernels.ops.linear_logprob import linear_logprob_entropy, reference, sizes, triton

torch.manual_seed(0)
triton.block_and_warps = lambda columns: (64, 4)  # so that rows take several blocks, the last one ragged
poison = torch.empty
torch.empty = lambda *a, **k: poison(*a, **k).fill_(math.nan)

def relative(ours, truth):
    return float((ours.double() - truth.double()).abs().max() / truth.double().abs().max())

for dtype, allowed in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)):
    for n, v in ((1, 5), (7, 64), (5, 257)):
        room = torch.full((n, v + 3), math.nan, dtype=dtype)  # rows further apart than they are long
        logits = room[:, :v]
        logits.copy_(torch.randn(n, v) * 4)
        logits[:, 1] = torch.finfo(dtype).min
        targets = torch.randint(2, v, (n,))
        targets[0] = 1 if n > 1 else 0
        wide, found = logits.double(), logits
        wide[:, 1] = -math.inf
        log_probs, entropy = triton.softmax_rows(found, targets, entropy=True, residual=True)
        truth = wide.log_softmax(1)
        picked = truth.gather(1, targets[:, None])[:, 0]
        assert n == 1 or log_probs[0] == -math.inf
        finite = picked.isfinite()
        assert relative(log_probs[finite], picked[finite]) < 1e-6
        assert relative(entropy, torch.distributions.Categorical(logits=wide).entropy()) < 1e-5
        hot = torch.zeros(n, v).double().scatter_(1, targets[:, None], 1.0)
        hot[:, 1] = 0
        assert relative(found, truth.exp() - hot) < allowed, (dtype, n, v)
        assert relative(found, truth.exp()) > 1e-2, "the comparison cannot fail"
        assert room[:, v:].isnan().all(), "wrote past the row"

sizes.CHUNK_BYTES[torch.get_default_device().type], sizes.FEWEST_ROWS = 3 * 100 * 4, 3
hidden, weight = torch.randn(10, 8).requires_grad_(), torch.randn(100, 8).requires_grad_()
targets, suppressed = torch.randint(2, 100, (10,)), torch.tensor([0, 1])

def results():
    log_probs, entropy = linear_logprob_entropy(hidden, weight, targets, temperature=0.8, suppressed=suppressed)
    return log_probs, entropy, *torch.autograd.grad(log_probs.sin().sum(), [hidden, weight])

import os
with_kernel = results()
os.environ["MMRL_KERNELS"] = "reference"
torch.testing.assert_close(with_kernel, results(), atol=1e-5, rtol=1e-5)
print("done")
"""


@pytest.mark.integration
@pytest.mark.parametrize("run", [interpreted, pytest.param(on_a_gpu, marks=ON_A_GPU)])
def test_triton_kernel_agrees_with_float64(run) -> None:
    assert run(SCRIPT).endswith("done\n")


@pytest.mark.parametrize("kind", ["*fp32", "*bf16"])
@pytest.mark.parametrize("gradient", [True, False])
def test_triton_kernel_compiles_for_hopper(kind: str, gradient: bool) -> None:
    from mmrl_kernels.ops.linear_logprob.triton import block_and_warps, softmax_rows_kernel

    block, warps = block_and_warps(151_936)
    compile_for_hopper(
        softmax_rows_kernel,
        {
            "logits": kind,
            "targets": "*i64",
            "log_probs": "*fp32",
            "entropies": "*fp32",
            "columns": "i32",
            "stride": "i32",
            "lowest": "fp32",
        },
        {"ENTROPY": gradient, "RESIDUAL": gradient, "BLOCK": block},
        num_warps=warps,
    )


def test_cpu_uses_the_reference_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMRL_KERNELS", raising=False)
    assert choose(OP, torch.zeros(1, 2)).reason == "triton: x is on cpu"
    monkeypatch.setenv("MMRL_KERNELS", "triton")
    with pytest.raises(KernelError, match="float64"):
        choose(OP, torch.zeros(1, 2, dtype=torch.float64))
