"""Zigzag sampling: first steps that are taken, undone with weaker guidance, and taken again."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.sampling import ZigzagConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.zigzag import ZigzagSteps
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import row_generators

PROMPT = "a red circle"


def rows(n: int) -> list[RolloutRequest]:
    """n rows of one prompt, of one group."""
    return [RolloutRequest(Sample("0", prompt=PROMPT), n=n, group=0)]


@pytest.mark.parametrize("steps, twice", [(2, 1), (5, 1), (6, 3), (8, 7)])
def test_longer_loop_takes_each_step_once_for_good(steps, twice):
    zigzag = ZigzagSteps(ZigzagConfig(steps=twice))
    levels = zigzag.levels(steps)
    assert len(levels) == steps + 1 + zigzag.extra
    visited = [levels[zigzag.place(step) :][:2] for step in range(steps)]
    assert visited == [[step, step + 1] for step in range(steps)]
    loop = range(len(levels) - 1)
    assert [step for step in loop if not zigzag.is_detour(step)] == [zigzag.place(step) for step in range(steps)]
    undone = [step for step in loop if zigzag.undoes(step)]
    assert undone == [step for step in loop if levels[step] > levels[step + 1]] and len(undone) == twice
    assert all(levels[step - 1 : step + 2] == [number, number + 1, number] for number, step in enumerate(undone))


@torch.no_grad()
def test_first_step_is_undone_with_weaker_guidance(make_policy):
    """Against the denoiser itself, called by hand at every level."""
    options = {"steps": 4, "guidance_scale": 4.0, "transition": {"name": "ode"}}
    policy = make_policy("sd3", zigzag={"steps": 2, "guidance_scale": 1.5}, **options)
    rollout = policy.rollout(rows(1), seed=3)
    pipeline = policy.pipeline
    embeds, negative, pooled, negative_pooled = pipeline.encode_prompt(
        PROMPT, None, None, **{k: v for k, v in rollout.recording.arguments.items() if k == "max_sequence_length"}
    )
    pipeline.scheduler.set_timesteps(4)
    sigmas, timesteps = pipeline.scheduler.sigmas, pipeline.scheduler.timesteps

    def move(x, start, end, scale):
        without, to = pipeline.transformer(
            hidden_states=torch.cat([x, x]),
            timestep=timesteps[start].expand(2),
            encoder_hidden_states=torch.cat([negative, embeds]),
            pooled_projections=torch.cat([negative_pooled, pooled]),
            return_dict=False,
        )[0].chunk(2)
        return x + (sigmas[end] - sigmas[start]) * (without + scale * (to - without))

    x = torch.randn(rollout.clean.shape, generator=row_generators(3, [0], "cpu")[0])
    for step in range(4):
        if step < 2:
            x = move(move(x, step, step + 1, 4.0), step + 1, step, 1.5)
        x = move(x, step, step + 1, 4.0)
    torch.testing.assert_close(rollout.clean, x, atol=1e-5, rtol=1e-5)
    plain = make_policy("sd3", **options).rollout(rows(1), seed=3)
    assert (rollout.clean - plain.clean).abs().max() > 1e-3


PAIRS = {"steps": 4, "guidance_scale": 4.0, "branch": {"at": (0,)}}


@pytest.fixture
def pairs(make_policy):
    """A policy whose second row of each pair takes its first step twice, and a rollout of two pairs."""
    policy = make_policy("sd3", train="full", zigzag={"rows": "alternate"}, **PAIRS)
    return policy, policy.rollout(rows(4), seed=5)


def test_neighbours_are_a_plain_and_a_refined_row_from_the_same_noise(pairs, make_policy):
    _, rollout = pairs
    plain = make_policy("sd3", train="full", **PAIRS).rollout(rows(4), seed=5)
    for row, same in enumerate((True, False, True, False)):
        alike = torch.allclose(rollout.clean[row], plain.clean[row], atol=1e-5)
        assert alike is same
        assert torch.allclose(rollout.log_probs[row, 0], plain.log_probs[row, 0], atol=1e-5)  # of equal noise
    assert rollout.log_probs.shape == plain.log_probs.shape == (4, 3)
    begun = rollout.recording.next_latents[1][0]  # what the first decision starts from
    noise = torch.randn(begun[0].shape, generator=row_generators(5, [0], "cpu")[0])
    assert begun[0].equal(noise) and not torch.allclose(begun[1], noise, atol=1e-3)


def test_refined_rows_replay_exactly_and_every_decision_moves_the_policy(pairs):
    policy, rollout = pairs
    assert policy.replay_gap(rollout) == 0
    for decision in range(3):
        norms = []

        def visit(outputs, norms=norms):
            policy.pipeline.transformer.zero_grad()
            outputs.log_probs[1].sum().backward()  # a refined row
            norms.append(sum(float(each.grad.norm()) for each in policy.parameters_to_train().values()
                             if each.grad is not None))  # fmt: skip

        policy.replay(rollout, [decision], visit)
        assert norms[0] > 0
    with torch.no_grad():
        next(iter(policy.parameters_to_train().values())).add_(0.1)
    assert policy.replay_gap(rollout) > 0


def test_scale_of_guidance_is_that_of_the_sampler_again(make_policy):
    """A pipeline that is called without a zigzag afterwards draws as ever."""
    policy = make_policy("sd3", zigzag={"steps": 3}, **PAIRS)
    policy.rollout(rows(2), seed=1)
    assert policy.pipeline.guidance_scale == 4.0


def test_zigzags_work_with_guided_solvers_of_noise_models(make_policy):
    policy = make_policy("sd15", steps=4, guidance_scale=3.0, transition={"name": "ddim"}, zigzag={})
    with pytest.raises(UnsupportedError, match=r"steps of DDIMScheduler cannot be undone: set policy\.scheduler"):
        policy.rollout(rows(2), seed=0)
    from mmrl.generation.diffusion.scheduler_families import convert_scheduler

    policy.pipeline.scheduler = convert_scheduler(policy.pipeline.scheduler, "DPMSolverMultistepScheduler")
    rollout = policy.rollout(rows(2), seed=0)
    assert rollout.log_probs.shape == (2, 3) and policy.replay_gap(rollout) == 0


def test_zigzags_without_effect_raise(make_policy):
    too_many = make_policy("sd3", steps=3, guidance_scale=4.0, zigzag={"steps": 3})
    with pytest.raises(ConfigError, match=r"sampling\.zigzag\.steps: 3 of the sampler's 3 steps"):
        too_many.rollout(rows(2), seed=0)
    as_strong = make_policy("sd3", steps=3, guidance_scale=2.0, zigzag={"guidance_scale": 2.0})
    with pytest.raises(ConfigError, match=r"sampling\.zigzag\.guidance_scale: 2\.0 is no weaker than the 2\.0"):
        as_strong.rollout(rows(2), seed=0)
    policy = make_policy("sd3", steps=3, guidance_scale=2.0, transition={"name": "ode"}, zigzag={})
    with policy.keep_latents(), pytest.raises(UnsupportedError, match="cannot be differentiated through"):
        policy.rollout(rows(2), seed=0)
