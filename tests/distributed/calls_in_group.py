"""Functions that several real processes call together."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from mmrl.config.training import TimeoutsConfig
from mmrl.distributed import processes
from tests.distributed.group import Group, environments
from tests.training.fork_server import ForkServer


def call_in_group(
    fork_server: ForkServer, folder: Path, count: int, function: str, per_node: int | None = None
) -> list[Any]:
    """Return what each of `count` processes got from `module:function(folder)`, by rank."""
    join = "tests.distributed.calls_in_group:join_and_call"
    node = {} if per_node is None else {"LOCAL_WORLD_SIZE": str(per_node)}
    group = Group([
        fork_server.call(folder, join, function, environment=each | node) for each in environments(count)
    ])  # fmt: skip
    assert group.wait() == [0] * count, group.output_text()
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(count)]


def join_and_call(function: str) -> None:
    """Join the group, call the function with the current folder, and write what it returns."""
    module, _, name = function.partition(":")
    folder = Path.cwd()
    with processes.joined(TimeoutsConfig(start=60, lateness=60)):
        found = getattr(import_module(module), name)(folder)
        (folder / f"found-{processes.rank()}.json").write_text(json.dumps(found))
