"""The request for a group of answers and its reply, in the form of `/inference/v1/generate` of vLLM 0.33.

The request has the prompt's token ids with one placeholder for each picture and video, and the pictures and the frames
that the trainer chose as PNG, without loss. The server's processor expands the placeholders; `return_token_ids` makes
it report the result, which must be the trainer's.
The `features` of that route, which carry processed pixels, are in a private format of vLLM and are not used.

Everything in a reply is checked: an answer that is learnt from has the number of tokens, the end, the log-probabilities
and the version of weights that it should have.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.errors import DataError
from mmrl.understanding.encoded_prompt import EncodedPrompt, WirePrompt
from mmrl.understanding.serving.server_failure import ServerFailure
from mmrl.understanding.vlm import VLM

EXCLUDED = -100.0
"""The logit bias of placeholder tokens: the lowest that vLLM takes; their probability is e^-100 at most."""
SLACK = 1e-4
"""A log-probability may be above 0 by this much, by rounding."""


@dataclass(frozen=True)
class AnswerTokens:
    """The tokens that a model may write: where answers end, and what they never contain."""

    ends: tuple[int, ...]
    suppressed: tuple[int, ...]
    vocabulary: int

    @classmethod
    def of(cls, vlm: VLM) -> AnswerTokens:
        """Return those of a loaded model."""
        vocabulary = int(vlm.model.config.get_text_config().vocab_size)
        return cls(tuple(vlm.ends.tolist()), tuple(vlm.suppressed.tolist()), vocabulary)


@dataclass(frozen=True, eq=False)
class GroupCall:
    """A prompt and how many answers to it are sampled in which way."""

    prompt: EncodedPrompt
    count: int
    sampling: TokenSamplingConfig
    seed: int  # 0 to 2^31 - 1

    def equals(self, other: GroupCall) -> bool:
        """Return True if both ask for the same; prompts are compared as they are sent."""
        same = (self.count, self.sampling, self.seed) == (other.count, other.sampling, other.seed)
        return same and self.wire.token_ids == other.wire.token_ids and self.wire.sample_id == other.wire.sample_id

    @property
    def wire(self) -> WirePrompt:
        """The prompt as it is sent."""
        if self.prompt.wire is None:
            raise DataError("this prompt was encoded for a policy without servers: encode it with keep_media")
        return self.prompt.wire


@dataclass(frozen=True)
class WeightName:
    """The name by which a server knows weights: an adapter's, or a version of the model's own weights."""

    model: str  # as requests name it
    version: str | None  # as answers report it; None for adapters, which answers report by the model's name


@dataclass(frozen=True)
class GroupAnswers:
    """The answers to one prompt."""

    token_ids: list[list[int]]
    log_probs: list[list[float]]
    versions: list[list[int]] | None = None  # the updates before the weights that wrote each token, if they may change


def request_body(call: GroupCall, tokens: AnswerTokens, model: str) -> dict[str, Any]:
    """Return the JSON of a request, with every setting that changes the distribution: servers have other defaults."""
    wire, sampling = call.wire, call.sampling
    body: dict[str, Any] = {
        "model": model,
        "token_ids": list(wire.token_ids),
        "return_token_ids": True,
        "sampling_params": {
            "n": call.count,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "logit_bias": {str(token): EXCLUDED for token in tokens.suppressed},
            "stop_token_ids": list(tokens.ends),
            "max_tokens": sampling.max_new_tokens,
            "logprobs": 0,  # of the sampled token alone
            "seed": call.seed,
            "detokenize": False,
        },
    }
    if wire.images or wire.videos:
        pictures = [{"type": "image_url", "url": png_uri(picture)} for picture in wire.images]
        body["content_parts"] = [*pictures, *({"type": "video_url", "url": frames_uri(each)} for each in wire.videos)]
    return body


def png_uri(picture: Image.Image) -> str:
    """Return a picture as a data URI that loses nothing."""
    return "data:image/png;base64," + _png(picture)


def frames_uri(frames: NDArray[np.uint8]) -> str:
    """Return the frames [T, H, W, 3] of a video as vLLM's list of pictures, of which it reads any format."""
    return "data:video/jpeg;base64," + ",".join(_png(Image.fromarray(frame)) for frame in frames)


def _png(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)
    return base64.b64encode(file.getvalue()).decode("ascii")


