"""`ServedEngine`: the rollouts of a VLM by `vllm serve`, from proven weights alone.

    policy.serve(ServersConfig(urls=("http://127.0.0.1:8000",)), Path("runs/a/served"))
    rollout = policy.rollout([RolloutRequest(sample, n=8, group=0)], seed=0)

Before a server writes answers it must hold the policy's version, by its own account, and have passed the proof of
`weight_proof`. A server that was restarted reports another version, is given the weights again and is proven again.

The engine holds plain data: connections are made for each rollout, in the thread that asks for it, so a copy of a
policy copies its engine. One thread at a time may use an engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from mmrl.config.policy import Precision
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.distributed import processes
from mmrl.distributed.position import position
from mmrl.errors import ConfigError, RunError
from mmrl.seeds import fold_in
from mmrl.tokens import pad_right
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.rollout_engine import GeneratedTokens
from mmrl.understanding.serving.generate_messages import AnswerTokens, GroupAnswers, GroupCall, WeightName
from mmrl.understanding.serving.group_dealing import GroupDealer, Renewal, ask_again
from mmrl.understanding.serving.interrupted_answers import interrupted_answers
from mmrl.understanding.serving.server_list import ServerList
from mmrl.understanding.serving.vllm_client import VLLMClient, read_key
from mmrl.understanding.serving.weight_proof import MAX_PROBE_GAP, NOISE, agreement, complaint, joined
from mmrl.understanding.serving.weight_routes import WeightRoute
from mmrl.understanding.serving.weight_versions import VersionFolders, weights_digest, without_adapters
from mmrl.understanding.vlm import VLM
from mmrl.understanding.vlm_replay import TokenRecording

log = logging.getLogger(__name__)

PROBE_ANSWERS, PROBE_TOKENS, PROBE_SEED = 2, 32, 20260
"""Answers to each probe, the most tokens of one, and their seed."""
MAX_SEED = 2**31
SUMMED = ("served/servers", "served/dealt_again", "served/renewed")
"""The metrics of an engine that are added over processes."""
T = TypeVar("T")


class ServedModel(Protocol):
    """The part of a policy that an engine needs to generate its answers."""

    vlm: VLM

    def write_weights(self, folder: Path) -> None:
        """Write the trained parameters into a folder, in the format that servers load."""

    def score_recording(self, recording: TokenRecording) -> Tensor:
        """Return the log-probabilities [B, T] of recorded answers under the current parameters, without gradients."""

    def reference(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes with the parameters that training started from."""


