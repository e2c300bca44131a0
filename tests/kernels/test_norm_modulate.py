import pytest
import torch

from mmrl_kernels.ops.norm_modulate import compiled, native, norm_modulate, reference
from mmrl_kernels.ops.norm_modulate.spec import SPEC, cost
from mmrl_kernels.registry import KernelError
from tests.kernels.gates import compile_for_hopper, interpreted

KINDS = ["layer", "rms"]


def activations(batch=2, tokens=3, width=7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return 3 * random(batch, tokens, width) + 1, random(batch, width), random(batch, width), random(width)


def by_hand(x, scale, shift, eps, kind, weight):
    """Row by row, in Python's own order."""
    out = torch.empty_like(x)
    for b, n in torch.cartesian_prod(torch.arange(len(x)), torch.arange(x.shape[1])).tolist():
        row = x[b, n] - (x[b, n].sum() / x.shape[2] if kind == "layer" else 0)
        row = row / ((row * row).sum() / x.shape[2] + eps).sqrt()
        out[b, n] = row * (1 if weight is None else weight) * (1 + scale[b]) + shift[b]
    return out


@pytest.fixture(params=["reference", "native"])
def portable(request, monkeypatch):
    """Who computes on a CPU without a compiler."""
    monkeypatch.setenv("MMRL_KERNELS", request.param)


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_within_the_spec_of_a_row_by_row_float64(kind, weighted, dtype):
    x, scale, shift, weight = activations(3, 5, 37, dtype=dtype)
    weight, bound = weight if weighted else None, SPEC.tolerances[dtype]
    wide = [None if t is None else t.double() for t in (x, scale, shift, weight)]
    due = by_hand(*wide[:3], 1e-2, kind, wide[3])
    out = norm_modulate(x, scale, shift, 1e-2, kind, weight)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), due, atol=bound.absolute, rtol=bound.relative)
    other = norm_modulate(x, scale, shift, 1e-2, "rms" if kind == "layer" else "layer", weight)
    assert (other.double() - due).abs().max() > 0.1  # the bound can fail


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_in_all_four_tensors(kind):
    given = [t.requires_grad_() for t in activations(2, 3, 5)]
    assert torch.autograd.gradcheck(lambda x, s, t, w: norm_modulate(x, s, t, 1e-3, kind, w), given)
    assert torch.autograd.gradcheck(lambda x, s, t: norm_modulate(x, s, t, 1e-3, kind), given[:3])


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("wanting", [[True, False, False], [False, True, False], [False, False, True]])
def test_only_what_wants_a_gradient_gets_one(wanting):
    given = activations(2, 3, 5)[:3]
    every = [t.requires_grad_() for t in given]
    due = torch.autograd.grad(norm_modulate(*every).sin().sum(), every)
    some = [t.detach().clone().requires_grad_(wants) for t, wants in zip(given, wanting, strict=True)]
    norm_modulate(*some).sin().sum().backward()
    for tensor, wants, gradient in zip(some, wanting, due, strict=True):
        assert (tensor.grad is not None) == wants
        if wants:
            torch.testing.assert_close(tensor.grad, gradient)


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("sizes", [(0, 3, 5), (2, 0, 5)])
def test_nothing_stays_nothing(sizes):
    x, scale, shift, _ = activations(*sizes)
    assert norm_modulate(x, scale, shift).shape == x.shape


def test_a_gradient_that_is_no_block_of_memory_and_activations_that_are_none():
    x, scale, shift, _ = activations(2, 3, 5)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    out = norm_modulate(turned, scale, shift)
    (got,) = torch.autograd.grad(out.sum(1, keepdim=True).expand(2, 3, 5), turned, torch.ones(()).expand(2, 3, 5))
    plain = x.clone().requires_grad_()
    (due,) = torch.autograd.grad(3 * reference.norm_modulate(plain, scale, shift, 1e-6).sum(), plain)
    torch.testing.assert_close(got, due)


