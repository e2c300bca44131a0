import pytest
import torch

from mmrl_kernels.ops.shared_prompt import OP
from mmrl_kernels.ops.shared_prompt.tiles import MAX_WIDTH, plan
from mmrl_kernels.registry import choose
from tests.kernels.gates import ON_A_GPU, compile_for_hopper, interpreted, on_a_gpu

SCRIPT = """
import os, torch
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout, shared_prompt_attention
from mmrl_kernels.ops.shared_prompt.spec import SPEC

empty, empty_like = torch.empty, torch.empty_like
torch.empty = lambda *sizes, **more: empty(*sizes, **more).fill_(float("nan"))
torch.empty_like = lambda x, **more: empty_like(x, **more).fill_(float("nan"))

def run(given, layout, kernels, scale=None):
    os.environ["MMRL_KERNELS"] = kernels
    query, key, value = (x.detach().requires_grad_() for x in given[:3])
    out = shared_prompt_attention(query, key, value, layout, scale)
    return out.detach(), *torch.autograd.grad(out, (query, key, value), given[3])

def tensors(layout, heads, kv_heads, width, dtype):
    return [torch.randn(layout.tokens, n, width).to(dtype) for n in (heads, kv_heads, kv_heads, heads)]

def compare(given, layout, scale=None):
    found = run(given, layout, "triton", scale)
    exact = run([x.double() for x in given], layout, "reference", scale)
    bound = SPEC.tolerances[given[0].dtype]
    for name, got, expected in zip(("out", "of query", "of key", "of value"), found, exact):
        assert got.dtype == given[0].dtype
        torch.testing.assert_close(
            got.double(), expected, atol=bound.absolute, rtol=bound.relative, msg=lambda text: f"{name}: {text}"
        )
    return found, exact

torch.manual_seed(0)
# Tiles of 32: prompts of one tile and more, tiles of several completions, a completion of several tiles.
ragged = SharedPromptLayout((37, 1, 5), ((1, 20, 2, 35), (), (40,)))
compare(tensors(ragged, 1, 1, 24, torch.float32), ragged)
one = SharedPromptLayout((5,), ((3,),))
compare(tensors(one, 3, 3, 8, torch.float32), one, scale=0.7)
wide = SharedPromptLayout((33,), ((9, 31),))
given = tensors(wide, 1, 1, 128, torch.float32)
given[3] = torch.ones(1, 1, 1).expand_as(given[3])  # a sum's gradient, with strides of 0
compare(given, wide)
# Tiles of 128 by 64.
long = SharedPromptLayout((150, 3), ((60, 3, 90), (5, 5)))
compare(tensors(long, 2, 1, 40, torch.float16), long)

layout = SharedPromptLayout((6, 5), ((3, 4, 30), (9, 1)))
given = tensors(layout, 2, 1, 16, torch.float32)
sound, exact = compare(given, layout)

# Bit for bit again, from other strides: what a model hands over is [H, N, D] turned round.
turned = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in given]
turned[1] = given[1].mT.contiguous().mT
assert all(torch.equal(a, b) for a, b in zip(sound, run(turned, layout, "triton"), strict=True))

# A layout with one border elsewhere is told apart.
wrong = run(given, SharedPromptLayout((6, 5), ((4, 3, 30), (9, 1))), "triton")
assert all((a - b).abs().max() > 1e-2 for a, b in zip(wrong, exact, strict=True))

# NaN in the first group reaches nothing of the second.
for x in given:
    x[: layout.groups[1].prompt.start] = float("nan")
for got, expected in zip(run(given, layout, "triton"), sound, strict=True):
    assert got[:43].isnan().all() and torch.equal(got[43:], expected[43:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("run", [interpreted, pytest.param(on_a_gpu, marks=ON_A_GPU)])
def test_triton_agrees_with_float64_from_nan_memory(run) -> None:
    run(SCRIPT)


def compile_all(dtype, width, precision="ieee"):
    from mmrl_kernels.ops.shared_prompt import triton as kernels

    sizes = plan(width, {"fp32": 4, "bf16": 2}[dtype])
    numbers = {"starts_ptr": "*i32", "tiles_ptr": "*i32", "normaliser_ptr": "*fp32", "along_ptr": "*fp32"}
    for kernel, size in (
        (kernels.forward_kernel, sizes.forward),
        (kernels.of_query_kernel, sizes.of_query),
        (kernels.of_keys_kernel, sizes.of_keys),
    ):
        constants = {"SHARE": 4, "D": width, "BLOCK_D": width, "QUERIES": size.queries, "KEYS": size.keys}
        signature = {name: "i32" for name in kernel.arg_names if name.endswith(("_row", "_head"))} | {
            name: numbers.get(name, f"*{dtype}") for name in kernel.arg_names if name.endswith("_ptr")
        }
        compile_for_hopper(
            kernel,
            signature | {"tokens": "i32", "scale": "fp32"},
            constants | {"PRECISION": precision},
            size.warps,
            size.stages,
            divisible=list(signature),  # without it nothing is copied ahead, and the shared memory is not the real one
        )


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 32), ("bf16", 128)])
def test_every_kernel_compiles_for_hopper(dtype, width):
    compile_all(dtype, width)


@pytest.mark.slow  # the same kernels, in their other tile sizes
@pytest.mark.parametrize(("dtype", "precision"), [("fp32", "ieee"), ("fp32", "tf32"), ("bf16", "ieee")])
@pytest.mark.parametrize("width", [16, 64, 128, MAX_WIDTH])
def test_every_kernel_compiles_for_hopper_at_every_tile_size(dtype, precision, width):
    compile_all(dtype, width, precision)


def test_triton_is_preferred_where_supported_or_rejected_with_a_reason(monkeypatch):
    monkeypatch.delenv("MMRL_KERNELS", raising=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose(OP, torch.zeros(1, 1, 8)).backend.name == "triton"
    for x, expected in (
        (torch.zeros(1, 1, 8, dtype=torch.float64), "float64"),
        (torch.zeros(1, 1, 2 * MAX_WIDTH), f"heads of {2 * MAX_WIDTH} numbers"),
    ):
        assert choose(OP, x).backend.name == "reference" and expected in choose(OP, x).reason
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "x is on cpu" in choose(OP, torch.zeros(1, 1, 8)).reason
