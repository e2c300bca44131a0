"""A replay repeats its rollout exactly, with gradients, for every class of pipeline."""

from __future__ import annotations

import weakref

import pytest
import torch

from mmrl.generation import GenerationError, ReplayError
from mmrl.generation.diffusion.replay_cache import CachedCall
from tests.generation.pipeline_checks import EVERY, EXACT, assert_untouched, count_denoiser_calls, plain_arguments


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("name", EVERY)
def test_replay_is_exact_and_trains(name, train, make_policy, requests):
    policy = make_policy(name, train)
    rollout = policy.rollout(requests, seed=3)
    step_indices = range(rollout.log_probs.shape[1])
    seen = []

    def visit(now):
        assert now.log_probs.requires_grad and now.log_probs.dtype == torch.float32
        assert now.mean.shape == now.velocity.shape == (3, 1, *rollout.clean.shape[1:])
        assert now.std.shape == (3, 1) and (now.std > 0).all()
        seen.append((now.step_indices, now.log_probs.detach()))
        now.log_probs.sum().backward()

    policy.replay(rollout, step_indices, visit)
    assert [each for each, _ in seen] == [(column,) for column in step_indices] and len(step_indices) == 5
    replayed = torch.cat([log_probs for _, log_probs in seen], dim=1)
    assert (replayed - rollout.log_probs).abs().max() <= EXACT
    gradients = {path: parameter.grad for path, parameter in policy.parameters_to_train().items()}
    reached = [gradient for gradient in gradients.values() if gradient is not None]
    assert all(gradient.isfinite().all() for gradient in reached)
    # The text stream of a last joint block leads nowhere, in Qwen-Image as in the pipeline itself.
    assert len(reached) >= 0.9 * len(gradients)
    assert sum(gradient.abs().sum() for gradient in reached) > 0
    assert {path.split(".")[0] for path in gradients} == set(policy._denoisers)


@pytest.mark.parametrize("name", EVERY)
def test_rollout_has_one_row_per_trajectory(name, make_policy, requests):
    policy = make_policy(name)
    policy.version = 4
    rollout = policy.rollout(requests, seed=3)
    assert [sample.id for sample in rollout.samples] == ["0", "0", "1"]
    assert rollout.group_index.tolist() == [0, 0, 7]
    assert rollout.mask.all() and rollout.policy_version == 4
    assert rollout.mask.shape == rollout.channel.shape == rollout.log_probs.shape == (3, 5)
    assert len(rollout.media) == len(rollout.clean) == 3
    frames = rollout.media[0] if name.startswith("wan") else [rollout.media[0]]
    assert len(frames) == (5 if name.startswith("wan") else 1)
    assert frames[0].size in {(16, 16), (32, 32)}


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "qwen_image", "wan22"])
def test_replay_computes_requested_decisions_only(name, make_policy, requests):
    policy = make_policy(name)
    rollout = policy.rollout(requests, seed=3)
    calls = count_denoiser_calls(policy, lambda: policy.replay(rollout, [1, 3], lambda now: None))
    a_step = 1 if name == "sd3" else 2  # guidance in one batch, or in a second call
    assert calls == 2 * a_step


@pytest.mark.integration
def test_windows_follow_the_seed_and_restrict_gradients(make_policy, requests):
    policy = make_policy("sd3", window={"size": 2, "high": 4})
    starts = set()
    for seed in range(8):
        rollout = policy.rollout(requests, seed=seed)
        first, second = rollout.recording.decisions
        assert second == first + 1 and rollout.log_probs.shape == (3, 2)
        assert policy.replay_gap(rollout) <= EXACT
        assert len(rollout.recording.next_latents) == second + 1
        starts.add(first)
    assert starts == {0, 1, 2}


@pytest.mark.parametrize("transition", ["dance_sde", "cps"])
def test_replay_is_exact_for_every_transition(transition, make_policy, requests):
    policy = make_policy("sd3", transition={"name": transition, "noise_level": 0.5})
    rollout = policy.rollout(requests, seed=3)
    assert policy.replay_gap(rollout) <= EXACT
    assert rollout.log_probs.shape == (3, 5)


@pytest.mark.parametrize("name", EVERY)
def test_deterministic_rollouts_have_no_decisions(name, make_policy, requests):
    policy = make_policy(name, transition={"name": "ode"})
    rollout = policy.rollout(requests, seed=3)
    assert rollout.log_probs.shape == (3, 0)
    assert policy.replay_gap(rollout) <= EXACT
    plain = policy.pipeline(**plain_arguments(rollout))[0]
    torch.testing.assert_close(rollout.clean, plain, atol=0, rtol=0)  # the scheduler's own steps, untouched


