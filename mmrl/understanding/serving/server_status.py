"""The state of servers in words, for the start of a run and for `mmrl train --dry-run`."""

from __future__ import annotations

import asyncio

from mmrl.config.servers import ServersConfig
from mmrl.understanding.serving.served_engine import run_in_loop
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.serving.server_list import ServerList
from mmrl.understanding.serving.vllm_client import VLLMClient


def server_status(settings: ServersConfig) -> list[tuple[str, bool, str]]:
    """Return (URL, whether it answers, what it serves or why it does not answer) for each server.

    Raises:
        ConfigError: the variable with the servers' key is not set, or the file of servers cannot be read.
    """
    urls = ServerList(settings).read()

    async def ask_all() -> list[tuple[str, bool, str]]:
        return await asyncio.gather(*(_status(url, settings) for url in urls))

    return run_in_loop(ask_all())


async def _status(url: str, settings: ServersConfig) -> tuple[str, bool, str]:
    async with VLLMClient(url, settings) as client:
        try:
            await client.health()
            models = await client.models()
        except ServerFailure as err:
            return url, False, f"no answer: {err.text}"
    bases = [name for name, parent in models.items() if parent is None]
    adapters = len(models) - len(bases)
    return url, True, f"serves {', '.join(bases)}" + (f" and {adapters} adapters" if adapters else "")
