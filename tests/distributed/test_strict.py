"""Policies whose parameters are never whole: rollouts, copies, gradients and files as those of whole ones."""

from __future__ import annotations

import pytest
import torch

from mmrl.build.training_setup import build_objective
from mmrl.config.algorithms.forward_process import AWMConfig, DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from tests.distributed import divided_policies as made
from tests.distributed.calls_in_group import call_in_group


@pytest.mark.slow
@pytest.mark.parametrize(("size", "per_node"), [(2, 2), (4, 2)])
def test_policies_that_gather_in_each_call_compute_what_whole_ones_do(size, per_node, fork_server, tmp_path):
    for found in call_in_group(fork_server, tmp_path, size, "tests.distributed.strict_checks:compare", per_node):
        for case, each in found.items():
            for name in ("rollout", "rollout_old", "rollout_reference", "rollout_after", "loaded"):
                assert each[name] == 0, name
            # In bfloat16, identities at the inputs of a whole model's blocks move gradients as far (2 %).
            assert each["gradients"] <= (5e-2 if case == "bfloat16" else 1e-6) * each["largest_gradient"]
            # The forward pass, and the backward pass again; no call that a replay skips gathers anything.
            assert each["gathers"] == 2 * each["blocks"] * each["steps"]
            assert each["gathers_of_one_step"] == 2 * each["blocks"]


@pytest.mark.parametrize("name", ["grpo", "diffusion_nft", "awm"])
def test_micro_batches_without_scored_rows_are_replayed_with_gradients_of_zero(name):
    policy = made.generator("lora")
    made.shake(policy)
    rollout = policy.rollout(made.PROMPTS, seed=3)
    none = torch.zeros(rollout.rows)
    batch = MicroBatch(rollout, none, none.bool(), rollout.log_probs * 0)
    algorithm = {"grpo": GRPOConfig(kl={"coef": 0.1}), "diffusion_nft": DiffusionNFTConfig(), "awm": AWMConfig()}[name]
    objective = build_objective(algorithm, policy, policy.sampling)
    assert objective.loss_normalizer(batch) == 0
    objective.backward(batch.with_every_row(), 0.0, 1, MetricAccumulator())
    gradients = made.gradients(policy).values()
    assert gradients and not any(each.any() for each in gradients)