def test_replay_without_gradients_builds_no_graph(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    seen = []
    with torch.no_grad():
        policy.replay(rollout, [0, 2], lambda now: seen.append(now.log_probs.requires_grad))
    assert seen == [False, False]
    assert torch.is_grad_enabled()


def test_replay_holds_one_graph_at_a_time(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    earlier = []

    def visit(now):
        assert all(reference() is None for reference in earlier)
        now.log_probs.sum().backward()
        earlier.extend([weakref.ref(now.log_probs), weakref.ref(now.mean)])

    policy.replay(rollout, range(5), visit)
    assert all(reference() is None for reference in earlier)


def test_denoiser_hooks_run_in_computed_calls_with_the_grad_mode_of_their_step(make_policy, requests):
    """Those of FSDP wait for other processes, and prepare the backward pass only where the grad mode is on before."""
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    seen = []
    policy.pipeline.transformer.register_forward_pre_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    policy.replay(rollout, [1, 3], lambda now: now.log_probs.sum().backward())
    assert seen == [True, True]
    seen.clear()
    policy.predict_velocity(rollout, rollout.clean, 0.9)
    assert seen == [True]


def test_gradient_checkpointing_changes_no_gradient(make_policy, requests):
    policy = make_policy("sd3", "full")
    rollout = policy.rollout(requests, seed=3)

    def gradients():
        policy.replay(rollout, [1], lambda now: now.log_probs.sum().backward())
        found = {path: p.grad.clone() for path, p in policy.parameters_to_train().items() if p.grad is not None}
        policy.pipeline.transformer.zero_grad()
        return found

    plain = gradients()
    policy.pipeline.transformer.enable_gradient_checkpointing()
    for path, gradient in gradients().items():
        torch.testing.assert_close(gradient, plain[path], atol=1e-7, rtol=1e-5)


def test_equal_seeds_give_equal_rollouts(make_policy, requests):
    policy = make_policy("sd3")
    first, again, other = (policy.rollout(requests, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.clean, again.clean) and torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.clean, other.clean)


def test_rows_depend_on_their_seed_and_number_only(make_policy, requests):
    policy = make_policy("sd3")
    longer, shorter = policy.rollout(requests, seed=3), policy.rollout(requests[:1], seed=3)
    starts = [
        next(e.value for e in r.recording.call_cache.entries if e.name == "prepare_latents") for r in (longer, shorter)
    ]
    assert torch.equal(starts[0][:2], starts[1])
    assert not torch.equal(starts[0][0], starts[0][1])


# Negative controls: what must not pass unseen.


@pytest.mark.parametrize("transition", ["flow_sde", "ode"])
def test_corrupt_latents_raise_the_replay_gap(transition, make_policy, requests):
    policy = make_policy("sd3", transition={"name": transition})
    rollout = policy.rollout(requests, seed=3)
    rollout.recording.next_latents[0][0] += 0.1
    assert policy.replay_gap(rollout) > 1e-3


@pytest.mark.parametrize("transition", ["flow_sde", "ode"])
def test_changed_weights_raise_the_replay_gap(transition, make_policy, requests):
    policy = make_policy("sd3", "full", transition={"name": transition})
    rollout = policy.rollout(requests, seed=3)
    with torch.no_grad():
        policy.pipeline.transformer.proj_out.weight += 0.05
    assert policy.replay_gap(rollout) > 1e-3


def test_changed_schedules_raise_the_replay_gap(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    policy.pipeline.scheduler.set_shift(3.0)
    assert policy.replay_gap(rollout) > 1e-3


@pytest.mark.parametrize("damage", ["swap", "drop", "rename"])
def test_recorded_calls_out_of_order_raise(damage, make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    entries = rollout.recording.call_cache.entries
    if damage == "swap":
        entries.reverse()
    elif damage == "drop":
        entries.pop()
    else:
        entries[0] = CachedCall("encode_image", entries[0].value, entries[0].generators)
    with pytest.raises(ReplayError, match="out of step at entry"):
        policy.replay(rollout, [0], lambda now: None)
    assert_untouched(policy)


def test_pipelines_are_unpatched_after_replay(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    assert_untouched(policy)

    def fail(now):
        raise KeyError("the loss")

    with pytest.raises(KeyError, match="the loss"):
        policy.replay(rollout, [0], fail)
    assert_untouched(policy)
    assert policy.replay_gap(rollout) <= EXACT


def test_policy_calls_inside_a_decision_callback_raise(make_policy, requests):
    policy = make_policy("sd3")
    rollout = policy.rollout(requests, seed=3)
    with pytest.raises(GenerationError, match="in the middle of a call"):
        policy.replay(rollout, [0], lambda now: policy.replay(rollout, [1], lambda inner: None))


@pytest.mark.parametrize("step_indices", [[1, 0], [0, 0], [5], [-1]])
def test_step_indices_must_be_increasing_and_in_range(step_indices, make_policy, requests):
    policy = make_policy("sd3")
    with pytest.raises(ValueError, match="not increasing numbers below 5"):
        policy.replay(policy.rollout(requests, seed=3), step_indices, lambda now: None)


def test_attention_processors_are_restored(make_policy, requests):
    """Perturbed-attention pipelines put their processors back at the end of a call, which a replay does not reach."""
    policy = make_policy("sd3_pag")
    before = policy.pipeline.transformer.attn_processors
    rollout = policy.rollout(requests, seed=3)
    policy.replay(rollout, [0], lambda now: None)
    after = policy.pipeline.transformer.attn_processors
    assert all(after[path] is processor for path, processor in before.items())
