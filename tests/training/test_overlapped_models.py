"""The shipped models, sampled by a thread while they are trained: repeated, resumed, and each kind of policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.config_checks import check, check_processes
from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError, RunError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.sampling_copy import sampling_copy
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.run_folder import load_run
from mmrl.workflows.train import train

SHORT = ("data.groups=2", "data.group_size=4", "data.micro_batch=4", "data.validation=null", "data.heldout=null",
         "evaluation={}", "training={iterations: 3, save_every: 1}", "run.display=quiet")  # fmt: skip
MODELS = {
    "nft": ("quickstart", "sampling.steps=3", "algorithm.num_noise_levels=1"),
    "awm": ("quickstart", "sampling.steps=3", "algorithm={name: awm}"),
    "flow-grpo": ("flow-grpo", "sampling.steps=3", "sampling.window={}"),
    "lora": ("flow-grpo", "sampling.steps=3", "sampling.window={}", "policy.train=lora"),
    "vlm": ("shapes-vlm", "optimizer.lr=3e-3"),
    "vlm-corrected": ("shapes-vlm", "optimizer.lr=3e-3", "algorithm.mismatch={cap: 2.0}"),
    "image-tokens": ("shapes-ar", "optimizer.lr=3e-3"),
    "replay": ("shapes-vlm", "optimizer.lr=3e-3", "data.replay={name: success}", "data.prompts={name: variance_aware}"),
    "selective": ("shapes-vlm", "optimizer.lr=3e-3", "data.replay={name: selective, capacity: 8}"),
    "dynamic": ("shapes-vlm", "optimizer.lr=3e-3", "data.group_sampling={name: dynamic, max_rounds: 2}"),
    "demonstrations": (
        *("shapes-vlm", "optimizer.lr=3e-3", "data.path=shapeworld:vlm-train"),
        *("data.demonstrations={share: 0.5}", "data.weighting={name: difficulty}", "algorithm.mismatch={cap: 2.0}"),
    ),
    "online-dpo": ("quickstart", "sampling.steps=3", "algorithm={name: online_dpo}"),
    "running": ("flow-grpo", "sampling.steps=3", "sampling.window={}", "algorithm.advantage={name: running}"),
}
STREAMED = ("nft", "awm", "flow-grpo", "lora", "vlm", "vlm-corrected", "image-tokens")


def configured(model: str, folder: Path, *overrides: str) -> TrainConfig:
    recipe, *own = MODELS[model]
    return load_config(recipe, [*SHORT, *own, f"run.dir={folder}", *overrides])


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def parameters(run: Path) -> dict[str, torch.Tensor]:
    return load_file(Checkpoints(run).path() / "trainer" / "parameters.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(each, marks=() if each == "vlm-corrected" else pytest.mark.breadth) for each in MODELS]
)
def test_lagged_run_repeats_and_resumes_to_the_bit(model, tmp_path):
    straight = train(configured(model, tmp_path / "a", "run.overlap.lag=1"))
    train(configured(model, tmp_path / "b", "run.overlap.lag=1", "training.iterations=2"))
    longer = load_run(tmp_path / "b").config
    longer = longer.model_copy(update={"training": longer.training.model_copy(update={"iterations": 3})})
    resumed = train(longer, resume=tmp_path / "b")
    one, other = parameters(straight), parameters(resumed)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    found = rows(straight)
    assert [row["lag/updates"] for row in found] == [0, found[0]["lag/updates"] + updates_of(model), updates_of(model)]
    bound = longer.training.replay_gap_bound("float32", longer.sampling.kind)
    assert all(row["replay_gap"] <= bound for row in found)
    assert {"seconds/wait", "seconds/thread_rollout", "seconds/thread_reward", "seconds/thread_wait"} <= found[0].keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [pytest.param(each, marks=() if each == "nft" else pytest.mark.breadth) for each in STREAMED]
)
def test_streamed_run_equals_a_synchronous_one_to_the_bit(model, tmp_path):
    """Two micro-batches of one group each, of equally many rows: the number of terms is known from the first."""
    overrides = ["algorithm.advantage={std: group}"] if model == "awm" else []
    plain = parameters(train(configured(model, tmp_path / "a", *overrides)))
    streamed = parameters(train(configured(model, tmp_path / "b", "run.overlap.stream=true", *overrides)))
    assert all(torch.equal(plain[name], streamed[name]) for name in plain)
    for one, other in zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True):
        clocks = ("seconds/", "memory_mib/", "lag/")
        assert {k: v for k, v in one.items() if not k.startswith(clocks)} == {
            k: v for k, v in other.items() if not k.startswith(clocks)
        }


def updates_of(model: str) -> int:
    """Return the number of updates of an iteration."""
    return configured(model, Path("x")).training.epochs


@pytest.mark.integration
@pytest.mark.parametrize("model", ["nft", "lora", "vlm", "image-tokens"])
def test_copy_shares_frozen_parameters_and_owns_trained_ones(model, tmp_path):
    config = configured(model, tmp_path)
    policy = build_policy(config.policy, config.sampling, config.media)
    sampler = sampling_copy(policy)
    trained, copied = policy.parameters_to_train(), sampler.parameters_to_train()
    assert trained.keys() == copied.keys()
    assert not any(trained[name].data_ptr() == copied[name].data_ptr() for name in trained)
    owners = [(each.pipeline.components.values() if model in ("nft", "lora") else [each._model])
              for each in (policy, sampler)]  # fmt: skip
    frozen = [
        {p.data_ptr() for each in own if isinstance(each, torch.nn.Module) for p in each.parameters()} for own in owners
    ]
    ours = {p.data_ptr() for p in trained.values()}
    assert frozen[0] & frozen[1] == frozen[0] - ours


@pytest.mark.integration
def test_process_wide_randomness_is_noticed_before_an_update(tmp_path, monkeypatch):
    from diffusers import StableDiffusion3Pipeline

    prepare = StableDiffusion3Pipeline.prepare_latents

    def careless(self, *args, **kwargs):
        torch.rand(1)
        return prepare(self, *args, **kwargs)

    monkeypatch.setattr(StableDiffusion3Pipeline, "prepare_latents", careless)
    with pytest.raises(RunError, match=r"run\.overlap: this model draws from a random generator of the whole process"):
        train(configured("nft", tmp_path, "run.overlap.lag=1"))


@pytest.mark.parametrize(
    ("model", "overrides", "says"),
    [
        ("nft", ["algorithm={name: refl}"], "run.overlap.lag: refl differentiates"),
        ("nft", ["algorithm={name: sft}", "rewards=[]"], "run.overlap.lag: sft learns from demonstrations"),
        ("vlm", ["pretraining={iterations: 1}"], "run.overlap.lag: pretraining changes the objective"),
        ("flow-grpo", ["sampling.transition={name: native}"], "run.overlap.lag: sampling.transition.name native"),
        ("vlm", ["run.overlap.stream=true", "training.updates=2"], "run.overlap.stream: an iteration is one update"),
        (
            "vlm",
            ["run.overlap.stream=true", "algorithm={name: reinforce_pp}"],
            "run.overlap.stream: algorithm.advantage",
        ),
        (
            "vlm",
            ["run.overlap.stream=true", "algorithm.advantage.name=gdpo", "rewards=[{name: numeric}, {name: thinks}]"],
            "run.overlap.stream: gdpo whitens advantages over the answers of an iteration",
        ),
        ("vlm", ["run.overlap.stream=true", "data.replay={name: success}"], "run.overlap.stream: data.replay waits"),
        ("vlm", ["run.overlap.stream=true", "algorithm={name: online_dpo}"], "run.overlap.stream: online_dpo chooses"),
    ],
)
def test_what_cannot_overlap_is_refused_by_key(model, overrides, says, tmp_path):
    with pytest.raises(ConfigError, match=says.replace(".", r"\.")):
        check(configured(model, tmp_path, "run.overlap.lag=1", *overrides))


@pytest.mark.integration
@pytest.mark.parametrize("overlap", ["{lag: 1}", "{stream: true}"])
def test_rewards_do_not_ask_a_policy_that_is_updated_meanwhile(overlap, tmp_path):
    votes = "rewards=[{name: own_votes, args: {model: policy}}]"
    with pytest.raises(ConfigError, match=r"run\.overlap: a reward asks the model policy about answers while it is"):
        train(configured("vlm", tmp_path, f"run.overlap={overlap}", votes))


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.overlap.stream=true", r"run\.overlap\.stream: it trains with one"),
        ("run.place=window", r"run\.place: window"),
    ],
)
def test_several_processes_are_refused_where_they_cannot_overlap(override, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        check_processes(configured("nft", tmp_path, "run.overlap.lag=1", override), 2)


def test_changed_lag_is_no_override_of_a_resumed_run(tmp_path):
    from mmrl.config.loading.overrides import check_resume_overrides

    with pytest.raises(ConfigError, match=r"run\.overlap\.lag cannot change on resume"):
        check_resume_overrides(["run.overlap.lag=2"])


@pytest.mark.integration
def test_copy_encodes_prompts_by_itself(tmp_path):
    """A sample that both have seen: a cache that was copied would hold prompts under the ids of other objects."""
    config = configured("vlm", tmp_path)
    from mmrl.build.datasets import load_samples
    from mmrl.build.policies import prepare_samples

    policy = build_policy(config.policy, config.sampling, config.media)
    samples = prepare_samples(
        policy, config.policy, config.answers, config.sampling, load_samples("shapeworld:vlm-development", config.media)
    )
    request = [RolloutRequest(samples[0], 2, 0)]
    first = policy.rollout(request, seed=0)
    sampler = sampling_copy(policy)
    assert not sampler._encoder._cache._prompts
    again = sampler.rollout(request, seed=0)
    assert again.token_ids == first.token_ids and policy.replay_gap(again) < 1e-4
