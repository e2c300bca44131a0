"""`ChatPolicy`: a model behind any server with OpenAI's chat completions, which answers and cannot be trained.

    mmrl evaluate runs/a@best qwen2.5-vl@http://127.0.0.1:8000 --data mine.jsonl

Only texts come back. There are no token ids and no log-probabilities, so nothing can be learnt from them; the weights
are not known, so nothing proves which ones answered; and a server may ignore the seed. `run.servers` is the way for
rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.config.media import MediaConfig
from mmrl.config.policy import ServedVLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.data.media.reader import reader_of
from mmrl.data.sample import Sample
from mmrl.errors import DataError, RunError
from mmrl.policy import Capability
from mmrl.rewards.parsing.boxes import Space
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import fold_in
from mmrl.understanding.prompt_encoder import conversation
from mmrl.understanding.serving.generate_messages import png_uri
from mmrl.understanding.serving.group_dealing import wait_s
from mmrl.understanding.serving.served_engine import MAX_SEED, run_in_loop
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.serving.vllm_client import VLLMClient
from mmrl.understanding.tasks.coordinates import CoordinateFormat


class ChatPolicy:
    """A model of a server that samples texts: no capability of a policy beyond that."""

    capabilities: frozenset[Capability] = frozenset()
    version = 0

    def __init__(self, config: ServedVLMConfig, sampling: TokenSamplingConfig, media: MediaConfig) -> None:
        self.config, self.sampling = config, sampling
        self.reader = reader_of(media)
        self._settings = ServersConfig(urls=(config.url,), api_key_env=config.api_key_env)

    @classmethod
    def from_config(
        cls, config: ServedVLMConfig, sampling: TokenSamplingConfig, media: MediaConfig | None = None
    ) -> ChatPolicy:
        """Return the policy; the server is first reached by a rollout."""
        return cls(config, sampling, media or MediaConfig())

    def coordinates(self, requested: Space | None) -> CoordinateFormat:
        """Return the format of coordinates in answers, which prompts state: thousandths, unless another is set."""
        return CoordinateFormat(requested or "norm_1000", self._input_size)

    def check_sample(self, sample: Sample) -> None:
        """Check that the server can be sent the media of a sample.

        Raises:
            DataError: it has a video.
        """
        if sample.videos:
            raise DataError(f"sample {sample.id!r} holds a video, and {self.config.url} is sent pictures alone")

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return B = sum(r.n) texts, a request and a seed for each, and no decisions.

        Raises:
            RunError: the server does not answer, or not with a text.
            DataError: a picture cannot be read.
        """
        rows = [request for request in requests for _ in range(request.n)]
        bodies = [self._body(request, fold_in(seed, number) % MAX_SEED) for number, request in enumerate(rows)]
        try:
            texts = run_in_loop(self._texts(bodies))
        except ServerFailure as err:
            raise RunError(f"{self.config.model} at {err}") from None
        nothing = torch.zeros(len(rows), 0)
        return Rollout(
            samples=[request.sample for request in rows],
            group_index=torch.tensor([request.group for request in rows], dtype=torch.long),
            log_probs=nothing,
            mask=nothing.bool(),
            channel=nothing.long(),
            media=list(texts),
            policy_version=self.version,
        )

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return nothing: the server has the parameters."""
        return {}

    def load(self, folder: Path) -> None:
        """Raise RunError: a server takes no checkpoint by this route."""
        raise RunError(f"{self.config.url} takes no checkpoint such as {folder}: start the server with it")

    async def _texts(self, bodies: Sequence[Mapping[str, Any]]) -> list[str]:
        places = asyncio.Semaphore(self._settings.concurrency)
        async with VLLMClient(self.config.url, self._settings) as client:

            async def answer(body: Mapping[str, Any]) -> str:
                async with places:
                    return await self._answer(client, body)

            return list(await asyncio.gather(*map(answer, bodies)))

    async def _answer(self, client: VLLMClient, body: Mapping[str, Any]) -> str:
        for attempt in range(self._settings.retries):
            try:
                return text_of(await client.complete_chat(body), client)
            except ServerFailure as err:
                if not err.transient:
                    raise
                await asyncio.sleep(wait_s(err, attempt))
        return text_of(await client.complete_chat(body), client)

    def _body(self, request: RolloutRequest, seed: int) -> dict[str, Any]:
        self.check_sample(request.sample)
        sampling = request.sampling or self.sampling
        pictures = iter([self.reader.image(path, request.sample.id) for path in request.sample.images])
        body: dict[str, Any] = {
            "model": self.config.model,
            "messages": [_message(turn, pictures) for turn in conversation(request.sample)],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": seed,
        }
        return body if sampling.top_k is None else {**body, "top_k": sampling.top_k}

    def _input_size(self, size: tuple[float, float]) -> tuple[float, float]:
        return self.reader.budget.image.size(round(size[0]), round(size[1]))


def text_of(reply: Mapping[str, Any], client: VLLMClient) -> str:
    """Return the text of a chat completion; "" for one that was cut off before its text began.

    Raises:
        ServerFailure: the reply has no text, such as a refusal.
    """
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    text = message.get("content") if isinstance(message, dict) else None
    if isinstance(text, str):
        return text
    if isinstance(choice, dict) and choice.get("finish_reason") == "length":
        return ""
    raise client.failure("wrong_reply", f"/v1/chat/completions returned no text: {reply!r:.200}")


def _message(turn: Mapping[str, Any], pictures: Iterator[Any]) -> dict[str, Any]:
    """Return a turn of `conversation` in the form of the API, with its pictures as PNG in data URIs."""
    parts = [
        {"type": "image_url", "image_url": {"url": png_uri(next(pictures))}} if part["type"] == "image" else dict(part)
        for part in turn["content"]
    ]
    only_text = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": turn["role"], "content": parts[0]["text"] if only_text else parts}
