"""Models and data of installed packages: found by their scheme, and a scheme that no package provides is an error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mmrl.build import schemes
from mmrl.build.datasets import load_samples
from mmrl.build.model_references import resolve_model
from mmrl.build.policies import resolve_model_path
from mmrl.config.loading.load import dump_config, load_config
from mmrl.config.policy import PolicyConfig, VLMConfig
from mmrl.errors import ConfigError, RunError
from mmrl.workflows.compare.inputs import SampleSource, read_samples

PACKAGE = """
from pathlib import Path
from mmrl.data.sample import Sample

def model_folder(name, kind):
    if name != "large":
        raise KeyError(f"my_world has no model {name}, only large")
    return Path(__file__).parent / "weights" / kind

def samples(split):
    return [Sample(id=split, prompt="a red circle")]

class Data:
    validation = {"pipeline": "my_world:dev"}
"""


@pytest.fixture
def my_world(tmp_path, monkeypatch) -> Path:
    """A package that is installed beside mmrl."""
    (tmp_path / "my_world").mkdir()
    (tmp_path / "my_world/__init__.py").write_text(PACKAGE + "\nDATA = Data()\n")
    info = tmp_path / "my_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-world\nVersion: 1.0\n")
    groups = {"models": "model_folder", "datasets": "samples", "benchmark_data": "DATA"}
    points = [f"[mmrl.{group}]\nmy_world = my_world:{name}\n" for group, name in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_world", None)


def test_packages_provide_models_and_data(my_world):
    found = resolve_model_path(PolicyConfig(model="my_world:large"))
    assert found.model == str(my_world / "my_world/weights/pipeline")
    assert schemes.folder_in_package("my_world:large", "vlm") == "my_world/weights/vlm"
    assert [sample.id for sample in load_samples("my_world:dev")] == ["dev"]
    assert [sample.id for sample in read_samples(SampleSource.find("my_world"))] == ["dev"]
    assert set(schemes.MODELS.names()) == {"my_world", "shapeworld"}


def test_missing_package_models_raise_with_their_key(my_world):
    with pytest.raises(ConfigError, match=r"policy\.model: my_world has no model small, only large"):
        resolve_model_path(PolicyConfig(model="my_world:small"))
    with pytest.raises(
        ConfigError,
        match=r"no vlm shapeworld:unet ships: .* shapeworld, .*shapeworld:screens, .*shapeworld:zoom, shapeworld:pages",
    ):
        resolve_model_path(VLMConfig(model="shapeworld:unet"))


def test_unknown_schemes_raise_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"policy\.model: no installed package provides mars:large .*; known: shape"):
        resolve_model_path(PolicyConfig(model="mars:large"))
    with pytest.raises(ConfigError, match=r"data: no installed package provides mars:train .*; known: shapeworld"):
        load_samples("mars:train")


@pytest.mark.parametrize("model", ["org/model", "folder/model", "C:\\models\\tiny", "model"])
def test_folders_and_hub_ids_are_unchanged(model):
    assert resolve_model_path(PolicyConfig(model=model)).model == model
    assert schemes.scheme_of(model) is None


def test_every_override_names_a_shipped_protocol():
    from mmrl.benchmarks.protocol import load_protocol, protocol_names
    from mmrl_shapeworld.benchmarks import BENCHMARK_DATA, formats

    assert set(formats._all_overrides()) <= set(protocol_names())
    for name in protocol_names():
        changed = load_protocol(name).overridden(BENCHMARK_DATA.overrides(name))
        assert len({metric.label for metric in changed.metrics}) == len(changed.metrics)


def test_a_run_in_a_folder_with_an_at_sign_is_a_run(tmp_path):
    run = tmp_path / "me@host" / "run"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(load_config("quickstart")))
    assert resolve_model(f"{run}@base").run is not None
    with pytest.raises(RunError, match="checkpoint"):
        resolve_model(str(run))
