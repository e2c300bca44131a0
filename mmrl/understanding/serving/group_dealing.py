"""Groups are dealt to several servers at once; the others answer those of a server that fails or falls silent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import ceil
from typing import Any

from mmrl.config.servers import ServersConfig
from mmrl.errors import RunError
from mmrl.understanding.serving.generate_messages import (
    AnswerTokens,
    GroupAnswers,
    GroupCall,
    WeightName,
    read_answers,
    request_body,
)
from mmrl.understanding.serving.group_board import GroupBoard
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.serving.server_list import ServerList
from mmrl.understanding.serving.vllm_client import VLLMClient

log = logging.getLogger(__name__)

POLL_S = 0.02
"""The wait of a server without a group for one that is given back."""
BACKOFF_S = 0.25
"""The wait before a request is repeated, doubled each time."""
READ_S = 1.0
"""The time between two looks into the file of servers, while answers are written."""
HEALTH_POLLS = 5
"""Requests for `/health` in the longest silence; a server is lost after this many in a row without an answer."""

BringUp = Callable[[VLLMClient], Awaitable[WeightName]]
"""A function that gives a server the current weights, proves them, and returns their name."""


@dataclass(frozen=True)
class Renewal:
    """The change of a server's weights while it writes answers."""

    renew: Callable[[VLLMClient], Awaitable[None]]  # gives a server newer weights, if there are some
    loaded: Mapping[str, int]  # the updates before each version since the answers began; it grows


async def ask(
    client: VLLMClient,
    call: GroupCall,
    tokens: AnswerTokens,
    name: WeightName,
    loaded: Mapping[str, int] | None = None,
) -> GroupAnswers:
    """Ask a server for the answers to one prompt; `loaded` as in `read_answers`.

    Raises:
        ServerFailure, DataError: see `read_answers`.
    """
    reply = await client.generate(request_body(call, tokens, name.model))
    return read_answers(reply, call, tokens, name, client.url, loaded)


async def ask_again(
    client: VLLMClient, call: GroupCall, tokens: AnswerTokens, name: WeightName, retries: int
) -> GroupAnswers:
    """Ask a server, and again up to `retries` times where it failed in passing."""
    for attempt in range(retries):
        try:
            return await ask(client, call, tokens, name)
        except ServerFailure as err:
            if not err.transient:
                raise
            await asyncio.sleep(wait_s(err, attempt))
    return await ask(client, call, tokens, name)


