"""`policy.scheduler`: a pipeline that ships with a sampler that cannot be trained through gets another."""

from __future__ import annotations

import pytest
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler, PNDMScheduler

from mmrl.config.policy import PolicyConfig
from mmrl.errors import ConfigError
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.generation.diffusion.scheduler_families import convert_scheduler, scheduler_class
from tests.generation import tiny_pipelines as tiny


@pytest.mark.integration
def test_chosen_scheduler_keeps_the_settings_of_the_pipeline(tmp_path):
    pipeline = tiny.build("sd15")
    pipeline.scheduler = PNDMScheduler(beta_start=0.003, steps_offset=1, skip_prk_steps=True)
    pipeline.save_pretrained(tmp_path)
    sampling = tiny.sampling("sd15")
    with pytest.raises(UnsupportedError, match="PNDMScheduler cannot be trained through"):
        PipelinePolicy.from_config(PolicyConfig(model=str(tmp_path)), sampling)
    policy = PipelinePolicy.from_config(PolicyConfig(model=str(tmp_path), scheduler="DDIMScheduler"), sampling)
    assert type(policy.pipeline.scheduler) is DDIMScheduler
    assert policy.pipeline.scheduler.config.beta_start == 0.003
    assert policy.pipeline.scheduler.config.steps_offset == 1


@pytest.mark.parametrize(
    "name, message",
    [
        ("DDIM", "did you mean DDIMScheduler?"),
        ("DDIMSheduler", "did you mean DDIMScheduler?"),
        ("UNet2DModel", "UNet2DModel is no scheduler of diffusers"),
        ("SchedulerMixin", "SchedulerMixin is no scheduler of diffusers"),
    ],
)
def test_unknown_schedulers_raise_before_loading_a_model(name, message):
    with pytest.raises(ConfigError) as caught:
        scheduler_class(name)
    assert message in str(caught.value)
    with pytest.raises(ConfigError):
        PipelinePolicy.from_config(PolicyConfig(model="no-such-owner/nothing", scheduler=name), tiny.sampling("sd15"))


def test_clipping_is_not_inherited_from_defaults():
    old = DPMSolverMultistepScheduler()
    assert DDIMScheduler.from_config(old.config).config.clip_sample  # what would ruin latents
    assert not convert_scheduler(old, "DDIMScheduler").config.clip_sample
    assert convert_scheduler(DDPMScheduler(clip_sample=True), "DDIMScheduler").config.clip_sample