def read_answers(
    reply: Mapping[str, Any],
    call: GroupCall,
    tokens: AnswerTokens,
    name: WeightName,
    url: str,
    loaded: Mapping[str, int] | None = None,
) -> GroupAnswers:
    """Return the answers of a reply.

    `loaded`: answers may go on under other weights; it has the updates before each version that the server was given
    since they began. None: all tokens are of the version in `name`.

    Raises:
        ServerFailure: the reply lacks something, contradicts itself, or is of other weights.
        DataError: the server reads the prompt as other tokens; the message names the sample.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        raise ServerFailure(url, "wrong_reply", "its reply has no list of choices")
    _check_prompt(reply.get("prompt_token_ids"), call, url)
    if name.version is None and reply.get("model") != name.model:
        raise ServerFailure(url, "lost_weights", f"it answered as {reply.get('model')!r:.80}, not as {name.model}")
    if sorted(str(choice.get("index")) for choice in choices) != sorted(str(number) for number in range(call.count)):
        raise ServerFailure(url, "wrong_reply", f"it sent {len(choices)} answers for the {call.count} of the request")
    ordered = sorted(choices, key=lambda choice: int(choice["index"]))
    for choice in ordered:
        if choice.get("finish_reason") not in ("stop", "length"):
            reason = choice.get("finish_reason")
            raise ServerFailure(url, "aborted", f"it ended an answer with {reason!r:.40}", transient=True)
        if loaded is None:
            _check_version(choice, name, url)
    written = [_read_choice(choice, call, tokens, url) for choice in ordered]
    versions = None if loaded is None else [_token_versions(choice, loaded, url) for choice in ordered]
    return GroupAnswers([ids for ids, _ in written], [values for _, values in written], versions)


def _check_prompt(reported: Any, call: GroupCall, url: str) -> None:
    own = call.prompt.inputs["input_ids"][0].tolist()
    if reported == own:
        return
    sample = call.wire.sample_id
    if not isinstance(reported, list):
        raise DataError(f"sample {sample!r}: {url} does not report the tokens of its prompt (return_token_ids)")
    place = next(
        (n for n, (theirs, mine) in enumerate(zip(reported, own, strict=False)) if theirs != mine),
        min(len(reported), len(own)),
    )
    theirs, mine = (ids[place] if place < len(ids) else "nothing" for ids in (reported, own))
    raise DataError(
        f"sample {sample!r}: {url} reads its prompt as {len(reported)} tokens and the trainer as {len(own)}; the first "
        f"difference is at {place}, {theirs} there and {mine} here. The server has another model, another processor "
        "(compare min_pixels and max_pixels) or another transformers: nothing was learnt from it"
    )


def _check_version(choice: Mapping[str, Any], name: WeightName, url: str) -> None:
    if name.version is None:
        return
    spans = choice.get("weight_versions")
    if not isinstance(spans, list) or not spans:
        raise ServerFailure(url, "wrong_reply", "its answers report no weight_versions: vLLM 0.33 or later is needed")
    versions = {str(span.get("version")) if isinstance(span, Mapping) else str(span) for span in spans}
    if versions != {name.version}:
        found = ", ".join(sorted(versions))[:120]
        raise ServerFailure(url, "lost_weights", f"an answer was written by {found}, not by {name.version}")


def _token_versions(choice: Mapping[str, Any], loaded: Mapping[str, int], url: str) -> list[int]:
    """Return the updates before the version that wrote each token, by the server's own account.

    Raises:
        ServerFailure: its spans of versions do not cover all tokens, or one is of another version than it was given.
    """
    spans, count = choice.get("weight_versions"), len(choice["token_ids"])
    if not isinstance(spans, list) or not all(isinstance(span, Mapping) for span in spans):
        raise ServerFailure(url, "wrong_reply", "its answers report no weight_versions: vLLM 0.33 or later is needed")
    found: list[int] = []
    for span in spans:
        start, end, version = span.get("start"), span.get("end"), span.get("version")
        if start != len(found) or not isinstance(end, int) or not start < end <= count:
            raise ServerFailure(url, "wrong_reply", f"its spans of versions do not follow each other: {spans!r:.200}")
        if version not in loaded:
            names = ", ".join(loaded)[:120]
            raise ServerFailure(url, "lost_weights", f"tokens were written by {version!r:.80}, not by one of {names}")
        found += [loaded[version]] * (end - start)
    if len(found) != count:
        raise ServerFailure(
            url, "wrong_reply", f"its spans of versions cover {len(found)} of the {count} tokens of an answer"
        )
    return found


def _read_choice(
    choice: Mapping[str, Any], call: GroupCall, tokens: AnswerTokens, url: str
) -> tuple[list[int], list[float]]:
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(_is_token(each, tokens.vocabulary) for each in ids):
        raise ServerFailure(url, "wrong_reply", f"an answer has no tokens, or some outside 0 to {tokens.vocabulary}")
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
        raise ServerFailure(url, "wrong_reply", "an answer has no log-probabilities")
    if [each.get("token_id") for each in content] != ids:
        raise ServerFailure(url, "wrong_reply", "the log-probabilities of an answer are of other tokens than it has")
    values = [each.get("logprob") for each in content]
    if not all(isinstance(each, int | float) and math.isfinite(each) and -9e3 < each <= SLACK for each in values):
        raise ServerFailure(url, "wrong_reply", "a log-probability is above 0, or no number")
    _check_end(ids, choice["finish_reason"], call.sampling.max_new_tokens, tokens, url)
    return ids, [float(each) for each in values]


def _check_end(ids: Sequence[int], reason: str, most: int, tokens: AnswerTokens, url: str) -> None:
    if set(ids[:-1]) & set(tokens.ends) or (reason == "stop" and ids[-1] not in tokens.ends):
        raise ServerFailure(url, "wrong_reply", "an answer goes on after an end token, or stopped without one")
    if len(ids) > most or (ids[-1] not in tokens.ends and len(ids) < most):
        raise ServerFailure(url, "wrong_reply", f"an answer of {len(ids)} tokens was cut off; max_new_tokens is {most}")
    if set(ids) & set(tokens.suppressed):
        raise ServerFailure(url, "wrong_reply", "an answer contains a placeholder of pictures (logit_bias was ignored)")


def _is_token(number: Any, vocabulary: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < vocabulary
