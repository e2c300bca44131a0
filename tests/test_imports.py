"""The package and its help open at once: nothing heavy loads before a command needs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "diffusers", "numpy", "PIL")
EMPTY = """
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
"""The help of an empty program of the same library, against which CPU time is measured: a busy machine slows both."""
CPU_RATIO = 2.0

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
REPORT = "\nimport sys; print('loaded:', *sorted({name.partition('.')[0] for name in sys.modules}))"


def run_python(code: str) -> tuple[set[str], float]:
    """The top-level modules that `code` has loaded at its end, and the CPU time of the whole process in seconds."""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", code + REPORT], capture_output=True, text=True, check=False)
    after = os.times()
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("loaded:")[2].split())
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    return loaded, spent


@pytest.mark.integration
@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import mmrl", "mmrl --help"])
def test_import_and_help_are_fast_without_torch(code):
    runs, empty = zip(*[(run_python(code), run_python(EMPTY)) for _ in range(3)], strict=True)
    loaded = runs[0][0]
    assert "mmrl" in loaded
    assert not loaded & set(HEAVY)
    assert min(seconds for _, seconds in runs) < CPU_RATIO * min(seconds for _, seconds in empty)


def test_subpackages_import_by_name_and_load_torch():
    loaded, _ = run_python("import mmrl.config, mmrl.data, mmrl.rewards, mmrl.algorithms, mmrl_kernels")
    assert {"mmrl", "mmrl_kernels", "torch"} <= loaded
