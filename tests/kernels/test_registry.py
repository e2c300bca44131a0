"""The choice of an op's backend: its reason, and errors that name the backend."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

import mmrl_kernels
from mmrl_kernels import registry
from mmrl_kernels.registry import Backend, KernelError, Op, choose, implementation, needs_triton

X = torch.zeros(2)
OP = Op(
    "negate",
    (
        Backend("triton", "tests.kernels.absent:negate", needs_triton),
        Backend("reference", "torch:neg"),
    ),
)


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    registry._log_choice.cache_clear()


def test_auto_falls_back_and_logs_the_reason_once(caplog):
    caplog.set_level(logging.INFO, "mmrl_kernels")
    for _ in range(2):
        assert implementation(OP, torch.ones(2)).__call__(torch.ones(2)).tolist() == [-1, -1]
    assert len(caplog.records) == 1
    assert "negate: reference (triton: x is on cpu)" in caplog.text


def test_requested_backend_is_used_or_raises(monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, "reference")
    assert choose(OP, X).reason == "requested by name"
    monkeypatch.setenv(registry.VARIABLE, "triton")
    with pytest.raises(KernelError, match="negate: triton: x is on cpu"):
        choose(OP, X)
    with pytest.raises(KernelError, match="half has no such backend; it has reference"):
        choose(Op("half", OP.backends[1:]), X)


def test_unknown_backends_raise(monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, "cuda")
    with pytest.raises(KernelError, match="MMRL_KERNELS=cuda: expected one of reference, triton, auto"):
        choose(OP, X)


def test_interpreter_makes_triton_available_on_a_cpu(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose(OP, X).backend.name == "triton"


def test_public_names_exist_and_import_no_torch():
    for name in mmrl_kernels.__all__:
        assert getattr(mmrl_kernels, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mmrl_kernels.nothing
    loaded = "import sys, mmrl_kernels; sys.exit('torch' in sys.modules or 'mmrl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded]).returncode == 0
