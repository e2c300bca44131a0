"""RL guidance and the strength of a LoRA: exact at both ends, and what the formulas say between and beyond them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmrl.config import ConfigError
from mmrl.generation.inference import extrapolate_outputs, lora_strength, rl_guidance
from tests.generation import tiny_pipelines as tiny

PROMPT = "a red circle"


def learn(policy, seed=0, by=0.05):
    """As if trained: every parameter moved."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter += by * torch.randn(parameter.shape, generator=generator)


def draw(pipeline) -> Tensor:
    """[1, ...] latents of a plain call of the pipeline."""
    generator = torch.Generator().manual_seed(1)
    arguments = {"num_inference_steps": 2, "height": 32, "width": 32, "output_type": "latent"}
    return pipeline(PROMPT, generator=generator, **arguments)[0]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "train"), [("sd3", "lora"), ("sd3", "full"), ("sd15", "lora")])
def test_guidance_scales_0_and_1_equal_base_and_trained_model(name, train, make_policy):
    before = draw(tiny.build(name))
    policy = make_policy(name, train)
    learn(policy)
    after = draw(policy.pipeline)
    assert not torch.equal(before, after)
    with rl_guidance(policy.pipeline, 0.0, policy.reference):
        assert torch.equal(draw(policy.pipeline), before)
    with rl_guidance(policy.pipeline, 1.0, policy.reference):
        assert torch.equal(draw(policy.pipeline), after)
    with rl_guidance(policy.pipeline, 1.5, policy.reference):
        beyond = draw(policy.pipeline)
    assert not torch.equal(beyond, after) and beyond.isfinite().all()
    assert torch.equal(draw(policy.pipeline), after)
    assert "forward" not in vars(next(iter(policy._denoisers.values())))


@pytest.mark.integration
def test_guidance_interpolates_linearly_between_both_models(make_policy):
    """By hand: the two answers to equal latents, extrapolated in float64."""
    policy = make_policy("sd3")
    learn(policy)
    transformer, seen = policy.pipeline.transformer, []
    with rl_guidance(policy.pipeline, 1.7):  # the base is the model without its LoRA
        inside = transformer.forward

        def watch(*args, **kwargs):
            answer = inside(*args, **kwargs)
            seen.append((args, kwargs, answer[0]))
            return answer

        vars(transformer)["forward"] = watch
        draw(policy.pipeline)
    with torch.no_grad():
        for args, kwargs, answer in seen:
            after = transformer(*args, **kwargs)[0].double()
            with policy.reference():
                before = transformer(*args, **kwargs)[0].double()
            torch.testing.assert_close(answer.double(), before + 1.7 * (after - before), atol=1e-6, rtol=1e-5)
    assert len(seen) == 2


@pytest.mark.integration
def test_guidance_base_may_be_another_pipeline():
    base, tuned = tiny.build("sd3", seed=0), tiny.build("sd3", seed=1)
    before, after = draw(base), draw(tuned)
    for scale, expected in ((0.0, before), (1.0, after)):
        with rl_guidance(tuned, scale, base):
            # the text encoders stay the tuned pipeline's own, so only the denoiser's part can be the base's
            drawn = draw(tuned)
        assert torch.equal(drawn, expected) == (scale == 1.0)
    with (
        pytest.raises(ConfigError, match="in only one of the two pipelines"),
        rl_guidance(tuned, 0.5, tiny.build("sd15")),
    ):
        pass


def test_guided_outputs_keep_structure_and_dtype():
    base = {"sample": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "more": (torch.tensor([3]), "text")}
    tuned = {"sample": torch.tensor([2.0, 4.0], dtype=torch.bfloat16), "more": (torch.tensor([5]), "text")}
    mixed = extrapolate_outputs(base, tuned, 2.0)
    assert mixed["sample"].tolist() == [3.0, 6.0] and mixed["sample"].dtype == torch.bfloat16
    assert mixed["more"][0].tolist() == [5] and mixed["more"][1] == "text"  # whole numbers are the trained model's


@pytest.mark.integration
def test_lora_strength_is_exact_at_0_and_1_and_scales_linearly(make_policy):
    before = draw(tiny.build("sd3"))
    policy = make_policy("sd3")
    learn(policy)
    after = draw(policy.pipeline)
    for strength, expected in ((0.0, before), (1.0, after)):
        with lora_strength(policy.pipeline, strength):
            assert torch.equal(draw(policy.pipeline), expected)
    with lora_strength(policy.pipeline, 0.7):
        weaker = draw(policy.pipeline)
    assert torch.equal(draw(policy.pipeline), after)
    with torch.no_grad():  # the oracle: 0.7 in the weights themselves
        for name, parameter in policy.parameters_to_train().items():
            parameter *= 0.7 if "lora_B" in name else 1.0
    torch.testing.assert_close(weaker, draw(policy.pipeline), atol=1e-5, rtol=1e-5)


def test_guidance_without_a_lora_raises(make_policy):
    pipeline = tiny.build("sd3")
    with pytest.raises(ConfigError, match="load a LoRA, or pass the base"), rl_guidance(pipeline, 0.5):
        pass
    with pytest.raises(ConfigError, match="no LoRA whose strength"), lora_strength(pipeline, 0.5):
        pass
