"""Incompatible settings are reported before a model is loaded, and components are built as configured."""

from __future__ import annotations

import pytest

from mmrl.build.data_samplers import build_group_sampler, build_prompts, build_replay, build_weighting
from mmrl.config.loading.load import parse_config
from mmrl.config.validation import data_errors
from mmrl.data.prompts import PromptSampler, VarianceAwareSampler
from mmrl.data.sample import RewardChoice
from mmrl.policy import Capability
from mmrl.rewards import GroupReward, WeightedReward
from mmrl.rewards.core.routing import RoutedRewards, distinct_choices
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator, DifficultyWeighting
from mmrl.training.rollouts.collect import FixedGroupSampler
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.group_sampling import AdaptiveGroupSampler, DynamicGroupSampler
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay
from mmrl.training.rollouts.replay_buffer import SelectiveReplay, SuccessReplay
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, Right, source

BASE = "name: a\npolicy: {kind: pipeline, model: m}\nrewards: [{name: ocr}]\n"


def config(data="", algorithm="{}"):
    text = f"{BASE}algorithm: {algorithm}\ndata: {{path: x, groups: 4, group_size: 6{data}}}\n"
    return parse_config(text, "test")


def validation_errors(data="", algorithm="{}", capabilities=TokenPolicy.capabilities):
    made = config(data, algorithm)
    advantage = getattr(made.algorithm, "advantage", None)
    return [*data_errors(made, capabilities), *(advantage.validation_errors(made) if advantage else ())]


@pytest.mark.parametrize(
    ("data", "algorithm", "capabilities", "says"),
    [
        (", replay: {name: success}", "{}", GaussianPolicy.capabilities, "data.replay: the policy cannot read"),
        (
            ", demonstrations: {}",
            "{}",
            frozenset({Capability.LOG_PROBS}),
            "data.demonstrations: the policy cannot read",
        ),
        (
            ", group_sampling: {name: dynamic}",
            "{name: sft}",
            TokenPolicy.capabilities,
            "data.group_sampling: sft learns from demonstrations",
        ),
        (", weighting: {}", "{name: dpo}", TokenPolicy.capabilities, "data.weighting: dpo learns from pairs"),
        (
            ", group_sampling: {name: dynamic}",
            "{name: reinforce_pp}",
            TokenPolicy.capabilities,
            "dynamic drops groups of equal",
        ),
        (
            ", group_sampling: {name: dynamic}, replay: {name: success}",
            "{}",
            TokenPolicy.capabilities,
            "success mends groups",
        ),
        (", replay: {name: selective, capacity: 5}", "{}", TokenPolicy.capabilities, "5 answers do not fill"),
        (
            ", group_sampling: {name: adaptive, max_rounds: 2, per_round: 2}",
            "{}",
            TokenPolicy.capabilities,
            "at most 4 answers",
        ),
    ],
)
def test_incompatible_settings_are_reported_by_key(data, algorithm, capabilities, says):
    (line,) = validation_errors(data, algorithm, capabilities)
    assert says in line and line.startswith("data.")


def test_text_policies_support_every_setting():
    everything = (
        ", prompts: {name: variance_aware}, group_sampling: {name: adaptive}, replay: {name: success}, weighting: {}"
        ", demonstrations: {shaping: 0.1}"
    )
    assert (
        validation_errors(everything) == []
        and validation_errors(", group_sampling: {name: dynamic}, replay: {name: selective}") == []
    )
    assert validation_errors(capabilities=GaussianPolicy.capabilities) == []


def test_components_are_built_as_configured():
    plain = config().data
    assert (
        build_group_sampler(plain, 0) == FixedGroupSampler(6)
        and build_replay(plain, 0) is build_weighting(plain) is None
    )
    assert isinstance(build_prompts(plain, questions(), 0), PromptSampler)
    full = config(
        ", prompts: {name: variance_aware}, group_sampling: {name: dynamic, max_rounds: 3}, replay: {name: success}"
    ).data
    assert build_group_sampler(full, 0) == DynamicGroupSampler(4, 6, 3) and isinstance(
        build_replay(full, 0), SuccessReplay
    )
    assert isinstance(build_prompts(full, questions(), 0), VarianceAwareSampler)
    other = config(
        ", group_sampling: {name: adaptive, negatives: 0}, replay: {name: selective}, weighting: {stages: [hard]}"
    ).data
    assert build_group_sampler(other, 7) == AdaptiveGroupSampler(6, 4, 6, 1.0, 3, 0, 7)
    assert isinstance(build_replay(other, 0), SelectiveReplay)
    recomposed = build_replay(config(", replay: {name: recomposed, share: 0.25, compensation: [0.9, 0.1]}").data, 0)
    assert isinstance(recomposed, RecomposedReplay)
    assert (recomposed.share, recomposed.compensation) == (0.25, (0.9, 0.1))
    assert build_weighting(other) == DifficultyWeighting(("hard",), 1.0)


def test_sources_reject_unsupported_policies_and_rewards():
    class Rank(GroupReward):
        """Compares."""

        name, needs, range = "rank", ("text",), (0.0, 1.0)

        def score_group(self, items):
            return [0.0] * len(items)

    with pytest.raises(ValueError, match=r"data\.replay: GaussianPolicy cannot score texts"):
        source(GaussianPolicy(), replay=SelectiveReplay(8, 1.0, 0))  # an empty buffer is a buffer
    with pytest.raises(ValueError, match=r"data\.demonstrations: GaussianPolicy cannot score texts"):
        source(GaussianPolicy(), demonstrations=MixedDemonstrations(1.0, None, 0))
    with pytest.raises(ValueError, match="adaptive draws a group in rounds, but a reward compares"):
        source(reward=Rank(), group_sampler=AdaptiveGroupSampler(6, 4, 6, 1.0, 3, 3, 0))
    routed = RoutedRewards(
        [WeightedReward(Right())],
        distinct_choices(questions(rewards=(RewardChoice("exact"),))),
        load=lambda name: Exact(),
    )
    gdpo = config(algorithm="{name: gdpo}").algorithm.advantage
    with pytest.raises(ValueError, match="gdpo takes the rewards of all answers one by one, but samples ask"):
        source(suite=routed, advantage_estimator=AdvantageEstimator(gdpo, routed.weights))
    routed.close()
