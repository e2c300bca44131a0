import inspect
import math

import pytest
import torch

from mmrl.generation.diffusion.transitions import CPS, DDIM, DanceSDE, FlowSDE, NoisyODE
from mmrl_kernels.ops.sde_step_logprob import (
    StepCoefficients,
    compiled,
    cps,
    dance_sde,
    ddim,
    flow_sde,
    noisy_ode,
    sde_step_logprob,
    sde_step_sample,
)
from mmrl_kernels.ops.sde_step_logprob.spec import SPEC, cost
from mmrl_kernels.registry import KernelError
from tests.kernels.gates import compile_for_hopper, interpreted

STEPS = [(0.9, 0.75), (0.3, 0.05)]
PAIRS = {
    "flow_sde": (lambda s, t: flow_sde(s, t, 0.7, 0.96), FlowSDE(0.7, 0.96)),
    "dance_sde": (lambda s, t: dance_sde(s, t, 0.3), DanceSDE(0.3)),
    "noisy_ode": (lambda s, t: noisy_ode(s, t, 0.05), NoisyODE(0.05)),
    "cps": (lambda s, t: cps(s, t, 0.7), CPS(0.7)),
    "ddim epsilon": (lambda s, t: ddim(s, t, 1.0), DDIM(1.0)),
    "ddim v": (lambda s, t: ddim(s, t, 0.5, "v_prediction"), DDIM(0.5, "v_prediction")),
    "ddim sample": (lambda s, t: ddim(s, t, 0.5, "sample"), DDIM(0.5, "sample")),
}


def latents(*shape, seed=0, dtype=torch.float32, count=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("sigmas", STEPS)
def test_every_transition_is_the_trainers_own(name, sigmas):
    """In float64, where nothing but the formulas can differ: scores, means, stds and gradients."""
    build, transition = PAIRS[name]
    x, velocity, next_x = latents(3, 4, 5, dtype=torch.float64)
    ours, theirs = velocity.clone().requires_grad_(), velocity.clone().requires_grad_()
    step = build(*sigmas)

    log_prob, mean = sde_step_logprob(x, ours, next_x, step)
    due_mean, due_std = transition.moments(x, theirs, *sigmas)
    each = -((next_x - due_mean) ** 2)  # the trainer's own log_prob rounds to float32
    if name != "cps":
        each = each / (2 * due_std**2) - math.log(due_std) - 0.5 * math.log(2 * math.pi)
    due = each.flatten(1).mean(1)

    assert step.std == pytest.approx(due_std, rel=1e-12)
    torch.testing.assert_close(mean, due_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_prob, due, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_prob.float(), transition.log_prob(next_x, due_mean, due_std), rtol=1e-5, atol=1e-6)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for loss in ((log_prob * weights).sum() + mean.sin().sum(), (due * weights).sum() + due_mean.sin().sum()):
        loss.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_flow_sde_at_pure_noise_takes_the_first_sigma_of_the_schedule():
    expected = FlowSDE(0.7, 0.96).moments(torch.ones(1), torch.zeros(1), 1.0, 0.96)
    step = flow_sde(1.0, 0.96, 0.7, 0.96)
    assert (step.x, step.std) == pytest.approx((float(expected[0]), expected[1]))
    assert flow_sde(1 - 1e-6, 0.96, 0.7, 0.96).std == pytest.approx(step.std, rel=1e-4)


def test_the_log_density_is_that_of_torch_distributions_averaged_over_the_latent():
    x, velocity, next_x = latents(2, 3, 7, 5, dtype=torch.float64)
    step = dance_sde(0.8, 0.7, 0.3)
    density = torch.distributions.Normal(step.x * x + step.velocity * velocity, step.std)
    expected = density.log_prob(next_x).flatten(1).mean(1)
    log_prob, _ = sde_step_logprob(x, velocity, next_x, step)
    torch.testing.assert_close(log_prob, expected)
    wrong, _ = sde_step_logprob(x, velocity, next_x, dance_sde(0.8, 0.7, 0.31))
    assert (wrong - expected).abs().min() > 1e-2  # the tolerance above can fail


def test_gradcheck_of_the_score_and_of_the_mean():
    x, velocity, next_x = latents(2, 5, dtype=torch.float64)
    velocity.requires_grad_()
    for step in (flow_sde(0.8, 0.7, 0.7, 0.96), cps(0.8, 0.7, 0.5)):
        assert torch.autograd.gradcheck(lambda v, step=step: sde_step_logprob(x, v, next_x, step), velocity)
    _, mean = sde_step_logprob(x, velocity, next_x, step)
    (grad,) = torch.autograd.grad(mean.sum(), velocity)
    torch.testing.assert_close(grad, torch.full_like(grad, step.velocity))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 4, 5, 7), (2, 16, 33, 31)])
