"""Imports go one way. The contracts are in pyproject.toml; here they are checked, and shown able to fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BREACHES = {
    "training imports a policy": (
        "mmrl/training/breach.py",
        "import mmrl.generation",
        "The loop knows policies through mmrl.policy alone",
    ),
    "a policy imports the loop": (
        "mmrl/understanding/breach.py",
        "from mmrl import training",
        "The loop knows policies through mmrl.policy alone",
    ),
    "algorithms know a policy": (
        "mmrl/algorithms/breach.py",
        "import mmrl.policy",
        "Algorithms are tensor maths",
    ),
    "algorithms know a model library": (
        "mmrl/algorithms/breach.py",
        "import transformers",
        "Algorithms are tensor maths",
    ),
    "rewards import upwards": (
        "mmrl/rewards/breach.py",
        "from mmrl import generation",
        "The house has floors",
    ),
    "an import inside a function counts": (
        "mmrl/tokens/breach.py",
        "def late():\n    import mmrl.training",
        "The house has floors",
    ),
    "a new package has no floor": ("mmrl/breach.py", "", "The house has floors"),
    "the composition root knows the embedded world": (
        "mmrl/build/breach.py",
        "import mmrl_shapeworld",
        "ShapeWorld reaches the library by entry points alone",
    ),
    "kernels know mmrl": (
        "mmrl_kernels/breach.py",
        "import mmrl",
        "Kernels know nothing of mmrl",
    ),
}


def lint_imports(folder: Path, kernels: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the packages in `folder`, which comes before the installed ones on the path."""
    env = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join([str(folder), str(kernels)])}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    return subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.integration
def test_import_contracts_are_kept(repository):
    done = lint_imports(repository, repository / "kernels")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.fixture(scope="module")
def copied_tree(repository, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(repository / "pyproject.toml", folder)
    only_code = shutil.ignore_patterns("weights", "__pycache__")
    shutil.copytree(repository / "mmrl", folder / "mmrl", ignore=only_code)
    shutil.copytree(repository / "kernels" / "mmrl_kernels", folder / "mmrl_kernels", ignore=only_code)
    return folder


@pytest.mark.integration
@pytest.mark.parametrize("breach", BREACHES)
def test_violated_contracts_are_reported(copied_tree, breach):
    path, code, contract = BREACHES[breach]
    module = copied_tree / path
    module.write_text(code + "\n")
    try:
        done = lint_imports(copied_tree, copied_tree)
    finally:
        module.unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    assert any(line.startswith(contract) and " BROKEN" in line for line in done.stdout.splitlines()), done.stdout
