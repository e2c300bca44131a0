"""Runs whose rollout servers are killed, replaced and added while they go on: for a study.

The servers are processes on this machine that write with the embedded model, one prompt at a time. The answers to a
prompt take a given time, for most of which this machine waits, as for a GPU that another one has.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import httpx
import torch
from safetensors.torch import load_file

from mmrl.config import load_config
from mmrl.config.train import TrainConfig
from mmrl.errors import RunError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.trackers import read_metrics
from mmrl.workflows.train import train
from mmrl_shapeworld.serving import stub_server
from mmrl_shapeworld.shipped_models import REASONERS

SIZES = ("data.validation=null", "evaluation={}", "run.display=quiet", "sampling.max_new_tokens=32")
PROMPTS, ANSWERS = 8, 4
"""Prompts of an iteration, and answers to each."""
ITERATIONS, EVENT, SAVED = 10, 6, 3
"""Iterations; the one in whose rollout a server is killed or added; those after which the run is saved."""
SECONDS = 0.4
"""The time of a server for one prompt."""
ABSENCE_S = 2.0
"""The time until a killed server is replaced."""
SETTLED = 1
"""Rollouts after the beginning and after an event that are left out of the shortest ones."""

Event = Literal["none", "replaced", "added"]


@dataclass
class Pool:
    """Servers, and the file that names them."""

    file: Path
    servers: dict[str, Any] = field(default_factory=dict)  # processes by address, in their order
    requests: dict[str, int] = field(default_factory=dict)  # those for answers before the last server came

    def start(self, seconds: float = SECONDS) -> str:
        """Start a server that takes `seconds` for a prompt, and return its address once it answers."""
        with closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([stub_server.__name__])
        server = context.Process(target=_serve, args=(port, seconds), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{port}"
        while not _answers(url):
            if not server.is_alive():
                raise RunError(f"the server at {url} ended before it answered")
            time.sleep(0.05)
        self.servers[url] = server
        return url

    def kill(self, url: str) -> None:
        """End a server by SIGKILL, with the answers that it is writing."""
        server = self.servers.pop(url)
        server.kill()
        server.join()

    def publish(self) -> tuple[str, ...]:
        """Write the addresses into the file, and return them."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(f"{url}\n" for url in self.servers), encoding="utf-8")
        fresh.replace(self.file)
        return tuple(self.servers)

    def add(self, seconds: float = SECONDS) -> None:
        """Start a server, and write its address into the file."""
        self.start(seconds)
        self.requests = {url: _requests(url) for url in self.servers}
        self.publish()

    def share_of_last(self) -> float:
        """Return the share of the requests for answers, since the last server came, that it got."""
        got = {url: _requests(url) - self.requests.get(url, 0) for url in self.servers}
        return got[list(got)[-1]] / sum(got.values())


@contextmanager
def pool_of(count: int, file: Path) -> Iterator[Pool]:
    """Give a pool of servers while open."""
    pool = Pool(file)
    try:
        for _ in range(count):
            pool.start()
        pool.publish()
        yield pool
    finally:
        for url in list(pool.servers):
            pool.kill(url)


def elastic_run(
    seed: int, servers: int = 2, event: Event = "none", file: bool = True, slower: float = 1.0
) -> dict[str, list[float]]:
    """Train with some servers, one of which is killed and replaced, or another one added, in the middle of a rollout.

    The one that is added takes `slower` times as long for a prompt.

    Without `file` the servers of a run are fixed. When none of them is left the run ends, and is resumed from its last
    checkpoint with those that there are then; the time in which the program would start again is not counted.

    Returns:
        `fingerprint`: the product of all parameters with fixed random numbers. `reward`: the mean of all iterations.
        `seconds`: of the whole run. `speedup`: the shortest rollout before the event over the shortest after it, in
        time. `share`: of the requests since the last server came, those to it. `written_again`: prompts whose answers
        were lost with a server, or are of iterations that were repeated.
    """
    with TemporaryDirectory() as root, pool_of(servers, Path(root) / "servers.txt") as pool:
        run, again = Path(root) / "run", 0
        operator = threading.Thread(target=_operate, args=(run, pool, event, slower), daemon=True)
        started = time.perf_counter()
        operator.start()
        try:
            train(_config(seed, run, pool, file))
        except RunError:
            if file or event != "replaced":
                raise
            operator.join()
            again = PROMPTS * (len(read_metrics(run)) - Checkpoints(run).load_state().step)
            train(_config(seed, run, pool, file), resume=run)
        seconds = time.perf_counter() - started
        rows = read_metrics(run)
        rollouts = [float(row["seconds/rollout"]) for row in rows]
        before, after = rollouts[SETTLED : EVENT - 1], rollouts[EVENT + SETTLED :]
        return {
            "fingerprint": [_fingerprint(run)],
            "reward": [mean(float(row["reward/total"]) for row in rows)],
            "seconds": [seconds],
            "speedup": [min(before) / min(after)],
            "share": [pool.share_of_last()],
            "written_again": [again + sum(float(row["served/dealt_again"]) for row in rows)],
        }


def _config(seed: int, run: Path, pool: Pool, file: bool) -> TrainConfig:
    urls = pool.publish()
    where = f"file: {pool.file}" if file else f"urls: [{', '.join(urls)}]"
    return load_config(
        "shapes-reasoning",
        [
            *SIZES,
            f"seed={seed}",
            f"data={{path: 'shapeworld:sums-train', groups: {PROMPTS}, group_size: {ANSWERS}, micro_batch: {ANSWERS}}}",
            "algorithm.mismatch.cap=2.0",
            f"training={{iterations: {ITERATIONS}, save_every: {SAVED}}}",
            f"run.servers={{{where}, weights: folder, concurrency: 1, probes: 1}}",
            f"run.dir={run}",
        ],
    )


def _operate(run: Path, pool: Pool, event: Event, slower: float) -> None:
    """Wait for the middle of a rollout, then do to the pool what an operator or an accident does."""
    if event == "none":
        return
    while len(read_metrics(run)) < EVENT - 1:
        time.sleep(0.02)
    first = next(iter(pool.servers))
    if event == "added":
        pool.add(SECONDS * slower)
        return
    requests = _requests(first)
    while _requests(first) < requests + 3:  # after the proof and a prompt
        time.sleep(0.02)
    pool.kill(first)
    pool.publish()
    time.sleep(ABSENCE_S)
    pool.add()


def _serve(port: int, seconds: float) -> None:
    """Serve until this process is killed, or the one that started it ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    stub_server.serve({"sums": str(REASONERS["sums"])}, [port], seconds=seconds)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def _requests(url: str) -> int:
    """Return the number of requests for answers to a server."""
    return list(httpx.get(f"{url}/_stub/log").json()).count("/inference/v1/generate")


def _fingerprint(run: Path) -> float:
    values = load_file(Checkpoints(run).path() / "trainer" / "parameters.safetensors")
    flat = torch.cat([values[name].flatten().double() for name in sorted(values)])
    return float(flat @ torch.randn(len(flat), generator=torch.Generator().manual_seed(0), dtype=torch.float64))