def test_every_dtype_is_scored_within_the_spec_of_float64(dtype, shape):
    x, velocity, next_x = latents(*shape, dtype=dtype)
    velocity.requires_grad_()
    step, bound = flow_sde(0.8, 0.7, 0.7, 0.96), SPEC.tolerances[dtype]
    log_prob, mean = sde_step_logprob(x, velocity, next_x, step)
    exact, _ = sde_step_logprob(x.double(), velocity.double(), next_x.double(), step)
    assert log_prob.dtype == mean.dtype == torch.float32
    torch.testing.assert_close(log_prob.double(), exact, atol=bound.absolute, rtol=bound.relative)
    (grad,) = torch.autograd.grad(log_prob.sum(), velocity)
    assert grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_of_a_rollout_is_bit_equal(dtype):
    x, velocity, noise = latents(3, 16, 9, 9, dtype=dtype)
    step = flow_sde(0.8, 0.7, 0.7, 0.96)
    drawn, recorded = sde_step_sample(x, velocity, noise, step)
    replayed, _ = sde_step_logprob(x, velocity.requires_grad_(), drawn, step)
    assert drawn.dtype == dtype and replayed.requires_grad and not recorded.requires_grad
    assert torch.equal(recorded, replayed)
    exact = step.x * x.double() + step.velocity * velocity.double() + step.std * noise.double()
    torch.testing.assert_close(drawn, exact.to(dtype), atol=1e-5, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)


def test_inputs_of_any_layout_are_taken():
    x, velocity, next_x = latents(4, 6, 5)
    step = cps(0.8, 0.7, 0.7)
    plain, _ = sde_step_logprob(x, velocity, next_x, step)
    strange, _ = sde_step_logprob(x.mT.contiguous().mT, velocity[:, ::1], next_x.mT.contiguous().mT, step)
    assert torch.equal(plain, strange)


# Code generation costs 20 seconds of g++ on a fresh machine; what it cannot go without is told by the cheap backend.
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_compiled_form_agrees_and_serves_a_whole_schedule_with_one_graph(backend, monkeypatch):
    torch._dynamo.reset()  # what another backend compiled in this process
    for name in ("_sample", "_draw", "_score", "_forward", "_backward"):
        function = inspect.unwrap(getattr(compiled, name))
        monkeypatch.setattr(compiled, name, torch.compile(function, fullgraph=True, backend=backend))
    x, velocity, noise = latents(2, 3, 67)
    velocity.requires_grad_()
    results = {}
    for kernels in ("reference", "compile"):
        monkeypatch.setenv("MMRL_KERNELS", kernels)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for sigma in (0.8, 0.7, 0.6):
                step = flow_sde(sigma, sigma - 0.1, 0.7, 0.96)
                drawn, recorded = sde_step_sample(x, velocity, noise, step)
                log_prob, mean = sde_step_logprob(x, velocity * 1.0, drawn, step)  # no leaf, as a network's output
                assert torch.equal(recorded, log_prob)
                grads = torch.autograd.grad(log_prob.sum(), velocity)
                results.setdefault(kernels, []).extend([drawn, log_prob, mean, *grads])
    for plain, fast in zip(results["reference"], results["compile"], strict=True):
        torch.testing.assert_close(fast, plain, atol=2e-6, rtol=2e-6)