@pytest.mark.usefixtures("portable")
def test_half_precision_is_rounded_once_where_the_composition_rounds_at_every_step():
    x, scale, shift, _ = activations(2, 64, 128, dtype=torch.bfloat16)
    exact = norm_modulate(x.double(), scale.double(), shift.double())
    composed = torch.nn.functional.layer_norm(x, (128,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
    ours = norm_modulate(x, scale, shift)
    assert (ours - exact).abs().mean() < 0.7 * (composed - exact).abs().mean()


# Code generation costs 20 seconds of g++ on a fresh machine; what it cannot go without is told by the cheap backend.
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_compiled_form_agrees_on_activations_of_a_network(backend):
    x, scale, shift, _ = (t.requires_grad_() for t in activations(2, 17, 67, dtype=torch.float32))
    through = torch.compile(reference.norm_modulate, fullgraph=True, backend=backend)
    results = []
    for function in (reference.norm_modulate, through):
        out = function(x * 1.0, scale * 1.0, shift * 1.0, 1e-6)  # no leaves, as in a network
        results.append([out, *torch.autograd.grad(out.square().sum(), (x, scale, shift))])
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, atol=1e-4, rtol=1e-4)


def test_samples_that_outgrow_the_cache_go_to_torchs_own_kernels(monkeypatch):
    called = []
    for name, home in (("_compiled", compiled), ("norm_modulate", native)):
        monkeypatch.setattr(home, name, lambda *given, name=name: called.append(name))
    for tokens, kind in ((1 << 19, "layer"), ((1 << 19) + 1, "layer"), ((1 << 19) + 1, "rms")):
        compiled.norm_modulate(torch.empty(1, tokens, 2), torch.zeros(1, 2), torch.zeros(1, 2), 1e-6, kind)
    assert called == ["_compiled", "norm_modulate", "_compiled"]


IN_THE_INTERPRETER = """
import os, torch
from mmrl_kernels.ops.norm_modulate import norm_modulate

empty, empty_like = torch.empty, torch.empty_like
torch.empty = lambda *sizes, **more: empty(*sizes, **more).fill_(float("nan"))
torch.empty_like = lambda x, **more: empty_like(x, **more).fill_(float("nan"))

def run(x, scale, shift, kind, weight, kernels):
    os.environ["MMRL_KERNELS"] = kernels
    given = [t.detach().requires_grad_() for t in (x, scale, shift, weight) if t is not None]
    out = norm_modulate(*given[:3], 1e-3, kind, given[3] if weight is not None else None)
    return out, *torch.autograd.grad(out.sin().sum(), given)

torch.manual_seed(0)
for (b, n, h), kind, weighted, dtype in (
    ((2, 9, 67), "layer", False, torch.float32),
    ((3, 5, 64), "rms", True, torch.float32),
    ((1, 1, 1), "rms", False, torch.float32),
    ((2, 3, 33), "layer", True, torch.float16),
):
    given = [3 * torch.randn(b, n, h), torch.randn(b, h), torch.randn(b, h), torch.randn(h) if weighted else None]
    given = [None if t is None else t.to(dtype) for t in given]
    x, scale, shift, weight = given
    ours = run(x, scale, shift, kind, weight, "triton")
    wide = [None if t is None else t.double() for t in given]
    exact = run(*wide[:3], kind, wide[3], "reference")
    bound = 1e-2 if dtype == torch.float16 else 1e-5
    for at, (got, due) in enumerate(zip(ours, exact)):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), due, atol=bound, rtol=bound, msg=lambda told: f"{kind} {at}: {told}")
frozen = torch.randn(2, 3, 8, requires_grad=True)  # the modulation wants no gradient: other branches of the kernel
os.environ["MMRL_KERNELS"] = "triton"
(ours,) = torch.autograd.grad(norm_modulate(frozen, scale[:, :8].float(), shift[:, :8].float()).sin().sum(), frozen)
os.environ["MMRL_KERNELS"] = "reference"
(due,) = torch.autograd.grad(norm_modulate(frozen, scale[:, :8].float(), shift[:, :8].float()).sin().sum(), frozen)
torch.testing.assert_close(ours, due)
(other,) = torch.autograd.grad(norm_modulate(frozen, scale[:, 8:16].float(), shift[:, :8].float()).sum(), frozen)
assert (ours - other).abs().max() > 1e-3
"""


def test_the_triton_kernels_agree_with_float64_in_the_interpreter_from_poisoned_memory():
    interpreted(IN_THE_INTERPRETER)


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", "rms"), ("bf16", "layer")])
def test_the_triton_kernels_compile_for_hopper(dtype, kind):
    from mmrl_kernels.ops.norm_modulate import triton as kernels

    block, warps = kernels.launch(1536)
    flags = {"IS_LAYER": kind == "layer", "HAS_WEIGHT": kind == "rms", "BLOCK": block}
    read = dict.fromkeys(["x_ptr", "scale_ptr", "weight_ptr"], f"*{dtype}") | {"mean_ptr": "*fp32", "rstd_ptr": "*fp32"}
    sizes = {"n_tokens": "i32", "width": "i32"}
    forward = read | sizes | {"shift_ptr": f"*{dtype}", "y_ptr": f"*{dtype}", "eps": "fp32"}
    compile_for_hopper(kernels.forward_kernel, forward, flags, num_warps=warps)
    backward = read | sizes | {"dy_ptr": f"*{dtype}", "dx_ptr": f"*{dtype}", "sums_ptr": "*fp32", "rows": "i32"}
    compile_for_hopper(kernels.backward_kernel, backward, flags | {"WANTS_SUMS": True}, num_warps=warps)


@pytest.mark.parametrize(
    ("change", "due"),
    [
        (lambda x, s, t, w: (x[0], s, t), r"x: expected float activations"),
        (lambda x, s, t, w: (x, s[:1], t), r"scale: expected \[B, H\] = \[2, 7\]"),
        (lambda x, s, t, w: (x, s, t[:, None]), "shift: expected"),
        (lambda x, s, t, w: (x, s, t, 1e-6, "rms", w[1:]), "weight: expected"),
        (lambda x, s, t, w: (x, s, t, 1e-6, "group"), "kind 'group': expected one of layer, rms"),
    ],
)
def test_what_does_not_fit_is_refused(change, due):
    with pytest.raises(KernelError, match=due):
        norm_modulate(*change(*activations()))


def test_a_training_call_moves_five_times_the_activations():
    assert cost(2, 3, 7, itemsize=2).bytes == 5 * 2 * 3 * 7 * 2
