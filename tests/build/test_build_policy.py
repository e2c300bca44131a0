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


def test_an_unknown_device_is_named():
    with pytest.raises(
        ConfigError, match=r"^policy.device: tpu cannot be used on this machine \(.*\): set auto, or cpu$"
    ):
        build_policy(PolicyConfig(model="shapeworld", device="tpu"), SamplingConfig())
