"""Batch arithmetic against figures worked out by hand, and everything it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.config import BatchPlan, ConfigError
from mmrl.config.loading.load import parse_config

NFT = """
name: tiny
policy: {model: m}
sampling: {steps: 10}
algorithm: {name: diffusion_nft}
rewards: [{name: r}]
data: {path: d.jsonl, validation: v.jsonl, groups: 8, group_size: 12, micro_batch: 24}
training: {iterations: 50, updates: 2, epochs: 3}
evaluation: {prompts: 100, samples: 2, every: 20}
"""
GRPO = NFT.replace("diffusion_nft", "grpo").replace("steps: 10", "steps: 10, transition: {name: flow_sde}")


def geometry(text: str, *overrides: str) -> BatchPlan:
    return BatchPlan.of(parse_config(text, "tiny.yaml", overrides))


def errors_of(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        geometry(text, *overrides)
    return str(caught.value).splitlines()


def test_batch_plan_by_hand():
    sizes = geometry(NFT)
    assert sizes.trajectories == 96  # 8 prompts x 12
    assert sizes.micro_batches == 4  # 96 / 24
    assert sizes.micro_batches_per_update == 2  # 4 / 2 updates
    assert sizes.updates == 6  # 2 updates x 3 epochs
    assert sizes.total_trajectories == 4800  # 96 x 50
    assert sizes.total_updates == 300  # 6 x 50
    assert (sizes.decisions, sizes.noise_levels) == (0, 3)
    assert sizes.evaluations == 4  # before, at 20 and 40, after the 50th
    assert sizes.evaluation_size == 200


def test_evaluation_size_counts_the_heldout_set_and_the_diversity_groups():
    sizes = geometry(NFT, "data.heldout=h.jsonl", "evaluation.diversity_prompts=5", "evaluation.diversity_draws=3")
    assert sizes.evaluation_size == 415  # 2 sets x 100 prompts x 2, and 5 x 3


@pytest.mark.parametrize("every, evaluations", [("", 2), ("50", 2), ("60", 2), ("25", 3), ("49", 3), ("1", 51)])
def test_evaluations_run_before_between_and_after_training(every, evaluations):
    assert geometry(NFT, f"evaluation.every={every}").evaluations == evaluations


def test_evaluation_size_is_zero_without_validation():
    sizes = geometry(NFT, "data.validation=", "evaluation.every=")
    assert (sizes.evaluations, sizes.evaluation_size) == (0, 0)
    assert dict(sizes.rows())["evaluation"].startswith("none")


@pytest.mark.parametrize("dtype, bound", [("float32", 1e-6), ("float16", 1e-5), ("bfloat16", 1e-4)])
def test_replay_gap_bound_follows_precision_unless_set(dtype, bound):
    unset, explicit = (
        geometry(GRPO, f"policy.dtype={dtype}", *more) for more in ([], ["training.max_replay_gap=2e-3"])
    )
    assert (unset.precision, unset.max_replay_gap, explicit.max_replay_gap) == (dtype, bound, 2e-3)
    assert dict(unset.rows())["precision"] == f"{dtype}; a replay may differ from its rollout by {bound:.0e}"


@pytest.mark.parametrize(
    "window, decisions",
    [
        ("{}", 9),  # ten steps, and the last adds no noise
        ("{size: 3}", 3),
        ("{low: 4}", 5),
        ("{high: 5}", 5),
        ("{size: 2, low: 3, high: 5}", 2),
    ],
)
def test_decisions_are_the_stochastic_steps_of_the_window(window, decisions):
    sizes = geometry(GRPO, f"sampling.window={window}")
    assert (sizes.decisions, sizes.noise_levels) == (decisions, 0)


def test_micro_batch_defaults_to_the_whole_batch():
    sizes = geometry(GRPO, "data.micro_batch=", "training.updates=1")
    assert (sizes.micro_batch, sizes.micro_batches) == (96, 1)


@given(st.integers(1, 12), st.integers(2, 12), st.integers(1, 150), st.integers(1, 8))
def test_batch_sizes_are_accepted_exactly_if_they_divide(groups, group_size, micro_batch, updates):
    overrides = [f"data.groups={groups}", f"data.group_size={group_size}", f"data.micro_batch={micro_batch}",
                 f"training.updates={updates}"]  # fmt: skip
    whole = groups * group_size
    fits = whole % micro_batch == 0 and (whole // micro_batch) % updates == 0
    if not fits:
        assert errors_of(NFT, *overrides)
        return
    sizes = geometry(NFT, *overrides)
    assert sizes.micro_batches_per_update * sizes.updates_per_epoch * sizes.micro_batch == whole


def test_micro_batch_error_names_the_nearest_divisors():
    assert errors_of(NFT, "data.micro_batch=7") == [
        "data.micro_batch: 7 does not divide groups x group_size = 8 x 12 = 96: 6 or 8 would"
    ]
    assert errors_of(NFT, "data.micro_batch=200")[0].endswith("96: 96 would")


def test_updates_error_names_valid_numbers():
    assert errors_of(NFT, "training.updates=3") == [
        "training.updates: 3 cannot share 4 micro-batches of 24 equally: "
        "set data.micro_batch to 32 or a divisor of it, or training.updates to 2 or 4"
    ]
    assert errors_of(NFT, "data.micro_batch=") == [
        "training.updates: 2 cannot share 1 micro-batch of 96 equally: set data.micro_batch to 48 or a divisor of it, "
        "or training.updates to 1"
    ]
    assert errors_of(NFT, "training.updates=5")[0].endswith("equally: set training.updates to 4")


@pytest.mark.parametrize(
    "text, override, key, remedy",
    [
        (GRPO, "sampling.transition.name=ode", "sampling.transition.name", "choose flow_sde"),
        (GRPO, "sampling.transition.noise_level=0", "sampling.transition.noise_level", "no decisions"),
        (GRPO, "sampling.steps=1", "sampling.steps", "take 2 or more"),
        (GRPO, "sampling.transition={name: cps, noise_level: 1.1}", "sampling.transition.noise_level", "cps"),
        (GRPO, "sampling.transition={name: ddim, noise_level: 1.1}", "sampling.transition.noise_level", "ddim"),
        (GRPO, "sampling.window.high=10", "sampling.window.high", "9 stochastic steps"),
        (GRPO, "sampling.window={low: 5, high: 5}", "sampling.window.low", "no step"),
        (GRPO, "sampling.window.low=9", "sampling.window.low", "no step"),
        (GRPO, "sampling.window={size: 6, low: 4}", "sampling.window.size", "do not fit"),
        (NFT, "sampling.window.size=2", "sampling.window", "ode"),
        (NFT, "algorithm.advantage.name=gdpo", "algorithm.advantage.name", "choose grpo"),
        (NFT, "algorithm.advantage={name: rloo, std: batch}", "algorithm.advantage.std", "would ignore it"),
        (NFT, "algorithm.kl={kind: mean_distance, coef: 0.1}", "algorithm.kl.kind", "choose velocity_mse"),
        (NFT, "rewards.1.name=r", "rewards.1.name", "twice"),
        (NFT, "evaluation.rewards=[r]", "evaluation.rewards.0", "trained on"),
        (NFT, "data.validation=", "data.validation", "missing"),
        (NFT.replace("validation", "heldout"), "evaluation.every=", "data.validation", "missing"),
        (NFT, "run.dir='runs/{step}'", "run.dir", "{name} and {seed}"),
        (NFT, "run.dir='runs/{'", "run.dir", "{name} and {seed}"),
    ],
)
def test_incompatible_settings_are_rejected(text, override, key, remedy):
    (line,) = errors_of(text, override)
    assert line.startswith(key)
    assert remedy in line


@pytest.mark.parametrize(
    "override, key", [("rewards.0.gate=0.5", "rewards"), ("scoring.renormalise=true", "scoring.renormalise")]
)
def test_gdpo_accepts_rewards_without_a_total(override, key):
    (line,) = errors_of(NFT, "rewards.1.name=s", "algorithm.advantage.name=gdpo", override)
    assert line.startswith(f"{key}:") and "gdpo" in line
    geometry(NFT, "rewards.1.name=s", override)


def test_valid_neighbours_of_rejected_settings_are_accepted():
    """The negative control: each refusal above, one step back."""
    for overrides in (
        ["sampling.steps=2"],
        ["sampling.transition={name: cps, noise_level: 1.0}"],
        ["sampling.window={size: 5, low: 4}"],
        ["sampling.window={low: 8, high: 9}"],
        ["rewards.1.name=s", "algorithm.advantage.name=gdpo"],
        ["algorithm.kl={kind: mean_distance, coef: 0.1}"],
        ["run.dir='runs/{name}-{seed:03d}'"],
        ["evaluation.rewards=[s]"],
    ):
        geometry(GRPO, *overrides)
    geometry(NFT, "algorithm.kl={kind: mean_distance}")  # switched off


def test_all_errors_are_reported_at_once():
    assert len(errors_of(GRPO, "data.micro_batch=7", "sampling.transition.name=ode", "evaluation.rewards=[r]")) == 3
