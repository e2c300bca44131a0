"""Heads of several objectives: what they learn, and the model that their blend is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from mmrl.build.config_checks import check
from mmrl.config.algorithms.preference import DPOConfig, MAHDPOConfig
from mmrl.config.loading.load import load_config
from mmrl.config.media import MediaConfig
from mmrl.config.policy import LoraConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.head_preferences import HeadPreferences
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.understanding.vlm_policy import VLMPolicy

AXES = ({"right": "chosen", "brief": "rejected"}, {"right": "chosen", "brief": "chosen"})
SAMPLES = [Sample(f"p{n}", prompt=f"{n} and {n}?", metadata={"axes": axes}) for n, axes in enumerate(AXES)]
REQUESTS = [RolloutRequest(sample, 3, group) for group, sample in enumerate(SAMPLES)]


@pytest.fixture
def headed(folder_of):
    """From the kind of training to a policy with two heads."""

    def build(train: str = "full", heads: tuple[str, ...] = ("right", "brief")) -> VLMPolicy:
        torch.manual_seed(0)
        lora = LoraConfig(rank=2, alpha=4)
        config = VLMConfig(
            model=str(folder_of("qwen3_vl")), device="cpu", train=train, heads=heads, heads_lr_scale=5.0, lora=lora
        )
        return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=6), MediaConfig())

    return build


@torch.no_grad()
def move(policy, scale=0.1):
    noise = torch.Generator().manual_seed(1)
    for parameter in policy.parameters_to_train().values():
        parameter.add_(scale * torch.randn(parameter.shape, generator=noise))


def pairs(policy, samples=SAMPLES):
    rollout = policy.score_targets(
        [TargetText(sample, text, n) for n, sample in enumerate(samples) for text in ("four", "it is 5")]
    )
    ones = torch.ones(rollout.rows)
    return MicroBatch(rollout, ones, ones.bool(), ones[:, None].where(rollout.mask, 0.0))


def gradients(policy, objective, batch):
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None
    objective.backward(batch, 1.0, 0, MetricAccumulator())
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in policy.parameters_to_train().items()
    }


@torch.no_grad()
def says(policy):
    with policy.head_in_place():
        return policy.vlm.model(input_ids=torch.tensor([[65, 66, 67]])).logits


@pytest.mark.parametrize("train", ["full", "lora"])
def test_all_heads_begin_as_the_model(headed, folder_of, train):
    policy = headed(train)
    plain = AutoModelForImageTextToText.from_pretrained(folder_of("qwen3_vl")).eval()
    with torch.no_grad():
        expected = plain(input_ids=torch.tensor([[65, 66, 67]])).logits
    torch.testing.assert_close(says(policy), expected)
    move(policy)
    assert (says(policy) - expected).abs().max() > 0.01
    with policy.reference():
        torch.testing.assert_close(says(policy), expected)
    assert {"heads.right", "heads.brief"} <= policy.parameters_to_train().keys()
    scales = {name: policy.lr_scale(name) for name in policy.parameters_to_train()}
    assert {name for name, scale in scales.items() if scale == 5.0} == {"heads.right", "heads.brief"}


def test_a_blend_is_the_weighted_sum_of_the_logits_of_heads(headed):
    policy = headed()
    move(policy)
    found = {}
    for name in ("right", "brief"):
        with policy.heads.chosen(name):
            found[name] = says(policy)
    assert (found["right"] - found["brief"]).abs().max() > 0.01
    for weights in ({"right": 0.3, "brief": 0.7}, {"right": 1.0}, {"right": 1.5, "brief": -0.5}):
        with policy.heads.blended(weights):
            expected = sum(weight * found[name] for name, weight in weights.items())
            torch.testing.assert_close(says(policy), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(says(policy), (found["right"] + found["brief"]) / 2, atol=2e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="there is no head long; the heads are right, brief"):
        policy.heads.blended({"long": 1.0}).__enter__()


def test_rollouts_replay_under_their_blend(headed):
    policy = headed()
    move(policy, 0.3)
    with policy.heads.blended({"right": 0.9, "brief": 0.1}):
        rollout = policy.rollout(REQUESTS, 0)
        assert policy.replay_gap(rollout) < 1e-4
    assert policy.replay_gap(rollout) > 1e-3  # in equal parts they are another policy


@pytest.mark.parametrize("train", ["full", "lora"])
def test_gradients_are_those_of_dpo_with_each_head_alone(headed, train):
    """A head gets DPO's gradient on its axis, and no other head any of it; the trunk gets the sum."""
    policy = headed(train)
    batch = pairs(policy)
    move(policy)
    together = gradients(policy, HeadPreferences(policy, MAHDPOConfig(beta=0.5)), batch)
    alone = {}
    for name in ("right", "brief"):
        swapped = [row for n, axes in enumerate(AXES) for row in ([2 * n, 2 * n + 1] if axes[name] == "chosen" else
                                                                  [2 * n + 1, 2 * n])]  # fmt: skip
        turned = MicroBatch(
            batch.rollout.select(swapped), batch.advantages, batch.scored, batch.step_advantages[swapped]
        )
        with policy.heads.chosen(name):
            alone[name] = gradients(policy, PreferenceLearning(policy, DPOConfig(beta=0.5)), turned)
    for name, gradient in together.items():
        expected = alone["right"].get(name, 0) + alone["brief"].get(name, 0)
        torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-4)
    assert alone["right"]["heads.brief"].abs().max() == 0 < alone["right"]["heads.right"].abs().max()


