"""A model or a device that is not there is named before anything is loaded."""

import pytest

from mmrl.build.policies import build_policy
from mmrl.build.readiness import missing
from mmrl.config import load_config
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.config.sampling import SamplingConfig, TokenSamplingConfig
from mmrl.errors import ConfigError


@pytest.mark.parametrize(
    ("policy", "sampling"),
    [(PolicyConfig(model="./none"), SamplingConfig()), (VLMConfig(model="./none"), TokenSamplingConfig())],
)
def test_a_path_without_a_folder_is_named(policy, sampling, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        build_policy(policy, sampling)
    assert str(error.value) == f"policy.model: ./none: there is no such folder; relative paths start at {tmp_path}"


def test_a_dry_run_names_a_folder_that_is_not_there():
    (problem,) = missing(load_config("quickstart", ["policy.model=./none"]))
    assert problem.startswith("policy.model: ./none: there is no such folder")


def test_a_dry_run_names_the_data_sets_of_pretraining_and_of_terms_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mix = "{name: mix, terms: [{name: grpo}, {name: sft, path: %s.jsonl}]}"
    stage = "stages=[{iterations: 1, algorithm: %s}]" % (mix % "third")
    words = ["pretraining={iterations: 1, path: first.jsonl}", "algorithm=" + mix % "second", stage]
    found = missing(load_config("shapes-reasoning", words))
    assert [problem.partition(".jsonl")[0] for problem in found] == [
        "pretraining.path: first",
        "algorithm.terms.1.path: second",
        "stages.0.algorithm.terms.1.path: third",
    ]


def test_an_unknown_device_is_named():
    with pytest.raises(
        ConfigError, match=r"^policy.device: tpu cannot be used on this machine \(.*\): set auto, or cpu$"
    ):
        build_policy(PolicyConfig(model="shapeworld", device="tpu"), SamplingConfig())
