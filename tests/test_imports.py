"""The package and its help open at once: nothing heavy loads before a command needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "diffusers", "numpy", "PIL")
NOTHING = ""
EMPTY_HELP = """
import sys
import typer
app = typer.Typer()
app.command()(lambda: None)
sys.argv = ["empty", "--help"]
try:
    app()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
"""The help of an empty program of the same library."""
MORE_MODULES = 100
"""Modules that may load beside those of the empty program: counted, as seconds depend on what else a machine does."""

IMPORT = "import mmrl"
HELP = """
import sys
from mmrl.cli import main
sys.argv = ["mmrl", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
REPORT = "\nimport sys; print('loaded:', *sorted(sys.modules))"


def loaded_modules(code: str) -> set[str]:
    """The names in `sys.modules` of a new process at the end of `code`."""
    done = subprocess.run([sys.executable, "-c", code + REPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("loaded:")[2].split())


@pytest.mark.integration
@pytest.mark.parametrize(("code", "empty"), [(IMPORT, NOTHING), (HELP, EMPTY_HELP)], ids=["import mmrl", "mmrl --help"])
def test_import_and_help_load_little_and_no_torch(code, empty):
    loaded = loaded_modules(code)
    assert "mmrl" in loaded
    assert not loaded & set(HEAVY)
    assert len(loaded - loaded_modules(empty)) <= MORE_MODULES


def test_subpackages_import_by_name_and_load_torch():
    loaded = loaded_modules("import mmrl.config, mmrl.data, mmrl.rewards, mmrl.algorithms, mmrl_kernels")
    assert {"mmrl", "mmrl_kernels", "torch"} <= loaded
