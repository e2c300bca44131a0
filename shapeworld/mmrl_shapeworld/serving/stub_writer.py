"""The answers of a stub server, token by token: a request can be paused, and goes on under other weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.tokens import sample_tokens, scored_logits
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm import VLM

WAITS_AT = 3
"""The tokens after which a request waits until the server is paused, under the fault `waits_for_pause`."""


@dataclass
class Scheduler:
    """A part of vLLM's scheduler: which requests run, and whether they may go on."""

    going: asyncio.Event = field(default_factory=asyncio.Event)
    paused: asyncio.Event = field(default_factory=asyncio.Event)  # at least once, since a test cleared it
    running: int = 0
    discarded: int = 0  # how often the requests that run have lost their keys and values

    def __post_init__(self) -> None:
        self.going.set()


@dataclass
class StampedAnswers:
    """The answers to a request."""

    token_ids: list[list[int]]
    log_probs: list[list[float]]
    versions: list[list[str]]  # of the server, when it wrote each token

    def spans(self, row: int) -> list[dict[str, int | str]]:
        """Return the versions of an answer as vLLM reports them."""
        found: list[dict[str, int | str]] = []
        for place, version in enumerate(self.versions[row]):
            if found and found[-1]["version"] == version:
                found[-1]["end"] = place + 1
            else:
                found.append({"version": version, "start": place, "end": place + 1})
        return found


@dataclass
class _Stream:
    """Rows whose keys and values are in one cache."""

    rows: list[int]
    prefix: Prefix
    read: int = 0  # tokens of each answer that it holds


async def write_answers(
    vlm: VLM,
    prompt: EncodedPrompt,
    read: Prefix,  # the prompt, read
    count: int,
    sampling: TokenSamplingConfig,
    seed: int,
    scheduler: Scheduler,
    before: Callable[[], str],  # prepares the model for a step, and returns its version
    waits: Callable[[], None] | None,  # called where the request waits for a pause; None: it does not wait for one
) -> StampedAnswers:
    """Write `count` answers; between two tokens other requests have their turn."""
    generator = torch.Generator().manual_seed(seed) if sampling.temperature else None
    streams = [_Stream(list(range(count)), read.expand(torch.zeros(count, dtype=torch.long)))]
    found = StampedAnswers([[] for _ in range(count)], [[] for _ in range(count)], [[] for _ in range(count)])
    discarded = scheduler.discarded
    scheduler.running += 1
    try:
        while streams:
            if waits is not None and streams[0].rows and len(found.token_ids[streams[0].rows[0]]) == WAITS_AT:
                if not scheduler.paused.is_set():
                    waits()
                await scheduler.paused.wait()
            await scheduler.going.wait()
            version = before()
            with torch.no_grad():
                if scheduler.discarded > discarded:
                    discarded = scheduler.discarded
                    streams = [_read_again(vlm, prompt, row, found) for each in streams for row in each.rows]
                steps = [_step(vlm, each, sampling, generator, found, version) for each in streams]
                streams = [each for each in steps if each is not None]
            await asyncio.sleep(0)
    finally:
        scheduler.running -= 1
    return found


def _read_again(vlm: VLM, prompt: EncodedPrompt, row: int, found: StampedAnswers) -> _Stream:
    """Return a row whose prompt and tokens so far are read by the present weights."""
    whole = prompt.followed_by(found.token_ids[row], vlm.family)
    inputs = vlm.to_device(collate([whole], vlm.padding))
    return _Stream([row], prefill(vlm.model, vlm.family, inputs, [whole]), len(found.token_ids[row]))


def _step(
    vlm: VLM,
    stream: _Stream,
    sampling: TokenSamplingConfig,
    generator: torch.Generator | None,
    found: StampedAnswers,
    version: str,
) -> _Stream | None:
    """Write one token of each row; return those that go on.

    The token that was sampled last is read at the beginning of a step, by the weights of the step.
    """
    prefix, read = stream.prefix, stream.read
    if read < len(found.token_ids[stream.rows[0]]):
        last = torch.tensor([[found.token_ids[row][-1]] for row in stream.rows])
        prefix, read = prefix.extend(last)[1], read + 1
    logits = scored_logits(prefix.logits, sampling.temperature, vlm.suppressed)
    sampled = sample_tokens(logits, generator, sampling.top_p, sampling.top_k)
    values = logits.gather(-1, sampled[:, None])[:, 0] - logits.logsumexp(-1)
    for row, token, value in zip(stream.rows, sampled.tolist(), values.tolist(), strict=True):
        found.token_ids[row].append(token)
        found.log_probs[row].append(value)
        found.versions[row].append(version)
    ends = set(vlm.ends.tolist())
    keep = [
        place
        for place, row in enumerate(stream.rows)
        if found.token_ids[row][-1] not in ends and len(found.token_ids[row]) < sampling.max_new_tokens
    ]
    if not keep:
        return None
    if len(keep) < len(stream.rows):
        prefix = prefix.expand(torch.tensor(keep))
    return _Stream([stream.rows[place] for place in keep], prefix, read)
