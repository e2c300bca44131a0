"""Stub servers, started once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.understanding.serving.stub_process import StubProcess, stub


@pytest.fixture(scope="session")
def shared_server(folder_of: Callable[[str], Path]) -> Iterator[StubProcess]:
    """Two servers in one process: one for adapters, one for whole weights."""
    with stub(lora=folder_of("qwen3_vl"), folder=folder_of("qwen3_vl")) as process:
        yield process


@pytest.fixture
def server(shared_server: StubProcess) -> Iterator[StubProcess]:
    """The shared servers, without faults and adapters of earlier tests."""
    for number in range(2):
        shared_server.reset(number)
    yield shared_server


@pytest.fixture
def replicas(folder_of: Callable[[str], Path]) -> Iterator[list[StubProcess]]:
    """Two servers of one model, each in its own process, so that one of them can be killed or frozen."""
    started = [StubProcess({"tiny": folder_of("qwen3_vl")}) for _ in range(2)]
    for each in started:
        each.wait()
    yield started
    for each in started:
        each.kill()
