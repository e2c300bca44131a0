"""The store through which the processes of a run find one another, and the list of them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from mmrl.distributed.member import Member
from mmrl.errors import RunError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore


def torchrun_holds_store() -> bool:
    """Return True if torchrun holds the store, False if process 0 does."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def open_store(limit_s: float) -> tuple[TCPStore, int, int]:
    """Return the store, the number of this process and the number of all, as the environment describes them.

    Raises:
        RunError: a variable is missing, or the store could not be reached within `limit_s` seconds.
    """
    from torch._C._distributed_c10d import TCPStore  # absent where torch was built without torch.distributed

    try:
        rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except KeyError as err:
        raise RunError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {err} is not set: start with torchrun or accelerate "
            "launch, which set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        ) from err
    try:
        store = TCPStore(
            address,
            port,
            count,
            is_master=rank == 0 and not torchrun_holds_store(),
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,  # `wait_for_members` says which one is missing
            multi_tenant=not torchrun_holds_store(),
        )
    except (RuntimeError, ValueError) as err:  # the errors of torch.distributed are RuntimeErrors
        raise RunError(f"process {rank} could not reach the store at {address}:{port}: {err}") from err
    return store, rank, count


def wait_for_members(store: Store, rank: int, count: int, limit_s: float) -> list[Member]:
    """Wait until every process has come here; return them by rank.

    Raises:
        RunError: a process did not come within `limit_s` seconds; raised in one process.
        SystemExit: the same, in the others.
    """
    own = Member.here()
    store.set(f"member/{rank}", json.dumps(asdict(own)))
    keys = [f"member/{each}" for each in range(count)]
    last = time.monotonic() + limit_s
    while not store.check(keys):
        late = time.monotonic() > last
        if store.check(["failed"]) or (late and not claim(store, "failed", rank)):
            raise SystemExit(1)
        if late:
            missing = [str(each) for each in range(count) if not store.check([keys[each]])]
            time.sleep(1.0)  # the others read the claim, maybe from this process
            raise RunError(
                f"process {' and '.join(missing)} of {count} did not start within {limit_s:g} s of process {rank} "
                f"on {own.host}; run.timeouts.start is the limit"
            )
        time.sleep(0.1)
    return [Member(**json.loads(each)) for each in store.multi_get(keys)]


def claim(store: Store, key: str, rank: int) -> bool:
    """Return True if this process is the first one to claim the key."""
    return bool(store.compare_set(key, "", str(rank)) == str(rank).encode())
