"""The doctor command: every state of a dependency is distinguished, and each remedy is a command."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.cli import doctor as doctor_command
from mmrl.cli.doctor import DEPENDENCIES, Dependency, Finding, examine, install, requirement, shipped_weights, unusable


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder on the path, for packages that break in their own way."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def part(module: str, **more: object) -> Dependency:
    return Dependency(module, module, "a test", **more)


def test_importable_dependencies_are_ok_with_a_version():
    finding = examine(Dependency("yaml", "PyYAML", "recipes", required=True))
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.version[0].isdigit()
    assert not unusable([finding])


def test_missing_dependencies_have_an_install_command():
    finding = examine(part("mmrl_no_such_part", extra="demo"))
    assert (finding.state, finding.remedy) == ("missing", 'pip install "mmrl-suite[demo]"')


def test_unavailable_dependencies_state_the_reason():
    finding = examine(part("mmrl_no_such_part", unavailable=lambda: "no wheels"))
    assert (finding.state, finding.remedy) == ("not for here", "no wheels")


@pytest.mark.parametrize(
    "line", ["raise RuntimeError('operator\\n  torchvision::nms does not exist')", "import absent_x"]
)
def test_broken_dependencies_are_reported_in_one_line(modules, line):
    name = f"mmrl_breaks_{len(line)}"
    (modules / f"{name}.py").write_text(line)
    finding = examine(part(name, required=True))
    sys.modules.pop(name, None)
    assert finding.state == "broken"
    assert "\n" not in finding.remedy
    assert "nms does not exist" in finding.remedy or "No module named 'absent_x'" in finding.remedy
    assert finding.remedy.endswith(f'pip install --force-reinstall "{name}"')
    assert unusable([finding]) == [name]


def test_remedies_state_the_required_versions(monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ["open_clip_torch>=3.2", 'gradio>=6; extra == "demo"']
    )
    assert requirement("open-clip-torch") == "open_clip_torch>=3.2"
    assert requirement("gradio") == "gradio>=6"
    assert requirement("unheard-of") == "unheard-of"


def test_vllm_remedy_is_a_separate_environment():
    (vllm,) = (each for each in DEPENDENCIES if each.module == "vllm")
    assert install(vllm).startswith("python -m venv")


def test_doctor_checks_for_weights(tmp_path):
    home = tmp_path / "mmrl" / "shapeworld" / "weights"
    assert shipped_weights(home).state == "missing"
    assert "--force-reinstall" in shipped_weights(home).remedy
    (tmp_path / "pyproject.toml").touch()
    assert "git checkout" in shipped_weights(home).remedy
    home.mkdir(parents=True)
    (home / "model.safetensors").write_bytes(b"x" * 2_000_000)
    assert shipped_weights(home).version == "2.0 MB"


@pytest.mark.parametrize("required, code", [(True, 1), (False, 0)])
def test_doctor_fails_on_required_dependencies_only(monkeypatch, required, code):
    weights = Finding("ShapeWorld weights", "ok", "", "", required=True)
    monkeypatch.setattr(doctor_command_module(), "shipped_weights", lambda: weights)
    monkeypatch.setattr(doctor_command_module(), "DEPENDENCIES", (part("mmrl_no_such_part", required=required),))
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code, result.output
    assert 'mmrl_no_such_part: pip install "mmrl_no_such_part"' in result.stdout


def doctor_command_module():
    return sys.modules[doctor_command.__module__]


@pytest.mark.integration
def test_doctor_lists_every_dependency():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code in (0, 1)
    assert all(each.module in result.stdout for each in DEPENDENCIES)
