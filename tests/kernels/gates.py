"""Checks for every Triton kernel: compiled for a Hopper GPU without one, run in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

ON_A_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
HOPPER_SHARED_BYTES = 232_448
"""The shared memory that one block may take on compute capability 9.0: 227 KiB."""


def compile_for_hopper(
    kernel: Any,  # what `@triton.jit` returned
    signature: Mapping[str, str],  # argument -> Triton's type of it: "*fp32", "*bf16", "*i64", "i32", "fp32"
    constexprs: Mapping[str, Any],  # the values of the `tl.constexpr` arguments
    num_warps: int = 4,
    num_stages: int = 3,
    divisible: Collection[str] = (),  # arguments that a launch would find to be multiples of 16, or so aligned
) -> Any:
    """Compile a kernel for sm_90 down to its cubin, and return Triton's metadata of it.

    Needs no GPU and no driver. Fails where an argument is forgotten, where ptxas refuses the kernel, and where it asks
    for more shared memory than a block may have.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    assert os.environ.get("TRITON_INTERPRET") != "1", "the interpreter's kernels cannot be compiled: unset the variable"
    known = {*signature, *constexprs}
    assert known == set(kernel.arg_names), f"{kernel.__name__} takes {kernel.arg_names}, got {sorted(known)}"
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constexprs else signature[name] for name in kernel.arg_names},
        dict(constexprs),
        {(place,): [["tt.divisibility", 16]] for place, name in enumerate(kernel.arg_names) if name in divisible},
    )
    options = {"num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert compiled.asm["cubin"], f"{kernel.__name__}: no cubin"
    shared = compiled.metadata.shared
    assert shared <= HOPPER_SHARED_BYTES, f"{kernel.__name__}: {shared} bytes of shared memory, {HOPPER_SHARED_BYTES=}"
    return compiled.metadata


def interpreted(script: str, timeout_s: float = 120) -> str:
    """Run a Python snippet in a separate process, in Triton's interpreter and with MMRL_KERNELS=triton.

    Returns what it printed; fails the test with its stderr where it fails. The process is separate because Triton
    reads the variable when it is imported.
    """
    return _run(script, timeout_s, {"TRITON_INTERPRET": "1"})


def on_a_gpu(script: str, timeout_s: float = 120) -> str:
    """Run the same snippet with tensors on CUDA, and return what it printed."""
    return _run(f"import torch\ntorch.set_default_device('cuda')\n{script}", timeout_s, {"TRITON_INTERPRET": "0"})


def _run(script: str, timeout_s: float, variables: Mapping[str, str]) -> str:
    environment = {
        **os.environ,
        **variables,
        "MMRL_KERNELS": "triton",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    finished = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert finished.returncode == 0, f"the script failed:\n{finished.stderr[-4000:]}"
    return finished.stdout