IN_THE_INTERPRETER = """
import os, torch
from mmrl_kernels.ops.sde_step_logprob import cps, flow_sde, sde_step_logprob, sde_step_sample

empty, empty_like = torch.empty, torch.empty_like
torch.empty = lambda *sizes, **more: empty(*sizes, **more).fill_(float("nan"))
torch.empty_like = lambda x, **more: empty_like(x, **more).fill_(float("nan"))

def run(x, velocity, next_x, step, kernels):
    os.environ["MMRL_KERNELS"] = kernels
    velocity = velocity.detach().requires_grad_()
    log_prob, mean = sde_step_logprob(x, velocity, next_x, step)
    alone = torch.autograd.grad(log_prob.sum(), velocity, retain_graph=True)
    return log_prob, mean, *alone, *torch.autograd.grad(log_prob.sum() + mean.square().sum(), velocity)

flow = flow_sde(0.8, 0.7, 0.7, 0.96)
torch.manual_seed(0)
for shape, dtype, step in (
    ((1, 1), torch.float32, flow), ((3, 2049), torch.float32, cps(0.8, 0.7, 0.7)), ((2, 3, 7, 101), torch.float16, flow)
):
    x, velocity, noise = (torch.randn(shape).to(dtype) for _ in range(3))
    os.environ["MMRL_KERNELS"] = "triton"
    drawn, recorded = sde_step_sample(x, velocity, noise, step)
    ours = run(x, velocity, drawn, step, "triton")
    exact = run(x.double(), velocity.double(), drawn.double(), step, "reference")
    assert torch.equal(recorded, ours[0])
    for name, got, due in zip(("log_prob", "mean", "gradient", "both"), ours, exact):
        relative = 2e-3 if got.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(got.double(), due, atol=2e-6, rtol=relative, msg=lambda told: f"{name}: {told}")
    assert (run(x, velocity, drawn + 0.1, step, "triton")[0] - ours[0]).abs().min() > 1e-4  # it can fail
"""


def test_the_triton_kernels_agree_with_float64_in_the_interpreter_from_poisoned_memory():
    interpreted(IN_THE_INTERPRETER)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_triton_kernels_compile_for_hopper(dtype):
    from mmrl_kernels.ops.sde_step_logprob import triton as kernels

    latent, number = f"*{dtype}", "fp32"
    compile_for_hopper(
        kernels.sample_kernel,
        dict.fromkeys(["x_ptr", "velocity_ptr", "noise_ptr", "next_ptr"], latent)
        | {"partial_ptr": "*fp32", "d": "i32"}
        | dict.fromkeys(["a", "b", "std"], number),
        {"BLOCK": kernels.BLOCK},
    )
    compile_for_hopper(
        kernels.forward_kernel,
        {**dict.fromkeys(["x_ptr", "velocity_ptr", "next_ptr"], latent), "mean_ptr": "*fp32", "partial_ptr": "*fp32"}
        | {"a": number, "b": number, "d": "i32"},
        {"BLOCK": kernels.BLOCK},
    )
    compile_for_hopper(
        kernels.backward_kernel,
        {**dict.fromkeys(["grad_score_ptr", "grad_mean_ptr", "mean_ptr"], "*fp32"), "next_ptr": latent}
        | {"grad_ptr": latent, "b": number, "slope": number, "d": "i32"},
        {"HAS_MEAN": True, "BLOCK": kernels.BLOCK},
    )


@pytest.mark.parametrize(
    ("broken", "due"),
    [
        (lambda x: (x, x[:1], x, flow_sde(0.8, 0.7, 0.7, 0.96)), "velocity: expected"),
        (lambda x: (x, x, x.flatten(1), flow_sde(0.8, 0.7, 0.7, 0.96)), "next_x: expected"),
        (lambda x: (x, x, x, StepCoefficients(1.0, -0.1, 0.0)), "decides nothing"),
        (lambda x: (x.clone().requires_grad_(), x, x, cps(0.8, 0.7, 0.7)), "detach it"),
        (lambda x: (x.long(), x, x, cps(0.8, 0.7, 0.7)), "expected float latents"),
    ],
)
def test_what_cannot_be_scored_is_refused(broken, due):
    with pytest.raises(KernelError, match=due):
        sde_step_logprob(*broken(torch.randn(2, 3, 4)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: flow_sde(0.7, 0.8, 0.7, 0.96),
        lambda: dance_sde(1.2, 0.8, 0.7),
        lambda: ddim(1.0, 0.9, 1.0),
        lambda: ddim(0.9, 0.8, 3.0),
        lambda: ddim(0.9, 0.8, 1.0, "velocity"),
    ],
)
def test_steps_that_do_not_exist_are_refused(build):
    with pytest.raises(KernelError):
        build()


def test_a_training_call_costs_what_its_reads_and_writes_are():
    assert cost(2, 1000, itemsize=4, training=False).bytes == 2 * 1000 * (3 * 4 + 4)
    assert cost(2, 1000, itemsize=4).bytes > cost(2, 1000, itemsize=2).bytes
