"""The ways in which new weights reach a server: an adapter folder, a folder of whole weights, or GPU to GPU.

All three leave a server without a trace of the version before: the name of an adapter is never used again, and the
caches of prefixes and pictures are emptied where the model's own weights change. A version gets its name last, so a
server that reports it has all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from torch import nn

from mmrl.config.servers import ServersConfig
from mmrl.understanding.serving.generate_messages import WeightName
from mmrl.understanding.serving.nccl_sender import NcclSender
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.serving.vllm_client import VLLMClient
from mmrl.understanding.serving.weight_versions import KEPT, PREFIX, VersionFolders

UPDATING = f"{PREFIX}updating"
"""The version of a server while it loads weights; it stays where that fails."""


class WeightRoute(Protocol):
    """A way of weights from the trainer to one server."""

    async def holds(self, client: VLLMClient, version: str | None) -> WeightName | None:
        """Return the name of a version if the server has it, else None; the version None is the base model."""

    async def load(self, client: VLLMClient, version: str) -> WeightName:
        """Give a version to the server, and return its name.

        Raises:
            ServerFailure: the server does not take it; it must not generate answers.
        """

    async def renew(self, client: VLLMClient, version: str) -> WeightName:
        """Give a version to a server whose answers go on under it, and return its name.

        Raises:
            ServerFailure: the server does not take it, or this route cannot change the weights of an answer.
        """


class LoraRoute:
    """A PEFT folder for each version, loaded under a name that is used once; of this run's, the last two stay loaded.

    vLLM keys its prefix cache by the adapter, so a new name finds nothing that an older version computed.
    """

    def __init__(self, folders: VersionFolders) -> None:
        self._folders = folders

    async def holds(self, client: VLLMClient, version: str | None) -> WeightName | None:
        models = await client.models()
        if version is None:
            return WeightName(_base_model(client, models), None)
        return WeightName(version, None) if version in models else None

    async def load(self, client: VLLMClient, version: str) -> WeightName:
        old = [name for name in await client.models() if name.startswith(f"{self._folders.run}-")]
        await client.load_lora(version, self._folders.path(version))
        await _unload(client, [name for name in old if name != version][: 1 - KEPT])
        if version not in await client.models():
            raise client.failure("wrong_reply", f"it loaded the adapter {version} and does not list it in /v1/models")
        return WeightName(version, None)

    async def renew(self, client: VLLMClient, version: str) -> WeightName:
        raise client.failure("wrong_reply", "an answer goes on under the adapter that it began with: choose folder")


class FolderRoute:
    """A folder of whole weights for each version, which the workers read again (`/collective_rpc`, reload_weights)."""

    def __init__(self, folders: VersionFolders) -> None:
        self._folders = folders

    async def holds(self, client: VLLMClient, version: str | None) -> WeightName | None:
        return await _name_of_version(client, version)

    async def load(self, client: VLLMClient, version: str) -> WeightName:
        await client.name_version(UPDATING)
        await client.pause()
        await client.reload_weights(self._folders.path(version))
        return await _finish(client, version)

    async def renew(self, client: VLLMClient, version: str) -> WeightName:
        """Give a version to a server whose answers go on under it.

        The server stamps each token with the name that it has when it writes it. So no token may be written while it
        has the name `UPDATING`: it is paused before, and has the new name when it goes on. Its answers lose their keys
        and values: those of older weights would give the next tokens a distribution that is of no version.
        """
        await client.pause()
        await client.name_version(UPDATING)
        await client.reload_weights(self._folders.path(version))
        await client.reset_caches(running=True)
        await client.name_version(version)
        try:
            await client.resume()
        except ServerFailure:
            with suppress(ServerFailure):
                await client.name_version(UPDATING)  # it is given the weights again before it is used
            raise
        return await _named(client, version)


class WeightSender(Protocol):
    """The trainer's end of a transfer of tensors, beside the routes that announce it."""

    def init_info(self, world_size: int) -> dict[str, object]:
        """Return what the workers of a server need to join; called once for each server."""

    def join(self) -> None:
        """Join the group, while the workers do."""

    def update_info(self) -> dict[str, object]:
        """Return the names, dtypes and shapes of the tensors, in their order."""

    def send(self) -> None:
        """Send the tensors, while the workers receive them."""


class TransferRoute:
    """vLLM's weight transfer: the routes announce an update, and a `WeightSender` moves the tensors beside them."""

    def __init__(self, senders: Mapping[str, WeightSender]) -> None:
        """`senders` are those of the servers, by URL: each server has a group with the trainer."""
        self._senders = senders
        self._joined: set[str] = set()

    async def holds(self, client: VLLMClient, version: str | None) -> WeightName | None:
        name = await _name_of_version(client, version)
        if name is None and await client.version() == "default":
            self._joined.discard(client.url)  # it was restarted
        return name

    async def load(self, client: VLLMClient, version: str) -> WeightName:
        sender = self._senders[client.url]
        await client.name_version(UPDATING)
        if client.url not in self._joined:
            info = sender.init_info(await client.world_size())
            await _together(client.init_weight_transfer_engine(info), asyncio.to_thread(sender.join))
            self._joined.add(client.url)
        await client.pause()
        await client.start_weight_update()
        await _together(client.update_weights(sender.update_info()), asyncio.to_thread(sender.send))
        await client.finish_weight_update(UPDATING)
        return await _finish(client, version)

    async def renew(self, client: VLLMClient, version: str) -> WeightName:
        raise client.failure("wrong_reply", "answers do not go on under weights that nccl brings: choose folder")


def build_route(settings: ServersConfig, folders: VersionFolders, model: nn.Module) -> WeightRoute:
    """Build `run.servers.weights`.

    Raises:
        ConfigError: a library that the route needs is missing.
    """
    if settings.weights == "lora":
        return LoraRoute(folders)
    if settings.weights == "folder":
        return FolderRoute(folders)
    return TransferRoute({url: NcclSender(model, url) for url in settings.urls})


async def _name_of_version(client: VLLMClient, version: str | None) -> WeightName | None:
    if version is None or await client.version() != version:
        return None
    return WeightName(_base_model(client, await client.models()), version)


async def _finish(client: VLLMClient, version: str) -> WeightName:
    """Empty the caches, generate again, and name the version."""
    await client.reset_caches()
    await client.resume()
    await client.name_version(version)
    return await _named(client, version)


async def _named(client: VLLMClient, version: str) -> WeightName:
    """Return the name of a version that the server reports."""
    found = await client.version()
    if found != version:
        raise client.failure("wrong_reply", f"it was given the weights {version} and reports {found}")
    return WeightName(_base_model(client, await client.models()), version)


async def _together(request: Coroutine[Any, Any, None], beside: Coroutine[Any, Any, None]) -> None:
    """Run a request and the trainer's end of it at once; a failure of either is raised."""
    tasks = [asyncio.create_task(request), asyncio.create_task(beside)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _unload(client: VLLMClient, names: Sequence[str]) -> None:
    for name in names:
        try:
            await client.unload_lora(name)
        except ServerFailure as err:
            if err.kind not in ("lost_weights", "http_404"):  # it is gone, as it should be
                raise


def _base_model(client: VLLMClient, models: dict[str, str | None]) -> str:
    base = next((name for name, parent in models.items() if parent is None), None)
    if base is None:
        raise client.failure("wrong_reply", "/v1/models lists no base model")
    return base