@pytest.mark.integration
def test_heads_are_saved_and_the_folder_holds_their_blend(headed, tmp_path):
    policy = headed()
    move(policy)
    policy.save(tmp_path)
    plain = AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(plain(input_ids=torch.tensor([[65, 66, 67]])).logits, says(policy))
    again = headed()
    again.load(tmp_path)
    for name in ("right", "brief"):
        with policy.heads.chosen(name), again.heads.chosen(name):
            torch.testing.assert_close(says(again), says(policy))
    with pytest.raises(ConfigError, match=r"other heads than policy\.heads names"):
        headed(heads=("right", "long")).load(tmp_path)


def test_samples_say_who_is_better_on_every_axis(headed):
    policy = headed()
    batch = pairs(policy, [SAMPLES[0], Sample("bare", prompt="?", metadata={"axes": {"right": "chosen"}})])
    with pytest.raises(DataError, match=r"'bare': expected metadata\.axes\.brief"):
        HeadPreferences(policy, MAHDPOConfig()).backward(batch, 1.0, 0, MetricAccumulator())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm={name: mah_dpo}"], "mah_dpo trains a head for each axis"),
        (["policy.heads_lr_scale=2.0"], "names no heads: leave it out"),
        (["policy.heads=[a]"], "the different names of two or more objectives, got a"),
        (["evaluation.heads={a: 1.0}"], r"evaluation\.heads\.a: policy.heads has no heads"),
        (["policy.heads=[a, b]", "run.place=window"], "run.place window divides the model"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", overrides))


@pytest.mark.integration
def test_a_run_with_heads_is_trained_evaluated_and_resumed(tmp_path: Path):
    from mmrl.workflows.train import train

    words = ["policy.heads=[right, brief]", "algorithm={name: mah_dpo}", "data.path=shapeworld:trade-pairs-train"]
    words += ["rewards=[{name: numeric}]", "evaluation={prompts: 8, heads: {right: 1.0}}", "data.groups=4"]
    words += ["run.display=quiet", f"run.dir={tmp_path / 'run'}", "training.iterations=2", "training.save_every=1"]
    config = load_config("shapes-reasoning", words)
    run = train(config)
    longer = config.model_copy(update={"training": config.training.model_copy(update={"iterations": 3})})
    assert train(longer, resume=run) == run
    assert sum('"kind": "train"' in line for line in (run / "metrics.jsonl").read_text().splitlines()) == 3
