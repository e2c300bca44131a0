"""Rows that share a path and part, in an unmodified pipeline."""

from __future__ import annotations

import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout_request import RolloutRequest


def group(n: int) -> list[RolloutRequest]:
    """n rows of one prompt, of one group."""
    return [RolloutRequest(Sample("0", prompt="a red circle"), n=n, group=0)]


@pytest.fixture(scope="module")
def two_trees():
    """A policy, and a rollout of two trees of four rows, which part at the second and the third of four decisions."""
    from mmrl.generation import PipelinePolicy
    from tests.generation import tiny_pipelines as tiny

    branch = {"at": (1, 2)}
    policy = PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3", steps=5, branch=branch), train="full")
    return policy, policy.rollout(group(8), seed=3)


def test_rows_share_latents_until_they_branch(two_trees):
    _, rollout = two_trees
    paths = [latents[0] for latents in rollout.recording.next_latents]
    together = [[latents[0].equal(latents[row]) for row in range(8)] for latents in paths]
    assert together == [[True] * 4 + [False] * 4, [True] * 2 + [False] * 6, [True] + [False] * 7, [True] + [False] * 7]
    assert paths[1][2].equal(paths[1][3]) and paths[0][4].equal(paths[0][7])  # of other branches too
    assert len({made.tobytes() for made in rollout.media}) == 8


def test_rollout_records_the_row_of_each_decision(two_trees):
    _, rollout = two_trees
    roots, firsts = [0, 0, 0, 0, 4, 4, 4, 4], [0, 0, 2, 2, 4, 4, 6, 6]
    alone = list(range(8))
    assert rollout.branches.T.tolist() == [roots, roots, firsts, alone, alone]
    assert rollout.mask.sum(0).tolist() == [2, 4, 8, 8]
    assert rollout.mask[:, 0].nonzero()[:, 0].tolist() == [0, 4]


def test_branched_rollouts_replay_exactly(two_trees):
    policy, rollout = two_trees
    assert policy.replay_gap(rollout) == 0
    torch.testing.assert_close(rollout.log_probs[:4, 0], rollout.log_probs[0, 0].expand(4), atol=1e-6, rtol=0)
    assert rollout.log_probs[:, 3].unique().numel() == 8


@pytest.mark.integration
def test_branches_share_steps_before_the_window(make_policy):
    """B2-DiffuRL's branches: all rows of a tree have the same past, and no decision in common."""
    policy = make_policy("sd3", steps=6, window={"low": 3}, branch={"at": (0,), "branching_factor": 3})
    rollout = policy.rollout(group(6), seed=1)
    before, after = (rollout.recording.next_latents[step][0] for step in (2, 3))
    assert before[0].equal(before[2]) and not before[0].equal(before[3])
    assert not after[0].equal(after[1])
    assert rollout.mask.all() and rollout.branches[:, 0].tolist() == [0, 0, 0, 3, 3, 3]
    assert policy.replay_gap(rollout) == 0


@pytest.mark.integration
@pytest.mark.parametrize("name, transition", [("sd3", "flow_sde"), ("sd15", "ddim")])
def test_steps_before_the_window_can_draw_noise_that_is_not_trained(make_policy, name, transition):
    """B2-DiffuRL's early steps: stochastic, shared by the rows of a tree, and no decisions."""
    options = {
        "steps": 6,
        "transition": {"name": transition, "noise_level": 0.7},
        "branch": {"at": (0,), "branching_factor": 3},
    }
    along, drawn = (
        make_policy(name, window={"low": 3, "before": before}, **options).rollout(group(6), seed=1)
        for before in ("ode", "noise")
    )
    policy = make_policy(name, window={"low": 3, "before": "noise"}, **options)
    rollout = policy.rollout(group(6), seed=1)
    assert rollout.log_probs.equal(drawn.log_probs) and rollout.log_probs.shape == along.log_probs.shape == (6, 2)
    for step in range(3):
        early, ode = (each.recording.next_latents[step][0] for each in (rollout, along))
        assert early[0].equal(early[2]) and not early[0].equal(early[3])
        assert not early.equal(ode)
    after = rollout.recording.next_latents[3][0]
    assert not after[0].equal(after[1])
    assert policy.replay_gap(rollout) == 0


@pytest.mark.integration
def test_noisy_first_step_equals_that_of_a_window_of_all_steps(make_policy):
    """The same Gaussian draws a step whether it is trained or not."""
    whole, late = (
        make_policy("sd3", steps=4, window=window).rollout(group(2), seed=5)
        for window in ({}, {"low": 2, "before": "noise"})
    )
    for step in range(3):
        first, second = (each.recording.next_latents[step][0] for each in (whole, late))
        torch.testing.assert_close(first, second, atol=1e-6, rtol=0)
    assert late.log_probs.equal(whole.log_probs[:, 2:])


@pytest.mark.integration
def test_noise_prediction_models_branch(make_policy):
    policy = make_policy("sd15", steps=4, branch={"at": (1,)})
    rollout = policy.rollout(group(4), seed=0)
    first = rollout.recording.next_latents[0][0]
    assert first[0].equal(first[1]) and not first[0].equal(first[2])
    assert policy.replay_gap(rollout) == 0


def test_rows_that_form_no_tree_raise(make_policy):
    policy = make_policy("sd3", steps=4, branch={"at": (0, 1)})
    with pytest.raises(ValueError, match="not whole trees of 4"):
        policy.rollout(group(6), seed=0)
    late = make_policy("sd3", steps=4, branch={"at": (3,)})
    with pytest.raises(ConfigError, match="there are 3 decisions, counted from 0"):
        late.rollout(group(2), seed=0)