class ServedEngine:
    """An engine over one or several servers."""

    def __init__(
        self,
        settings: ServersConfig,
        folders: VersionFolders,
        route: WeightRoute,
        model: ServedModel,
        temperature: float,
        precision: Precision,
    ) -> None:
        """
        Raises:
            ConfigError: the variable with the servers' key is not set.
        """
        read_key(settings.api_key_env)
        self._settings, self._folders, self._route, self._model = settings, folders, route, model
        self._servers = ServerList(settings)
        self._temperature, self._precision = temperature, precision
        self._tokens = AnswerTokens.of(model.vlm)
        self._version: str | None = None  # of the weights that the next answers are written by; None: the base model
        self._proven: dict[str, str | None] = {}  # the version that each server was last proven with
        self._lost: set[str] = set()  # the servers that were lost at the last rollout
        self._probes: list[EncodedPrompt] = []
        self._announced: dict[tuple[str | None, int], tuple[GroupCall, GroupAnswers]] = {}  # by version and seed
        self._metrics: dict[str, float] = {}
        self._take: Callable[[], int | None] | None = None
        self._loaded: dict[str, int] = {}  # the updates before each version since the answers of a call began
        self._busy = 0  # servers that are given weights or proven now: the model must stay as it is

    def adopt(self, take: Callable[[], int | None]) -> None:
        """Give servers newer weights while they write answers, which go on under them.

        `take` is called now and then: it loads newer parameters into the model and returns the updates before them, or
        returns None.

        Raises:
            ConfigError: this route cannot change the weights of an answer.
        """
        if self._settings.weights != "folder":
            raise ConfigError(
                "run.overlap.interrupt: answers go on under new weights where run.servers.weights is folder, and it is "
                f"{self._settings.weights}"
            )
        self._take = take

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Name the current parameters, and write them where servers read them; these load them at the next request."""
        if without_adapters(policy):
            self._version = None
            return
        self._version = self._folders.name(version, weights_digest(policy))
        self._loaded[self._version] = version
        if self._settings.weights != "nccl":
            self._folders.write(self._version, self._model.write_weights)

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Generate `counts[p]` answers to prompt p; the server decides whether equal seeds give equal answers.

        Raises:
            RunError: no server is left, or one has other weights than the trainer.
            DataError: a server reads a prompt as other tokens than the trainer.
        """
        calls = _group_calls(prompts, counts, sampling, seed)
        known = [self._announced.pop((self._version, call.seed), None) for call in calls]
        if all(each is not None and each[0].equals(call) for each, call in zip(known, calls, strict=True)):
            answers = [each[1] for each in known if each is not None]
        else:
            answers = self._generate(calls)
        return GeneratedTokens(
            [ids for group in answers for ids in group.token_ids],
            [values for group in answers for values in group.log_probs],
            versions=_versions(answers),
        )

    def announce(
        self, calls: Sequence[tuple[Sequence[EncodedPrompt], Sequence[int], TokenSamplingConfig, int]]
    ) -> None:
        """Generate the answers of several calls (prompts, counts, sampling, seed) of `generate` at once.

        Raises:
            RunError, DataError: see `generate`.
        """
        groups = [group for call in calls for group in _group_calls(*call)]
        answers = self._generate(groups)
        self._announced = {(self._version, g.seed): (g, own) for g, own in zip(groups, answers, strict=True)}

    def _generate(self, calls: Sequence[GroupCall]) -> list[GroupAnswers]:
        """Let the servers answer groups, and return the answers in order."""
        if not self._probes:
            self._probes = [call.prompt for call in calls[: self._settings.probes]]
            clip = next((call.prompt for call in calls if call.prompt.videos), None)
            if clip is not None and not any(prompt.videos for prompt in self._probes):
                self._probes.append(clip)  # the times of its frames are in no token that is compared
        dealer = GroupDealer(calls, self._tokens, self._settings, self._servers, self._lost)
        self._loaded = {name: version for name, version in self._loaded.items() if name == self._version}
        renewal = None if self._take is None or self._version is None else Renewal(self._renew, self._loaded)
        try:
            answers = run_in_loop(dealer.answers(self._bring_up, renewal))
        except RunError as err:
            raise RunError(f"{err}. {_progress()}") from err
        self._lost = set(dealer.lost)
        self._metrics["served/servers"] = float(len(set(dealer.named) - set(dealer.lost)))
        self._metrics["served/dealt_again"] = self._metrics.get("served/dealt_again", 0.0) + dealer.dealt_again
        if renewal is not None:
            self._check_interrupted(calls, answers)
        return answers

    def metrics(self) -> dict[str, float]:
        """Return the metrics since the last call, over all processes: the worst of the last proofs, the number of
        servers in use, and that of groups that were dealt again."""
        parts, self._metrics = processes.gather(self._metrics), {}
        values: dict[str, list[float]] = {}
        for part in parts:
            for name, value in part.items():
                values.setdefault(name, []).append(value)
        return {
            name: sum(found) if name in SUMMED else min(found) if name == "served/probe_share" else max(found)
            for name, found in values.items()
        }

    async def _bring_up(self, client: VLLMClient) -> WeightName:
        """Give a server the current version, unless it has it, and prove it; return its name.

        Raises:
            ServerFailure: the server does not take it.
            RunError: it took it, and computes otherwise than the trainer.
        """
        await client.health(self._settings.timeouts.silence)
        with self._model_kept():
            name = await self._route.holds(client, self._version)
            if name is None:
                self._proven.pop(client.url, None)
                if self._version is None:
                    raise client.failure("wrong_reply", "it cannot serve the base model by this route of weights")
                name = await self._route.load(client, self._version)
            if client.url not in self._proven or self._proven[client.url] != self._version:
                await self._prove(client, name)
                self._proven[client.url] = self._version
        return name

    async def _renew(self, client: VLLMClient) -> None:
        """Take newer weights if there are some, and give them to a server that has older ones; prove it again.

        Raises:
            ServerFailure, RunError: see `_bring_up`.
        """
        if not self._busy and self._take is not None and (version := self._take()) is not None:
            self.load_weights(self._model.vlm.model, version)
        if self._version is None or self._proven.get(client.url) == self._version:
            return
        with self._model_kept():
            await self._prove(client, await self._route.renew(client, self._version))
            self._proven[client.url] = self._version
            self._metrics["served/renewed"] = self._metrics.get("served/renewed", 0.0) + 1

    @contextmanager
    def _model_kept(self) -> Iterator[None]:
        """Take no newer weights while open: servers are proven by comparison with the model."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def _check_interrupted(self, calls: Sequence[GroupCall], answers: Sequence[GroupAnswers]) -> None:
        """Compare the last tokens of answers that went on under the present weights with the model's.

        Raises:
            RunError: they differ in the mean by more than a proof allows.
        """
        newest, padding = max(self._loaded.values()), self._model.vlm.padding
        found = interrupted_answers(calls, answers, newest, self._temperature, padding)
        if found is None:
            return
        mean = found.mean_gap(self._model.score_recording(found.recording).cpu().double())
        self._metrics["served/interrupted_gap"] = mean
        if mean > self._bound:
            raise RunError(
                "run.servers: answers that went on under new weights have log-probabilities that differ from the "
                f"trainer's by {mean:.1e} in the mean of {len(found.log_probs)} tokens; the bound is {self._bound:.1e} "
                "(run.servers.max_probe_gap). Their keys and values are of older weights: this server ignores "
                "reset_running_requests, so leave run.overlap.interrupt out. Nothing was learnt from it"
            )

    @property
    def _bound(self) -> float:
        return self._settings.max_probe_gap or MAX_PROBE_GAP[self._precision]

    async def _prove(self, client: VLLMClient, name: WeightName) -> None:
        """Compare the log-probabilities of the probes' answers with the trainer's.

        Raises:
            RunError: they differ; the message says which known cause that looks like.
        """
        sampling = TokenSamplingConfig(temperature=self._temperature, max_new_tokens=PROBE_TOKENS)
        calls = [
            GroupCall(prompt, PROBE_ANSWERS, sampling, fold_in(PROBE_SEED, number) % MAX_SEED)
            for number, prompt in enumerate(self._probes)
        ]
        requests = (ask_again(client, call, self._tokens, name, self._settings.retries) for call in calls)
        written = await asyncio.gather(*requests)
        token_ids = [ids for group in written for ids in group.token_ids]
        tokens, mask = pad_right(token_ids, self._model.vlm.padding)
        prompt_of = [number for number, group in enumerate(written) for _ in group.token_ids]
        lengths = [len(ids) for ids in token_ids]

        def scores(temperature: float) -> Tensor:
            recording = TokenRecording(self._probes, prompt_of, tokens, lengths, temperature)
            return self._model.score_recording(recording).cpu()[mask]

        server = joined([values for group in written for values in group.log_probs])
        trainer = scores(self._temperature)
        with self._model.reference():
            base = scores(self._temperature)
        found = agreement(server, trainer, base, NOISE[self._precision])
        raw = None if self._temperature == 1 else float((server - scores(1.0).double()).abs().mean())
        self._metrics |= found.metrics()
        if text := complaint(found, self._bound, raw):
            raise RunError(f"run.servers: {client.url}: {text}. Nothing was learnt from it")
        log.debug("%s has %s: mean gap %.1e over %d tokens", client.url, name, found.mean, found.tokens)


def _versions(answers: Sequence[GroupAnswers]) -> list[list[int]] | None:
    if any(group.versions is None for group in answers):
        return None
    return [row for group in answers for row in group.versions or ()]


def _group_calls(
    prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
) -> list[GroupCall]:
    return [
        GroupCall(prompt, count, sampling, fold_in(seed, number) % MAX_SEED)
        for number, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    ]


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where this thread runs a loop already, as a notebook does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _progress() -> str:
    """Return where the run is, for the end of a message."""
    phase = position.name or "rollout"
    if position.iteration is None:
        return f"This was in the phase {phase}, before the first iteration"
    text = f"This was in the phase {phase} of iteration {position.iteration}; "
    text += f"the last good iteration is {position.iteration - 1}, the last saved one {position.saved or 0}"
    return text if not position.saved else f"{text}; go on with: mmrl train --resume {position.run}"
