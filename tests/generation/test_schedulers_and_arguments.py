"""Unsupported schedulers and arguments raise before training, and an intercepted scheduler keeps its interface."""

from __future__ import annotations

import inspect
import subprocess
import sys

import diffusers
import pytest

import mmrl.generation
from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.generation.diffusion.call_arguments import call_arguments
from mmrl.generation.diffusion.scheduler_families import FlowFamily, unsupported_reason
from mmrl.generation.diffusion.scheduler_hook import intercept_scheduler
from mmrl.generation.diffusion.support import refused_reason
from mmrl.rollout_request import RolloutRequest, RowStart
from tests.generation import tiny_pipelines as tiny


@pytest.mark.parametrize(
    ("scheduler", "settings", "reason"),
    [
        ("PNDMScheduler", {}, "family is not covered.*policy.scheduler=DDIMScheduler"),
        ("FlowMatchHeunDiscreteScheduler", {}, "family is not covered"),
        ("DPMSolverMultistepScheduler", {"prediction_type": "flow_prediction"}, "use_flow_sigmas is off"),
        ("UniPCMultistepScheduler", {"rescale_betas_zero_snr": True}, "no ratio of noise to signal"),
        ("DDPMScheduler", {"variance_type": "learned_range"}, "its variance is learned"),
        ("HeliosScheduler", {"stages": 3}, "sample new noise between resolutions"),
        ("FlowMatchEulerDiscreteScheduler", {"stochastic_sampling": True}, "sample noise in its step"),
        (
            "DPMSolverMultistepScheduler",
            {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "algorithm_type": "sde-dpmsolver++"},
            "sample noise in its step",
        ),
        ("DDIMScheduler", {"thresholding": True}, "couples the pixels"),
    ],
)
def test_unsupported_schedulers_raise_by_name(scheduler, settings, reason):
    pipeline = tiny.build("sd3")
    pipeline.scheduler = getattr(diffusers, scheduler)(**settings)
    with pytest.raises(UnsupportedError, match=f"{scheduler} cannot be trained through: .*{reason}"):
        PipelinePolicy(pipeline, tiny.sampling("sd3"))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers' own, under NumPy 2
def test_dpm_solver_on_flows_is_supported(requests):
    pipeline = tiny.build("wan")
    pipeline.scheduler = diffusers.DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    assert unsupported_reason(pipeline.scheduler) is None
    policy = PipelinePolicy(pipeline, tiny.sampling("wan"))
    rollout = policy.rollout(requests, seed=3)
    assert rollout.log_probs.shape == (3, 5) and policy.replay_gap(rollout) == 0


@pytest.mark.parametrize(("name", "transition", "family"), [("sd3", "ddim", "flow"), ("sd15", "flow_sde", "vp")])
def test_transitions_of_another_family_raise(name, transition, family):
    with pytest.raises(ConfigError, match=f"{transition} does not fit .* {family} family"):
        PipelinePolicy(tiny.build(name), tiny.sampling(name, transition={"name": transition}))


@pytest.mark.parametrize("name", ["sd3", "wan", "sd15"])
def test_hooked_scheduler_keeps_its_class_and_signatures(name, tmp_path):
    class Nobody:
        def on_schedule(self, scheduler, family):
            """Nothing."""

    scheduler = tiny.build(name).scheduler
    kind = type(scheduler)
    with intercept_scheduler(scheduler, Nobody()):
        assert isinstance(scheduler, kind) and type(scheduler).__name__ == kind.__name__
        for method in ("step", "set_timesteps"):
            assert inspect.signature(getattr(scheduler, method)) == inspect.signature(getattr(kind(), method))
        scheduler.save_pretrained(tmp_path)
    assert type(scheduler) is kind
    loaded = kind.from_pretrained(tmp_path)
    assert {name: loaded.config[name] for name in scheduler.config if name[0] != "_"} == {
        name: value for name, value in scheduler.config.items() if name[0] != "_"
    }


def test_ddim_noise_levels_follow_its_schedule():
    scheduler = tiny.build("sd15").scheduler
    scheduler.set_timesteps(5)
    levels = mmrl.generation.diffusion.scheduler_families.VPFamily().levels(scheduler)
    assert [sigma_next for _, sigma_next in levels[:-1]] == pytest.approx([sigma for sigma, _ in levels[1:]])
    assert 0 < levels[-1][1] < 0.05  # set_alpha_to_one is off, as in Stable Diffusion


