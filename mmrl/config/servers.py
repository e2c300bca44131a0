"""Rollouts by `vllm serve` over HTTP: where the servers are, how weights reach them, and what is checked."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_core import PydanticCustomError

from mmrl.config.section import Section

WeightsRoute = Literal["lora", "folder", "nccl"]


def _checked_url(url: str) -> str:
    address = urlsplit(url)
    try:
        found = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # a port that is no number up to 65535
        found = False
    if not found:
        raise PydanticCustomError("server_url", "a URL such as http://127.0.0.1:8000")
    if address.path.strip("/"):
        raise PydanticCustomError("server_url", "the address of the server alone, without /v1 or another path")
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_checked_url)]


class ServerTimeoutsConfig(Section):
    """The longest waits for a server, in seconds."""

    connect: PositiveFloat = 5.0
    """For a connection."""
    silence: PositiveFloat = 20.0
    """Without an answer of `/health`, which is requested while answers are generated. Then the server is dead: its
    prompts go to the others, and without others the run stops."""
    request: PositiveFloat = 600.0
    """For the answers to one prompt."""
    update: PositiveFloat = 300.0
    """For one request that loads weights."""
    replacement: PositiveFloat = 300.0
    """With `run.servers.file`, for a server that answers, after the last one was lost or has left."""


class ServersConfig(Section):
    """Servers that write a VLM's rollouts."""

    urls: tuple[ServerUrl, ...] = ()
    """The addresses of the servers, which must serve `policy.model`. Groups are dealt to those that answer."""
    file: str | None = None
    """A file with the address of a server in each line, in the place of `urls`. It is read again while answers are
    written, so servers join and leave a run. `{rank}` in its name is the number of the trainer process, from 0."""
    weights: WeightsRoute = "lora"
    """The way of new weights to the servers. `lora`: an adapter folder for each version, with `policy.train: lora`.
    `folder`: a folder of whole weights for each version, which the server reads again. `nccl`: vLLM's weight transfer
    from GPU to GPU, for which vllm must be installed beside the trainer. The last two are for `policy.train: full`."""
    folder: str | None = None
    """The folder of versions, which the servers must see; the last two are kept. Unset: `served` in the run folder."""
    folder_on_server: str | None = None
    """The path of that folder on the servers' machine; unset: the same path."""
    api_key_env: str = ""
    """The environment variable that has the servers' key. Empty: they need none."""
    concurrency: PositiveInt = 16
    """Prompts that one server answers at once."""
    retries: NonNegativeInt = 3
    """Repetitions of a request that failed in passing: a broken connection, a server that is busy."""
    probes: PositiveInt = 4
    """Prompts by which new weights are proven before anything is learnt from them: the run's first ones."""
    max_probe_gap: PositiveFloat | None = None
    """The run stops when the log-probabilities of the probes' tokens differ by more between server and trainer, in the
    mean. Unset: by `policy.dtype`, 1e-4 in float32, 0.05 in float16 and 0.1 in bfloat16."""
    timeouts: ServerTimeoutsConfig = ServerTimeoutsConfig()
