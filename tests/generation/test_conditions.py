"""Pictures and other conditions reach the pipeline by the names of its arguments, or are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.errors import CallRefused, ConfigError, DataError
from mmrl.generation import PipelinePolicy
from mmrl.generation.diffusion.call_arguments import call_arguments, check_samples
from mmrl.rollout_request import RolloutRequest
from tests.generation import tiny_pipelines as tiny
from tests.generation.tiny_pipelines.files import picture


def edit(tmp_path, id="0", **conditions):
    path = picture(tmp_path / "a", (16, 16), seed=1)
    return Sample(id, prompt="a red circle", conditions={"image": str(path), **conditions})


def test_calls_with_one_prompt_and_several_outputs(tmp_path):
    pipeline, sampling = (
        tiny.build("flux_img2img"),
        tiny.sampling("flux_img2img", negative_prompt="blurry"),
    )
    arguments = call_arguments(pipeline, sampling, [edit(tmp_path, strength=0.5)] * 3)
    assert arguments["prompt"] == ["a red circle"] and arguments["negative_prompt"] == ["blurry"]
    assert arguments["num_images_per_prompt"] == 3 and arguments["strength"] == 0.5
    assert arguments["image"].size == (16, 16) and arguments["image"].mode == "RGB"


def test_calls_repeat_images_per_row_where_the_pipeline_indexes_them(tmp_path):
    pipeline, sampling = tiny.build("sd3_img2img"), tiny.sampling("sd3_img2img")
    arguments = call_arguments(pipeline, sampling, [edit(tmp_path)] * 3)
    assert len(arguments["prompt"]) == len(arguments["image"]) == 3 and "num_images_per_prompt" not in arguments


def test_samples_with_images_are_not_batched_together(tmp_path):
    policy = PipelinePolicy(tiny.build("flux_img2img"), tiny.sampling("flux_img2img"))
    requests = [RolloutRequest(edit(tmp_path, id), n=1, group=0) for id in "ab"]
    with pytest.raises(ValueError, match="need a separate call each"):
        policy.rollout(requests, seed=0)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd15_pix2pix", "sdxl_pix2pix"])
def test_rows_of_several_samples_are_those_of_separate_calls(tmp_path, name):
    policy = PipelinePolicy(tiny.build(name), tiny.sampling(name))
    samples = tiny.samples(name, tmp_path)
    assert samples[0].conditions["image"] != samples[1].conditions["image"]
    together = policy.rollout([RolloutRequest(each, n=1, group=n) for n, each in enumerate(samples)], seed=3)
    for row, sample in enumerate(samples):
        alone = policy.rollout([RolloutRequest(sample, n=2, group=0)], seed=3)  # rows have noise by their place
        torch.testing.assert_close(together.clean[row], alone.clean[row], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(together.clean[0], together.clean[1])
    assert policy.replay_gap(together) == 0.0
    differing = [
        replace(each, conditions={**each.conditions, "image_guidance_scale": scale})
        for each, scale in zip(samples, (1.5, 3.0), strict=True)
    ]
    with pytest.raises(ValueError, match="differ in image_guidance_scale need a separate call"):
        policy.rollout([RolloutRequest(each, n=1, group=0) for each in differing], seed=0)


def test_a_pipeline_that_refuses_its_arguments_is_named_with_what_it_takes():
    policy = PipelinePolicy(tiny.build("sd15_pix2pix"), tiny.sampling("sd15_pix2pix"))
    message = r"InstructPix2PixPipeline refuses the arguments .*: `image` input .* It takes .*: image, .* give none"
    with pytest.raises(CallRefused, match=message):
        policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=1, group=0)], seed=0)
    policy = PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3", height=21))
    with pytest.raises(CallRefused, match=r"3Pipeline refuses .*: `height`.* divisible by (?!.*It takes)"):
        policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=1, group=0)], seed=0)


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"imag": "a.png"}, "sample '0': 'imag' is not an argument of FluxImg2ImgPipeline: did you mean image"),
        (
            {"image": "a.png", "guidance_scale": 9},
            "guidance_scale is the run's: set sampling.guidance_scale",
        ),
        ({"image": "a.png", "latents": 3}, "sample '0': latents: initial noise comes from the run's seed"),
    ],
)
def test_unsupported_conditions_raise(conditions, message):
    with pytest.raises(ConfigError, match=message):
        check_samples(tiny.build("flux_img2img"), [Sample("0", prompt="x", conditions=conditions)])


def test_samples_must_have_equal_required_conditions(tmp_path):
    with pytest.raises(ConfigError, match="sample '0' gives no image, which StableDiffusionImageVariationPipeline"):
        check_samples(tiny.build("sd_variations"), [Sample("0", prompt="x")])
    with pytest.raises(ConfigError, match="sample '1' gives strength, and sample '0' does not"):
        check_samples(tiny.build("flux_img2img"), [edit(tmp_path, "0"), edit(tmp_path, "1", strength=0.5)])


def test_unreadable_images_raise_with_their_name(tmp_path):
    broken = tmp_path / "b.png"
    broken.write_bytes(b"no picture")
    policy = PipelinePolicy(tiny.build("flux_img2img"), tiny.sampling("flux_img2img"))
    sample = Sample("7", prompt="x", conditions={"image": str(broken)})
    with pytest.raises(DataError, match=r"b\.png: .*sample '7'"):
        policy.rollout([RolloutRequest(sample, n=1, group=0)], seed=0)
