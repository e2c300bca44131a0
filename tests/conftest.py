"""Settings of every test: one thread per process, no network, fixed random seeds."""

from __future__ import annotations

import gc
import os

# Before anything imports torch, transformers or huggingface_hub: they read these once.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["WANDB_MODE"] = "disabled"

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from tests.training.fork_server import ForkServer, own_fork_server

# What imports and collection make stays until the end: the collector would only look at it again and again.
gc.disable()

# No deadline: torch's first call is slow. `make test` tries few cases of each property, `make test-all` many.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first: at the end, a worker would run them while the others wait."""
    items.sort(key=lambda item: item.path.name != "test_learning.py")


def pytest_collection_finish() -> None:
    """From here on the collector looks at what tests make, and at nothing else."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same state of all three global generators."""
    import torch  # here, because the process that starts the workers runs no test

    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # the function above also writes down the stack, a millisecond a test, for a GPU that is not there
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def fork_server() -> ForkServer:
    """Starts the real program at the price of a fork; everything heavy is imported once for all workers."""
    return own_fork_server()