class GroupDealer:
    """The requests of one rollout, over all servers.

    Servers that join while answers are written take the groups that wait; those that leave end the groups that they
    have, and take no others.
    """

    def __init__(
        self,
        calls: Sequence[GroupCall],
        tokens: AnswerTokens,
        settings: ServersConfig,
        servers: ServerList,
        doubtful: Collection[str] = (),
    ) -> None:
        """`doubtful`: servers that were lost at the last rollout, which the others do not wait for."""
        self._calls, self._tokens, self._settings, self._servers = calls, tokens, settings, servers
        self._board: GroupBoard[GroupAnswers] = GroupBoard(len(calls))
        self._settled = set(doubtful)  # servers that have the weights, or were lost
        self._live: set[str] = set()
        self._none_since: float | None = None  # since when no server has had the weights, with a file of servers
        self.named: tuple[str, ...] = ()
        """The servers that the run may use, at the last look."""
        self.lost: dict[str, ServerFailure] = {}
        """The servers that were lost, and why."""
        self.dealt_again = 0
        """Groups that were with a lost server."""
        self._renewal: Renewal | None = None

    async def answers(self, bring_up: BringUp, renewal: Renewal | None = None) -> list[GroupAnswers]:
        """Return the answers to all groups, in order; with `renewal`, servers may get newer weights meanwhile.

        Raises:
            RunError: no server is left, or a group failed at every attempt.
            DataError: a server reads a prompt as other tokens than the trainer.
        """
        self._renewal = renewal
        tasks: dict[asyncio.Task[ServerFailure | None], str] = {}
        async with AsyncExitStack() as stack:
            try:
                while not self._board.complete:
                    self.named = self._servers.now()
                    for url in self._to_use(tasks.values()):
                        client = await stack.enter_async_context(VLLMClient(url, self._settings))
                        tasks[asyncio.create_task(self._use(client, bring_up))] = url
                    if not tasks:
                        await self._wait_for_a_server()
                        continue
                    wait_s = None if self._servers.file is None else READ_S
                    done, _ = await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        self._note_end(tasks.pop(task), task.result())
            finally:
                await _cancel(list(tasks))
        self.dealt_again = self._board.dealt_again
        return self._board.answers()

    def _to_use(self, used: Collection[str]) -> list[str]:
        """Return the servers to begin with now: those that are named, and are neither in use nor were lost."""
        self.lost = {url: failure for url, failure in self.lost.items() if url in self.named}
        return [url for url in self.named if url not in used and url not in self.lost]

    async def _wait_for_a_server(self) -> None:
        """Let those that were lost be tried again after a while.

        Raises:
            RunError: the servers are fixed, or none has had the weights for `timeouts.replacement`.
        """
        reasons = "; ".join(str(failure) for failure in self.lost.values())
        if self._servers.file is None:
            raise RunError(f"run.servers: no server is left that writes answers: {reasons}")
        now, patience = time.monotonic(), self._settings.timeouts.replacement
        if self._none_since is None:
            self._none_since = now
            log.warning("No server is left (%s). The run waits %g s for one that %s names",
                        reasons or "all have left", patience, self._servers.file)  # fmt: skip
        if now - self._none_since > patience:
            raise RunError(
                f"run.servers.file: no server of {self._servers.file} could write answers for {patience:g} s "
                f"(run.servers.timeouts.replacement): {reasons or 'it names none'}"
            )
        await asyncio.sleep(READ_S)
        self.lost.clear()

    def _note_end(self, url: str, failure: ServerFailure | None) -> None:
        self._settled.add(url)
        self._live.discard(url)
        if failure is None:
            return
        self.lost[url] = failure
        again = self._board.lose(url)
        if self._none_since is None and set(self.named) - set(self.lost):
            log.warning("%s. The others write its %d groups of this rollout; it is tried again at the next one",
                        failure, again)  # fmt: skip

    async def _use(self, client: VLLMClient, bring_up: BringUp) -> ServerFailure | None:
        """Let a server answer groups until all are answered, under watch; return why it was lost, or None."""
        watch = asyncio.create_task(self._watch(client))
        work = asyncio.create_task(self._work(client, bring_up))
        try:
            done, _ = await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ServerFailure as err:
            return err
        finally:
            await _cancel([watch, work])
        return None

    async def _work(self, client: VLLMClient, bring_up: BringUp) -> None:
        """Give a server the weights and let it answer; once more where it turns out to have lost them."""
        for attempt in range(self._settings.retries + 1):
            try:
                name = await bring_up(client)
                await self._wait_for_others(client.url)
                await self._answer_all(client, name)
                return
            except ServerFailure as err:
                if err.kind != "lost_weights" or attempt == self._settings.retries:
                    raise
                self._board.lose(client.url)
                log.warning("%s: it was restarted or reloaded, and is given the weights again", err)

    async def _wait_for_others(self, url: str) -> None:
        """Wait until every server can take groups, so that the first one does not take them all, but not for long."""
        self._settled.add(url)
        self._live.add(url)
        self._none_since = None
        for _ in range(ceil(self._settings.timeouts.connect / POLL_S)):
            if self._settled.issuperset(self.named):
                return
            await asyncio.sleep(POLL_S)

    async def _answer_all(self, client: VLLMClient, name: WeightName) -> None:
        """Run the workers of a server until all groups are answered, or it leaves."""
        count = min(self._settings.concurrency, ceil(len(self._calls) / len(self._live)))
        workers = [asyncio.create_task(self._answer(client, name)) for _ in range(count)]
        if self._renewal is not None:
            workers.append(asyncio.create_task(self._renew(client, self._renewal)))
        try:
            await asyncio.gather(*workers)
        finally:
            await _cancel(workers)

    def _goes_on(self, url: str) -> bool:
        """Return whether a server may take groups: some are left, and it has not left the run."""
        return url in self.named and not self._board.complete

    async def _renew(self, client: VLLMClient, renewal: Renewal) -> None:
        """Give a server newer weights whenever there are some, while it answers.

        A renewal that has begun is finished: a server that is left paused would answer nothing.
        """
        while self._goes_on(client.url):
            await renewal.renew(client)
            await asyncio.sleep(POLL_S)

    async def _answer(self, client: VLLMClient, name: WeightName) -> None:
        """Answer one group after another."""
        loaded = None if self._renewal is None else self._renewal.loaded
        while self._goes_on(client.url):
            group = self._board.take(client.url, alone=len(self._live) == 1)
            if group is None:
                await asyncio.sleep(POLL_S)
                continue
            try:
                answers = await ask(client, self._calls[group], self._tokens, name, loaded)
            except ServerFailure as err:
                if not err.transient:
                    raise
                if err.broke:
                    await client.health()  # where it fails the server is lost, and its group with it
                failed = self._board.give_back(group)
                if failed > self._settings.retries:
                    sample = self._calls[group].wire.sample_id
                    raise RunError(f"run.servers: sample {sample!r} failed {failed} times, at last {err}") from err
                await asyncio.sleep(wait_s(err, failed))
                continue
            self._board.finish(group, answers)

    async def _watch(self, client: VLLMClient) -> None:
        """Raise ServerFailure once the server has not answered for `timeouts.silence`."""
        silence, unanswered = self._settings.timeouts.silence, 0
        while True:
            try:
                await client.health(silence / HEALTH_POLLS)
                unanswered = 0
            except ServerFailure as err:
                unanswered += 1
                if unanswered >= HEALTH_POLLS or err.kind.startswith("http_"):
                    raise client.failure("silence", f"it has not answered for {silence:g} s ({err.text})") from err
                if err.kind == "timeout":
                    continue
            await asyncio.sleep(silence / HEALTH_POLLS)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def wait_s(err: ServerFailure, attempt: int) -> float:
    return min(30.0, err.wait_s or BACKOFF_S * 2**attempt)
