"""A frozen pipeline as an encoder of noisy latents, of pictures and of videos."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, GenerationError, UnsupportedError
from mmrl.generation import PipelinePolicy
from mmrl.generation.inference import guided_rollout
from mmrl.generation.latent_encoder import LEVEL_WAVES, GeneratorEncoder
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead
from mmrl.rollout_request import RolloutRequest
from mmrl_shapeworld.motion import draw_clip, sample_clip, sample_motion
from mmrl_shapeworld.shipped_models import GENERATORS
from tests.generation import tiny_pipelines

SHAPES = {"sd3": (4, 8, 8), "video": (4, 5, 8, 8)}
LAYERS = {"sd3": ("transformer_blocks.0", "transformer_blocks.1"), "video": ("down_blocks.1", "mid_block")}
SAMPLING = {"sd3": {"pipeline_args": {"max_sequence_length": 1}}, "video": {"num_frames": 5}}
PROMPTS = {"sd3": ["a red circle", "a blue square"], "video": ["a red circle moves left", "a blue square moves up"]}
WIDTH = {"sd3": 2 * 4 * 96, "video": 2 * 4 * 64}


@cache
def encoder_of(name: str) -> GeneratorEncoder:
    return GeneratorEncoder(str(GENERATORS[name]), LAYERS[name], SAMPLING[name], device="cpu")


def latents_of(name: str, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, *SHAPES[name], generator=torch.Generator().manual_seed(3))


@pytest.mark.integration
@pytest.mark.parametrize("name", SHAPES)
def test_features_depend_on_latents_prompt_and_level_of_their_own_row_alone(name):
    encoder, latents = encoder_of(name), latents_of(name)
    found = encoder.features(latents, 0.4, PROMPTS[name])
    assert found.shape == (2, WIDTH[name] + LEVEL_WAVES) and not found.requires_grad
    assert torch.equal(encoder.features(latents, 0.4, PROMPTS[name]), found)
    other = encoder.features(torch.cat([latents[:1], latents[1:] + 1]), 0.4, [PROMPTS[name][0], PROMPTS[name][0]])
    assert torch.allclose(other[0], found[0], atol=1e-4) and not torch.allclose(other[1], found[1], atol=0.1)
    assert not torch.allclose(encoder.features(latents, 0.8, PROMPTS[name]), found, atol=0.1)


@pytest.mark.parametrize("name", SHAPES)
def test_states_of_a_prompt_are_what_the_pipeline_encodes_whatever_the_latents(name):
    encoder, latents = encoder_of(name), latents_of(name)
    found = encoder.prompt_states(latents, PROMPTS[name])
    with torch.no_grad():
        extra = {"num_images_per_prompt": 1, "do_classifier_free_guidance": False, "device": "cpu"}
        prompt = {"prompt": PROMPTS[name]}
        if name == "sd3":
            prompt |= {"prompt_2": None, "prompt_3": None, "max_sequence_length": 1}
        expected = encoder.policy.pipeline.encode_prompt(**prompt, **extra)[0]
    torch.testing.assert_close(found, expected.mean(1), atol=1e-5, rtol=1e-5)
    other = encoder.prompt_states(latents + 1, [PROMPTS[name][1], PROMPTS[name][0]])
    torch.testing.assert_close(other.flip(0), found, atol=1e-5, rtol=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize("name", SHAPES)
def test_a_guided_pipeline_is_refused(name):
    """Its denoiser computes the rows of both halves, which are not those of the prompts."""
    sampling = {**SAMPLING[name], "guidance_scale": 3.0}
    encoder = GeneratorEncoder(str(GENERATORS[name]), LAYERS[name], sampling, device="cpu")
    with pytest.raises(UnsupportedError, match="computes 4 rows for 2 prompts: set encoder"):
        encoder.features(latents_of(name), 0.4, PROMPTS[name])


@pytest.mark.integration
@pytest.mark.parametrize("name", SHAPES)
def test_gradient_of_a_head_against_finite_differences(name):
    encoder = GeneratorEncoder(str(GENERATORS[name]), LAYERS[name], SAMPLING[name], device="cpu").to(torch.float64)
    head = ScoreHead(HeadShape(features=WIDTH[name] + LEVEL_WAVES, axes=2, hidden=8)).double()
    latents, direction = latents_of(name).double(), torch.randn(2, *SHAPES[name], dtype=torch.float64)

    def score(at: torch.Tensor) -> torch.Tensor:
        features = encoder.features(at, 0.6, PROMPTS[name])
        assert features.dtype == torch.float64
        return head(features)[0][:, 1].sum()

    leaf = latents.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score(leaf), leaf)
    step, allowed = (1e-3, 1e-4) if name == "sd3" else (1e-5, 1e-6)  # its norm of queries computes in float32
    with torch.no_grad():
        expected = (score(latents + step * direction) - score(latents - step * direction)) / (2 * step)
    assert (gradient * direction).sum().item() == pytest.approx(expected.item(), rel=allowed)
    assert gradient.abs().sum() > 0


def test_videos_become_the_latents_of_the_pipeline_that_decodes_them():
    """The autoencoder brings an encoded clip back: what is decoded is near to it, and frames keep their order."""
    encoder = encoder_of("video")
    rng = np.random.default_rng(0)
    clips = [draw_clip(sample_clip(sample_motion(rng), rng)) for _ in range(2)]
    clean = encoder.encode(clips)
    assert clean.shape == (2, *SHAPES["video"])
    pipeline = encoder.policy.pipeline
    with torch.no_grad():
        decoded = pipeline.decode_latents(clean)  # [B, 3, F, H, W] in [-1, 1]
    true = torch.stack([torch.stack([torch.tensor(np.array(frame)) for frame in clip]) for clip in clips])
    error = (decoded.permute(0, 2, 3, 4, 1) / 2 + 0.5 - true / 255).abs().mean((2, 3, 4))  # [B, F]
    assert error.max() < 0.03
    with pytest.raises(ValueError, match="videos of one batch have 4 to 5 frames"):
        encoder.encode([clips[0], clips[1][:4]])
    with pytest.raises(
        UnsupportedError, match="videos can be encoded for AnimateDiffPipeline, WanPipeline, WanVACEPipeline only"
    ):
        encoder_of("sd3").encode(clips)
    with pytest.raises(ConfigError, match=r"encoder.layers: name at least one module"):
        GeneratorEncoder(str(GENERATORS["sd3"]), ())


def test_clips_of_wan_are_encoded_as_its_call_decodes_them(make_policy, requests):
    policy = make_policy("wan", transition={"name": "ode"})
    rollout = policy.rollout(requests[:1], seed=3)
    latents = policy.encode(rollout.media)
    assert latents.shape == rollout.clean.shape
    vae = policy.pipeline.vae
    mean, deviation = (torch.tensor(vae.config[each]).view(1, -1, 1, 1, 1) for each in ("latents_mean", "latents_std"))
    pixels = torch.tensor(np.array([[np.array(frame) for frame in clip] for clip in rollout.media])) / 127.5 - 1
    with torch.no_grad():
        expected = vae.encode(pixels.permute(0, 4, 1, 2, 3)).latent_dist.mode()
    torch.testing.assert_close(latents * deviation + mean, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_clips_of_wan_vace_stand_behind_their_references_in_its_loop(tmp_path):
    policy = PipelinePolicy(tiny_pipelines.build("wan_vace"), tiny_pipelines.sampling("wan_vace", steps=2))
    (sample, *_) = tiny_pipelines.samples("wan_vace", tmp_path)
    rollout = policy.rollout([RolloutRequest(sample, 1, 0)], seed=3)
    (clip,), portrait = rollout.media, load_image(sample.conditions["reference_images"])
    encoded = torch.cat([policy.encode([[portrait]]), policy.encode([clip])], dim=2)
    adopted = policy.rollout_from_latents([sample], [0], encoded, [clip])
    assert adopted.clean is encoded and encoded.shape == rollout.clean.shape and encoded.shape[2] == 3
    with torch.no_grad():
        velocity = policy.predict_velocity(adopted, encoded, 0.5)
        torch.testing.assert_close(velocity, policy.predict_velocity(rollout, encoded, 0.5), rtol=1e-4, atol=1e-4)
    with pytest.raises(GenerationError, match=r"the latents are \[1, 16, 2, 2, 2\], the pipeline's own are"):
        policy.rollout_from_latents([sample], [0], policy.encode([clip]), [clip])


class Ramp(LatentReward):
    """The inner product of latents and a fixed direction."""

    name, range, noise = "ramp", (-1e9, 1e9), (0.05, 0.9)

    def __init__(self, direction: torch.Tensor) -> None:
        self.direction, self.levels = direction, []

    def score_batch(self, items):
        raise NotImplementedError

    def score_latents(self, latents, sigma, batch):
        self.levels.append(sigma)
        assert latents.shape[1:] == self.direction.shape and len(latents) == len(batch)
        return (latents * self.direction).flatten(1).sum(1)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", pytest.param("video", marks=pytest.mark.slow)])
def test_a_reward_of_noisy_latents_guides_every_step_that_it_knows(name):
    from mmrl.config.sampling import SamplingConfig

    settings = SamplingConfig.model_validate({"steps": 6, "guidance_scale": 1.0, **SAMPLING[name]})
    policy = PipelinePolicy.from_config(encoder_of(name).policy.config, settings)
    requests = [RolloutRequest(Sample(str(row), prompt=prompt), 1, row) for row, prompt in enumerate(PROMPTS[name])]
    with policy.keep_latents(), torch.no_grad():
        plain = policy.rollout(requests, seed=5)
    direction = torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(1))
    still = guided_rollout(policy, requests, 5, [(Ramp(direction), 0.0)])
    assert torch.allclose(still.clean, plain.clean, atol=1e-5)
    reward = Ramp(direction)
    guided = [guided_rollout(policy, requests, 5, [(reward, weight)]).clean for weight in (0.05, 0.1)]
    along = [(clean - plain.clean).flatten(1) @ direction.flatten() for clean in guided]
    assert (along[0] > 0).all() and (along[1] > along[0]).all()
    assert 0 < max(reward.levels) <= 0.9 and len(reward.levels) < 2 * 6
