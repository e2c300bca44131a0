"""The reference, and checkpoints that plain diffusers loads."""

from __future__ import annotations

import peft
import pytest
import torch
import transformers
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker

from mmrl.config.algorithms.forward_process import DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.policy import LoraConfig, PolicyConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.generation import PipelinePolicy, UnsupportedError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.objectives.velocity_regression import VelocityRegression
from tests.generation import tiny_pipelines as tiny
from tests.generation.pipeline_checks import CLASSES, EXACT, plain_arguments


def shake(policy: PipelinePolicy) -> None:
    """An update that every parameter feels."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("name", [*CLASSES, "wan22"])
def test_reference_is_the_pipeline_before_training(name, train, make_policy, requests):
    policy = make_policy(name, train)
    rollout = policy.rollout(requests, seed=3)
    with policy.reference():
        assert policy.replay_gap(rollout) <= EXACT
    shake(policy)
    assert policy.replay_gap(rollout) > 1e-3
    with policy.reference():
        assert policy.replay_gap(rollout) <= EXACT
    assert policy.replay_gap(rollout) > 1e-3


@pytest.mark.parametrize("train", ["lora", "full"])
def test_autograd_graph_survives_a_reference_context(train, make_policy, requests):
    policy = make_policy("sd3", train)
    rollout = policy.rollout(requests, seed=3)

    def gradients(look: bool) -> list[torch.Tensor]:
        velocity = policy.predict_velocity(rollout, rollout.clean, 0.5)
        if look:
            with policy.reference(), torch.no_grad():
                policy.predict_velocity(rollout, rollout.clean, 0.5)
        parameters = list(policy.parameters_to_train().values())
        return torch.autograd.grad(velocity.square().mean(), parameters, allow_unused=True)

    shake(policy)
    for plain, looked in zip(gradients(False), gradients(True), strict=True):
        assert (plain is None and looked is None) or torch.equal(plain, looked)


@pytest.mark.integration
@pytest.mark.parametrize("name", CLASSES)
def test_diffusers_loads_the_adapters(name, make_policy, requests, tmp_path):
    policy = make_policy(name, transition={"name": "ode"})
    shake(policy)
    policy.save(tmp_path)
    rollout = policy.rollout(requests, seed=3)
    plain = tiny.build(name)
    before = plain(**plain_arguments(rollout))[0]
    plain.load_lora_weights(tmp_path)
    after = plain(**plain_arguments(rollout))[0]
    torch.testing.assert_close(after, rollout.clean, atol=1e-6, rtol=1e-6)
    assert (before - after).abs().max() > 1e-3


@pytest.mark.integration
def test_adapters_of_a_second_transformer_have_a_separate_folder(make_policy, requests, tmp_path):
    policy = make_policy("wan22", transition={"name": "ode"})
    shake(policy)
    policy.save(tmp_path)
    rollout = policy.rollout(requests, seed=3)
    plain = tiny.build("wan22")
    plain.load_lora_weights(tmp_path)
    plain.load_lora_weights(tmp_path / "transformer_2", load_into_transformer_2=True)
    after = plain(**plain_arguments(rollout))[0]
    torch.testing.assert_close(after, rollout.clean, atol=1e-6, rtol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["sd3", "wan22"])
def test_diffusers_loads_fully_trained_denoisers(name, make_policy, requests, tmp_path):
    policy = make_policy(name, "full", transition={"name": "ode"})
    shake(policy)
    policy.save(tmp_path)
    rollout = policy.rollout(requests, seed=3)
    plain = tiny.build(name)
    for component in policy._denoisers:
        setattr(plain, component, type(getattr(plain, component)).from_pretrained(tmp_path / component))
    after = plain(**plain_arguments(rollout))[0]
    torch.testing.assert_close(after, rollout.clean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("name", ["sd3", "wan22", "sd15"])
def test_load_restores_the_same_parameters(name, train, make_policy, tmp_path):
    policy, fresh = make_policy(name, train), make_policy(name, train)
    shake(policy)
    policy.save(tmp_path)
    parameters = fresh.parameters_to_train()  # as an optimizer holds them
    fresh.load(tmp_path)
    assert list(parameters) == list(policy.parameters_to_train())
    for path, parameter in policy.parameters_to_train().items():
        assert parameters[path] is fresh.parameters_to_train()[path]
        assert torch.equal(parameters[path], parameter)


def test_adapters_of_another_rank_raise(make_policy, tmp_path):
    make_policy("sd3").save(tmp_path)
    wider = PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3"), lora=LoraConfig(rank=8))
    with pytest.raises(ConfigError, match=r"is \[4, 16\], policy.lora makes it \[8, 16\]"):
        wider.load(tmp_path)
    narrower = PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3"), lora=LoraConfig(rank=4, targets=("to_q",)))
    with pytest.raises(ConfigError, match="they differ in"):
        narrower.load(tmp_path)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_a_lora_that_the_pipeline_came_with_must_be_fused_first(train, requests):
    """A trained LoRA would switch it off, and leave its layers out; fused, it is part of the reference."""
    pipeline, base = tiny.build("sd3"), tiny.build("sd3")
    pipeline.transformer.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q"]), "few_steps")
    with torch.no_grad():
        for name, parameter in pipeline.transformer.named_parameters():
            parameter += "lora_B" in name
    with pytest.raises(ConfigError, match=r"transformer has a LoRA.*fuse_lora"):
        PipelinePolicy(pipeline, tiny.sampling("sd3"), train=train)
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    fused, plain = (PipelinePolicy(each, tiny.sampling("sd3"), train=train) for each in (pipeline, base))
    assert len(fused.parameters_to_train()) == len(plain.parameters_to_train())
    assert not torch.equal(fused.rollout(requests, seed=0).clean, plain.rollout(requests, seed=0).clean)


def test_unknown_targets_and_denoisers_raise(make_policy):
    with pytest.raises(ConfigError, match=r"policy.lora.targets: transformer has no linear layer to_x; it has .*to_q"):
        PipelinePolicy(tiny.build("sd3"), tiny.sampling("sd3"), lora=LoraConfig(targets=("to_x",)))
    with pytest.raises(ConfigError, match=r"policy.denoisers: the pipeline has no unet; it has transformer"):
        make_policy("sd3", denoisers=("unet",))


def test_one_of_two_denoisers_can_be_trained(make_policy, requests):
    policy = make_policy("wan22", denoisers=("transformer_2",))
    assert {path.split(".")[0] for path in policy.parameters_to_train()} == {"transformer_2"}
    assert policy.replay_gap(policy.rollout(requests, seed=3)) <= EXACT


@pytest.mark.integration
@pytest.mark.parametrize("objective", ["grpo", "gspo", "nft"])
def test_one_of_two_denoisers_learns_what_it_learns_beside_the_other(objective, make_policy):
    """The frozen one computes some noise levels, where there is nothing to learn."""
    config = {
        "grpo": GRPOConfig(kl={"coef": 0.1}),
        "gspo": GRPOConfig(importance="sequence"),
        "nft": DiffusionNFTConfig(kl={"coef": 0.1}),
    }[objective]

    def gradients(*denoisers: str) -> dict[str, torch.Tensor]:
        policy = make_policy("wan22", "full", denoisers=denoisers)
        rollout = policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=2, group=0)], seed=3)
        kind = VelocityRegression if objective == "nft" else PolicyGradient
        batch = MicroBatch.of_rows(rollout, torch.tensor([1.0, -1.0]))
        kind(policy, config).backward(batch, 1.0, 0, MetricAccumulator())
        return {name: each.grad for name, each in policy.parameters_to_train().items() if each.grad is not None}

    both = gradients()
    for denoiser in ("transformer", "transformer_2"):
        alone = gradients(denoiser)
        assert alone.keys() == {name for name in both if name.split(".")[0] == denoiser}
        assert all(torch.equal(alone[name], both[name]) for name in alone)
        assert any(each.abs().sum() > 0 for each in alone.values())


@pytest.mark.integration
@pytest.mark.parametrize("train", ["lora", "full"])
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch: a slower kernel
def test_half_precision_trains_float32_parameters(name, train, requests):
    pipeline = tiny.build(name).to(torch.bfloat16)
    policy = PipelinePolicy(pipeline, tiny.sampling(name), train=train, lora=LoraConfig(rank=4))
    assert {parameter.dtype for parameter in policy.parameters_to_train().values()} == {torch.float32}
    rollout = policy.rollout(requests, seed=3)
    assert rollout.log_probs.dtype == torch.float32
    assert rollout.clean.dtype == (torch.float32 if name == "wan" else torch.bfloat16)  # as the pipeline has it
    step_indices = range(rollout.log_probs.shape[1])
    moved = []

    def visit(now):
        moved.append((now.log_probs[:, 0] - rollout.log_probs[:, now.step_indices[0]]).abs().max().item())
        now.log_probs.sum().backward()

    policy.replay(rollout, step_indices, visit)
    assert max(moved) <= EXACT
    with policy.reference():
        assert policy.replay_gap(rollout) <= EXACT


@pytest.mark.integration
def test_from_config_loads_a_folder(requests, tmp_path):
    tiny.build("sd3").save_pretrained(tmp_path)
    config = PolicyConfig(model=str(tmp_path), train="full", device="cpu", gradient_checkpointing=True)
    policy = PipelinePolicy.from_config(config, tiny.sampling("sd3"))
    assert policy.pipeline.transformer.is_gradient_checkpointing
    assert policy.replay_gap(policy.rollout(requests, seed=3)) <= EXACT


@pytest.mark.integration
def test_safety_checker_is_off_by_default(tmp_path):
    pipeline = tiny.build("sd15")
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(vision_config={**vision, "image_size": 8, "patch_size": 4}, projection_dim=8)
    pipeline.register_modules(
        safety_checker=StableDiffusionSafetyChecker(config), feature_extractor=transformers.CLIPImageProcessor()
    )
    pipeline.save_pretrained(tmp_path)
    for checker in (False, True):
        config = PolicyConfig(model=str(tmp_path), device="cpu", safety_checker=checker)
        policy = PipelinePolicy.from_config(config, tiny.sampling("sd15"))
        assert (policy.pipeline.safety_checker is not None) == checker


def test_pickled_weights_are_rejected(tmp_path):
    tiny.build("sd3").save_pretrained(tmp_path, safe_serialization=False)
    with pytest.raises(OSError, match="safetensors"):
        PipelinePolicy.from_config(PolicyConfig(model=str(tmp_path), device="cpu"), tiny.sampling("sd3"))


def test_pipelines_without_a_denoiser_raise():
    pipeline = tiny.build("sd3")
    pipeline.transformer = None
    with pytest.raises(UnsupportedError, match=r"has no transformer, transformer_2, .*unet to train"):
        PipelinePolicy(pipeline, tiny.sampling("sd3"))
