"""Guidance by two prompts: Parrot's sum of three predictions by hand, both ends, and what is refused."""

from __future__ import annotations

import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.prompt_mixture import mix_pairs, mixed_predictions
from mmrl.rollout_request import PromptMixture, RolloutRequest
from mmrl.seeds import row_generators

ORIGINAL, EXPANDED = "a red circle", "a blue circle and a blue square"
ODE = {"name": "ode"}


def requests(share: float | None, prompts=(EXPANDED,), n: int = 1) -> list[RolloutRequest]:
    """n rows of each prompt, guided by the original one too unless `share` is None."""
    mixture = None if share is None else PromptMixture(ORIGINAL, share)
    return [
        RolloutRequest(Sample(str(group), prompt=prompt), n=n, group=group, mixture=mixture)
        for group, prompt in enumerate(prompts)
    ]


@torch.no_grad()
@pytest.mark.parametrize(("own", "expanded"), [(1.5, 2.5), (0.5, 3.0)])
def test_each_step_follows_the_sum_of_three_predictions(make_policy, own, expanded):
    """By hand: (1 - w1 - w2) e(empty) + w1 e(original) + w2 e(expanded), of the denoiser itself."""
    policy = make_policy("sd3", steps=3, guidance_scale=own + expanded, transition=ODE)
    rollout = policy.rollout(requests(own / (own + expanded)), seed=3)
    pipeline = policy.pipeline
    length = policy.sampling.pipeline_args.get("max_sequence_length", 256)
    found = [pipeline.encode_prompt(text, None, None, max_sequence_length=length) for text in (ORIGINAL, EXPANDED)]
    (first, empty, first_pooled, empty_pooled), (second, _, second_pooled, _) = found
    pipeline.scheduler.set_timesteps(3)
    sigmas, timesteps = pipeline.scheduler.sigmas, pipeline.scheduler.timesteps
    x = torch.randn(rollout.clean.shape, generator=row_generators(3, [0], "cpu")[0])
    for step in range(3):
        without, original, full = pipeline.transformer(
            hidden_states=x.repeat(3, 1, 1, 1),
            timestep=timesteps[step].expand(3),
            encoder_hidden_states=torch.cat([empty, first, second]),
            pooled_projections=torch.cat([empty_pooled, first_pooled, second_pooled]),
            return_dict=False,
        )[0].chunk(3)
        velocity = (1 - own - expanded) * without + own * original + expanded * full
        x = x + (sigmas[step + 1] - sigmas[step]) * velocity
    torch.testing.assert_close(rollout.clean, x, atol=1e-4, rtol=1e-3)


@pytest.mark.integration
@torch.no_grad()
@pytest.mark.parametrize("name", ["sd3", "sd15"])
def test_at_both_ends_one_prompt_alone_is_followed(name, make_policy):
    policy = make_policy(name, steps=3, guidance_scale=3.0, transition=ODE)
    plain = policy.rollout(requests(None, n=2), seed=5).clean
    original = policy.rollout(requests(None, (ORIGINAL,), n=2), seed=5).clean
    ends = [policy.rollout(requests(share, n=2), seed=5) for share in (0.0, 1.0, 0.5)]
    for found, expected in zip(ends, (plain, original), strict=False):
        torch.testing.assert_close(found.clean, expected, atol=1e-4, rtol=1e-3)
    assert (ends[2].clean - plain).abs().max() > 1e-3 < (ends[2].clean - original).abs().max()
    assert not torch.equal(plain[0], plain[1])
    assert "forward" not in vars(next(iter(policy.denoisers.values())))


@torch.no_grad()
def test_rows_are_those_of_the_samples_in_order(make_policy):
    policy = make_policy("sd3", steps=2, guidance_scale=1.0, transition=ODE)
    prompts = (EXPANDED, "two green squares", ORIGINAL)
    both = policy.rollout(requests(0.25, prompts, n=2), seed=7)
    assert [sample.prompt for sample in both.samples] == [prompt for prompt in prompts for _ in range(2)]
    assert both.group_index.tolist() == [0, 0, 1, 1, 2, 2] and len(both.media) == 6 == len(both.clean)
    alone = policy.rollout(requests(None, prompts, n=2), seed=7)
    torch.testing.assert_close(both.clean[4:], alone.clean[4:], atol=1e-4, rtol=1e-3)  # both prompts are the same
    assert (both.clean[:4] - alone.clean[:4]).abs().amax((1, 2, 3)).min() > 1e-3


def test_pairs_are_mixed_in_float32_and_stay_equal():
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(6, 3, 2, generator=generator, dtype=torch.float64).to(torch.bfloat16)
    mixed = mix_pairs(output, 0.3)
    assert mixed.dtype == torch.bfloat16 and torch.equal(mixed[::2], mixed[1::2])
    expected = 0.7 * output[::2].double() + 0.3 * output[1::2].double()
    torch.testing.assert_close(mixed[::2].double(), expected, atol=1e-2, rtol=1e-2)


def test_rollouts_that_are_learnt_from_and_unequal_shares_are_refused(make_policy):
    policy = make_policy("sd3", steps=3)
    with pytest.raises(UnsupportedError, match="pictures that are learnt from follow the prompt of their sample"):
        policy.rollout(requests(0.5), seed=0)
    mixed, plain = requests(0.5, (EXPANDED, ORIGINAL)), requests(None, (EXPANDED, ORIGINAL))
    with pytest.raises(ValueError, match="must share the share"):
        policy.rollout([mixed[0], plain[1]], seed=0)


def test_outputs_that_are_no_rows_are_refused():
    layer = torch.nn.Linear(2, 3)
    with mixed_predictions({"denoiser": layer}, 0.5, rows=4):
        assert torch.equal(layer(torch.arange(16.0).reshape(8, 2))[::2], layer(torch.arange(16.0).reshape(8, 2))[1::2])
        with pytest.raises(UnsupportedError, match=r"a denoiser gave \[3, 3\] for 4 rows"):
            layer(torch.ones(3, 2))
    two = torch.nn.LSTM(2, 3)
    with mixed_predictions({"denoiser": two}, 0.5, rows=2), pytest.raises(UnsupportedError, match="one tensor of rows"):
        two(torch.ones(4, 2, 2))
