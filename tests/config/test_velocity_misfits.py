"""Keys of algorithms on noised samples that have no use beside others, or for a policy that writes."""

from __future__ import annotations

import pytest

from mmrl.build.config_checks import check
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import parse_config
from mmrl.errors import ConfigError

DRAWS = """
name: tiny
policy: {kind: pipeline, model: shapeworld}
rewards: [{name: shapeworld}]
data: {path: "shapeworld:train", groups: 2, group_size: 4}
"""
WRITES = DRAWS.replace("kind: pipeline", "kind: vlm")


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        (DRAWS, "algorithm={name: awm, kl: {kind: mean_distance, coef: 0.1}}", "which awm does not replay"),
        (DRAWS, "algorithm={name: awm, advantage: {name: branch, std: group}}", "branch compares rows that branch"),
        (DRAWS, "algorithm={name: diffusion_nft, advantage: {clip: null}}", "diffusion_nft maps [-clip, clip]"),
        (DRAWS, "algorithm={name: rejection_sft, aggregate: sequence}", "pictures have none: leave it out"),
        (
            WRITES,
            "algorithm={name: rejection_sft, num_noise_levels: 6}",
            "algorithm.num_noise_levels: noise levels are for policies",
        ),
        (WRITES, "algorithm={name: online_dpo, samples_from: reference}", "reference is for media"),
        (WRITES, "algorithm={name: rejection_sft, samples_from: reference}", "reference is for media"),
        (WRITES, "algorithm={name: online_dpo, samples_from: data}", "data is for media"),
        (
            DRAWS.replace("group_size: 4", "group_size: 4, micro_batch: 2"),
            "algorithm={name: flow_rwr, samples_from: data}",
            "data.micro_batch: 2 rows would split the 4 pictures of a sample",
        ),
        (
            DRAWS.replace("group_size: 4", "group_size: 4, group_sampling: {name: dynamic}"),
            "algorithm={name: flow_rwr, samples_from: data}",
            "data.group_sampling: with algorithm.samples_from data, nothing is sampled",
        ),
        (WRITES, "algorithm={name: dpo, weighting: sigma}", "algorithm.weighting: noise levels are for policies"),
        (WRITES, "algorithm={name: awm}", "VelocityRegression needs predict_velocity, which VLMPolicy does not have"),
        (DRAWS, "algorithm={name: mpo}", "PreferenceLearning needs teacher_force, which PipelinePolicy does not have"),
    ],
)
def test_invalid_velocity_settings_are_rejected_before_loading_a_model(text, override, message):
    with pytest.raises(ConfigError) as caught:
        check(parse_config(text, "tiny.yaml", [override]))
    assert message in str(caught.value)


def test_micro_batch_must_hold_whole_comparison_groups():
    config = parse_config(DRAWS, "tiny.yaml", ["algorithm={name: online_dpo, pairing: all}", "data.micro_batch=2"])
    with pytest.raises(ConfigError, match=r"data\.micro_batch: 2 rows do not hold the 4 of a group"):
        check(config)


@pytest.mark.parametrize("name", ["awm", "flow_rwr", "rejection_sft", "online_dpo", "dpo", "sft"])
def test_batch_plan_counts_noise_levels_of_velocity_objectives(name):
    config = parse_config(DRAWS, "tiny.yaml", [f"algorithm={{name: {name}, num_noise_levels: 4}}"])
    check(config)
    assert BatchPlan.of(config).noise_levels == 4
