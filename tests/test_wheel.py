"""The wheel works away from the repository and contains the recipes, the kernels and ShapeWorld, but no tools."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(repository)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("elsewhere") / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*install, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def run_installed(installed: Path, code: str, *arguments: str) -> str:
    """Run `code` from another folder with the installed copy first on the path."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=installed.parent,
        env=os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.integration
def test_wheel_contains_the_files_of_the_repository_and_declares_licence_and_command(repository, wheel):
    """The files are every code file, recipe, published result, weight and type marker, and nothing but them."""
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        prefix + path.relative_to(folder).as_posix()
        for folder, prefix in (
            (repository / "mmrl", "mmrl/"),
            (repository / "kernels" / "mmrl_kernels", "mmrl_kernels/"),
            (repository / "shapeworld" / "mmrl_shapeworld", "mmrl_shapeworld/"),
            (repository / "configs", "mmrl/_configs/"),
            (repository / "docs" / "results" / "studies", "mmrl/_results/"),
        )
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }
    assert {"mmrl/__init__.py", "mmrl/py.typed", "mmrl_kernels/__init__.py", "mmrl_kernels/py.typed"} <= expected
    assert files == expected and "mmrl_shapeworld/benchmarks/overrides.yaml" in files
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (points,) = [name for name in names if name.endswith("dist-info/entry_points.txt")]
        assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
        declared = archive.read(points).decode()
        assert "mmrl = mmrl.cli:main" in declared
        groups = ("models", "datasets", "benchmark_data", "rewards", "environments")
        assert all(f"[mmrl.{group}]" in declared for group in groups)


@pytest.mark.integration
def test_installed_copy_is_imported_and_lists_its_recipes_outside_the_repository(installed):
    code = "import mmrl, mmrl_kernels; print(mmrl.__file__); print(mmrl_kernels.__file__)"
    files = [Path(line) for line in run_installed(installed, code).split("\n") if line]
    assert files == [installed / "mmrl" / "__init__.py", installed / "mmrl_kernels" / "__init__.py"]

    code = "import sys; from mmrl.cli import main; sys.argv[0] = 'mmrl'; main()"
    listed = run_installed(installed, code, "recipes", "list")
    assert "quickstart" in listed