def test_schedule_can_be_pinned_at_one_level():
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(10)
    sigmas = scheduler.sigmas.tolist()
    assert FlowFamily().set_constant_sigma(scheduler, 0.5) == min(range(10), key=lambda step: abs(sigmas[step] - 0.5))
    assert scheduler.timesteps.tolist() == [500.0] * 10  # not shifted again
    assert scheduler.sigmas.tolist() == [0.5] * 11


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"pipeline_args": {"max_sequence_lenght": 4}},
            "of StableDiffusion3Pipeline: did you mean max_sequence_length",
        ),
        ({"pipeline_args": {"zzz": 4}}, "zzz is not an argument of StableDiffusion3Pipeline$"),
        ({"pipeline_args": {"self": 4}}, "is not an argument"),
        ({"pipeline_args": {"num_inference_steps": 4}}, "set sampling.steps instead"),
        ({"pipeline_args": {"generator": 4}}, "seeds are the run's"),
        ({"num_frames": 5}, "sampling.num_frames: StableDiffusion3Pipeline takes no num_frames"),
    ],
)
def test_call_arguments_are_checked_against_the_signature(changes, message):
    pipeline = tiny.build("sd3")
    with pytest.raises(ConfigError, match=message):
        PipelinePolicy(pipeline, tiny.sampling("sd3", **changes))


def test_classes_whose_signature_or_name_is_refused_are_no_policies():
    class Doubled(diffusers.TextToVideoSDPipeline):
        pass

    class Labelled(diffusers.DiTPipeline):  # of a user, who may have given it prompts
        pass

    assert refused_reason(diffusers.DiTPipeline) == "it takes neither a prompt nor images"
    assert "every frame as a separate row" in refused_reason(diffusers.TextToVideoSDPipeline) == refused_reason(Doubled)
    assert refused_reason(Labelled) is None is refused_reason(diffusers.StableDiffusion3Pipeline)
    tiny_dit = diffusers.DiTPipeline(
        diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, num_layers=1, sample_size=8),
        diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4),
        diffusers.DDIMScheduler(),
    )
    with pytest.raises(UnsupportedError, match="DiTPipeline cannot be a policy: it takes neither a prompt nor images"):
        PipelinePolicy(tiny_dit, SamplingConfig(transition={"name": "ddim"}))


def test_call_arguments_of_a_request():
    pipeline, sampling = tiny.build("qwen_image"), tiny.sampling("qwen_image")
    arguments = call_arguments(pipeline, sampling, [Sample(prompt, prompt=prompt) for prompt in ("one", "two")])
    assert arguments == {
        "num_inference_steps": 6,
        "height": 32,
        "width": 32,
        "negative_prompt": ["blurry", "blurry"],
        "true_cfg_scale": 3.0,
        "prompt": ["one", "two"],
        "output_type": "pil",
    }


def test_incompatible_requests_raise(make_policy):
    policy = make_policy("sd3")
    request = RolloutRequest(Sample("0", prompt="a red circle"), n=1, group=0)
    other = tiny.sampling("sd3", steps=3)
    with pytest.raises(ValueError, match="share their sampling"):
        policy.rollout([request, RolloutRequest(request.sample, 1, 0, sampling=other)], seed=0)
    with pytest.raises(ValueError, match="cannot start differently"):
        policy.rollout([RolloutRequest(request.sample, 1, 0, start=RowStart(prefix="forced"))], seed=0)
    for requests in ([], [RolloutRequest(request.sample, 0, 0)]):
        with pytest.raises(ValueError, match="needs requests"):
            policy.rollout(requests, seed=0)
    assert policy.rollout([RolloutRequest(request.sample, 1, 0, sampling=other)], seed=0).log_probs.shape == (1, 2)


def test_importing_generation_loads_no_model_library():
    code = "import sys, mmrl.generation; sys.exit('torch' in sys.modules or 'diffusers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert sorted(mmrl.generation.__all__) == mmrl.generation.__all__
    assert all(hasattr(mmrl.generation, name) for name in mmrl.generation.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mmrl.generation.Nothing
