"""`mmrl.components.Registry`: names without imports, loading from packages and files, and its errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mmrl.components import Registry
from mmrl.errors import ConfigError

GROUP = "mmrl.test_components"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder on `sys.path` with a package of two components, one of them offered as an entry point."""
    (tmp_path / "other_package.py").write_text("class Square:\n    sides = 4\n\n\nclass Circle:\n    sides = 0\n")
    offer(tmp_path, "other-package", "square = other_package:Square")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("other_package", None)


def offer(folder, name: str, *lines: str, group: str = GROUP) -> None:
    """Write the metadata of an installed distribution with these entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def shapes(**built_in: str) -> Registry:
    return Registry(GROUP, "shape", built_in)


def test_registry_lists_built_in_then_installed_names_without_imports(package):
    registry = shapes(line="no_such_module:Line")
    assert registry.names() == ["line", "square"]
    assert "line" in registry and "square" in registry and "some/file.py:Thing" in registry
    assert "sqare" not in registry and 3 not in registry
    assert "other_package" not in sys.modules


def test_registry_loads_built_in_installed_and_file_components(package, monkeypatch):
    registry = shapes(line="fractions:Fraction")
    assert registry.load("line").__name__ == "Fraction"
    assert registry.load("square").sides == 4
    assert registry.place("square") == "other_package:Square"
    monkeypatch.chdir(package)
    circle = registry.load("other_package.py:Circle")
    assert circle.sides == 0
    assert registry.load("./other_package.py:Circle") is circle  # an unchanged file is imported once


def test_changed_files_are_imported_again(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    value = 1\n")
    assert shapes().load(f"{file}:Mine").value == 1
    file.write_text("class Mine:\n    value = 2\n")
    assert shapes().load(f"{file}:Mine").value == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sqare", "there is no shape 'sqare': did you mean square?"),
        ("zzz", "there is no shape 'zzz': known are line, square"),
        ("line", "the shape 'line' cannot be imported from no_such_module:Line"),
        ("mine.py", "mine.py: name the shape in the file too, as in mine.py:MyComponent"),
        ("mine.py:Thing", "mine.py: no such file; paths are relative to"),
        ("other_package.py:Sqare", "other_package.py has no 'Sqare'; did you mean Square?"),
        ("broken.py:Thing", "broken.py cannot be imported: ZeroDivisionError"),
    ],
)
def test_registry_errors_name_the_kind_and_the_remedy(package, monkeypatch, name, message):
    (package / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(package)
    with pytest.raises(ConfigError) as caught:
        shapes(line="no_such_module:Line").load(name)
    assert message in str(caught.value)


def test_names_offered_by_two_packages_are_ambiguous(package):
    offer(package, "third-package", "square = other_package:Circle")
    with pytest.raises(ConfigError, match="several packages offer the shape 'square'"):
        shapes().load("square")


def test_components_of_another_kind_are_rejected(package):
    registry = Registry(GROUP, "shape", {"line": "fractions:Fraction"}, base="decimal:Decimal")
    with pytest.raises(ConfigError, match="fractions:Fraction is not a shape: it must derive from decimal:Decimal"):
        registry.load("line")


def test_the_registry_imports_no_torch():
    code = "import mmrl.components, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
