"""The base class of judges: settings, the parts of an answer in a request, and the probability of a word."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from PIL import Image

from mmrl.rewards.core.image_input import answer_image, reference_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.judges.endpoint import Endpoint
from mmrl.rewards.judges.replies import parse_choice, yes_probability
from mmrl.rewards.judges.templates import SAMPLE_SLOTS, ImagePart, Kind, MessagePart, load_prompt, tagged
from mmrl.rewards.parsing.final_answer import strip_thinking

AnswerView: TypeAlias = list[MessagePart] | Exception
Reads = Literal["auto", "logprobs", "text"]
PictureFormat = Literal["png", "jpeg"]
JPEG_QUALITY = 92
MAX_TEXT_LENGTH = 100_000  # characters of the longest answer; a longer one is malformed

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class JudgeBase(Reward):
    """A reward that sends answers to a model on a server. Its fields are the arguments of all four judges.

    Raises:
        RewardError: a setting is invalid.
    """

    range = (0.0, 1.0)
    batch_size = 1
    concurrency = 16
    kind: ClassVar[Kind]
    default_prompt: ClassVar[str]

    model: str
    """The server's name of the model."""
    prompt: str = ""
    """A shipped prompt by name, or the path of a YAML file (see `templates`); empty means the judge's default."""
    base_url: str = "http://127.0.0.1:8000/v1"
    api_key_env: str = ""
    """The environment variable that holds the server's key. Empty means that no key is sent."""
    timeout_s: float = 60.0
    """Timeout of each read, and of the whole reply's body. A server that sends its headers slowly can exceed it; a
    suite's `deadline_s` covers that case."""
    read: Reads = "auto"
    """"logprobs" uses probabilities of the first token, "text" parses the generated text, "auto" uses probabilities if
    the server gives them and the text otherwise."""
    max_tokens: int = 512
    """Limit of the generated text, where it is parsed."""
    temperature: float = 0.0
    seed: int | None = 0
    """Sampling seed; None sends none. A server may ignore it."""
    source_picture: str = ""
    """The key in `references` of an image to send beside the answer: the one that was edited, or that a question is
    about."""
    reply_only: bool = False
    """The judge is shown what an answer says after its thoughts, </think>, and not the thoughts (RLMT,
    arXiv:2509.20357)."""
    picture_format: PictureFormat = "png"
    longest_side: int = 1024
    """Larger images are downscaled to this size, in pixels."""
    max_frames: int = 8
    """Frames of a video that are sent, evenly spaced."""
    extra_body: Mapping[str, Any] | None = None
    """Further fields of each request, such as {"chat_template_kwargs": {"enable_thinking": False}}."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "longest_side", "max_frames"):
            if getattr(self, name) < 1:
                raise RewardError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, choices in (("read", get_args(Reads)), ("picture_format", get_args(PictureFormat))):
            if getattr(self, name) not in choices:
                raise RewardError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        self._prompt = load_prompt(self.prompt or self.default_prompt, self.kind)
        self._endpoint = Endpoint(
            self.model,
            self.base_url,
            self.api_key_env,
            self.timeout_s,
            self.temperature,
            self.seed,
            self.extra_body,
            self.concurrency,
        )
        self._warned = False

    def fingerprint(self) -> str:
        """Return the hash of the settings that affect scores, with the prompt's text instead of its name."""
        settings = {name: value for name, value in self.settings.items() if name not in ("timeout_s", "api_key_env")}
        prompt = [self._prompt.system, self._prompt.user, self._prompt.scale]
        whole = json.dumps([self.name, self.version, settings | {"prompt": prompt}], sort_keys=True, default=repr)
        return hashlib.sha256(whole.encode()).hexdigest()

    def answer_parts(self, item: RewardInput) -> list[MessagePart]:
        """Return image, frames and text of an answer as parts of a message.

        Raises:
            InvalidAnswer: the text is empty or too long, or with `reply_only` its thoughts never end.
            ScoringFailed: "missing": there is nothing to judge.
        """
        parts: list[MessagePart] = []
        if item.image is not None:
            parts += [self.picture_part(item.image), "\n"]
        for frame in spread_frames(item.video, self.max_frames) if item.video is not None else ():
            parts += [self.picture_part(frame), "\n"]
        if item.text is not None:
            text = strip_thinking(item.text) if self.reply_only else item.text
            if not text.strip():
                raise InvalidAnswer("the answer is empty")
            if len(text) > MAX_TEXT_LENGTH:
                raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_TEXT_LENGTH} are scored")
            parts.append(tagged("answer", text) + "\n")
        if not parts:
            raise ScoringFailed(f"{self.name} needs a picture, a video or a text to judge", "missing")
        return parts

    def answer_views(self, items: Sequence[RewardInput]) -> list[AnswerView]:
        """Return the message parts of each answer, or the exception that prevented them."""
        return [attempt(self.answer_parts, item, errors=FAULTS) for item in items]

    def source_parts(self, item: RewardInput) -> list[MessagePart]:
        """Return the image that the answer is about, if `source_picture` names one."""
        if not self.source_picture:
            return []
        reference = item.references.get(self.source_picture)
        if reference is None:
            raise ScoringFailed(f"{self.name} needs references.{self.source_picture}", "missing")
        picture = reference_image(reference, self.source_picture)
        return ["Given was this picture:\n", self.picture_part(picture), "\nTo be judged is this:\n"]

    def prompt_texts(self, item: RewardInput) -> dict[str, str]:
        """Return the tagged texts of the prompt's slots: {slot: text}."""
        found = {}
        if self._prompt.uses("prompt"):
            if not item.prompt.strip():
                raise ScoringFailed(f"{self.name} needs a prompt to judge by, and it is empty", "missing")
            found["prompt"] = tagged("prompt", item.prompt)
        if self._prompt.uses("reference"):
            right = item.references.get("answer")
            if right is None:
                raise ScoringFailed(f"{self.name} needs references.answer", "missing")
            text = right if isinstance(right, str) else json.dumps(right, ensure_ascii=False, default=str)
            found["reference"] = tagged("reference", text)
        for slot in filter(self._prompt.uses, SAMPLE_SLOTS):
            found[slot] = tagged(slot, self._sample_text(item, slot))
        return found

    def _sample_text(self, item: RewardInput, slot: str) -> str:
        """Return what the sample's metadata says under a name: a text, or one line for each of several."""
        value = item.references.get(slot)
        if value is None and slot == "task":
            value = item.metadata.get("task")
        parts = value if isinstance(value, list | tuple) else [value]
        lines = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False, default=str) for each in parts]
        if value is None or not any(line.strip() for line in lines):
            raise ScoringFailed(f"{self.name} needs the sample's metadata {slot!r}, and it is empty", "missing")
        return "\n".join(lines)

    def probability(self, messages: list[dict[str, Any]], yes: str, no: str) -> float:
        """Return the probability of `yes` rather than `no`, in [0, 1]; 0 or 1 if only the judge's text is available."""
        if self.read != "text":
            try:
                reply = self._endpoint.complete(messages, 1, logprobs=True)
            except ScoringFailed as err:
                if self.read == "logprobs" or err.kind not in ("http_400", "http_422"):
                    raise
                reply = None  # some servers reject a request for log-probabilities
            if reply is not None and reply.first_token is not None:
                return yes_probability(reply.first_token, yes, no)
            if self.read == "logprobs":
                raise ScoringFailed("the server gives no log-probabilities; set read: text", "no_logprobs")
            if reply is not None and reply.text and not reply.truncated:
                self._warn_once()
                return float(parse_choice(reply.text, (yes, no)) == yes)
        word = parse_choice(self.judge_text(messages), (yes, no))
        if self.read == "auto":
            self._warn_once()
        return float(word == yes)

    def judge_text(self, messages: list[dict[str, Any]]) -> str:
        """Return the text that the judge generates.

        Raises:
            ScoringFailed: "truncated": the text exceeds `max_tokens`.
        """
        reply = self._endpoint.complete(messages, self.max_tokens)
        if reply.truncated:
            raise ScoringFailed(f"the judge was not done within max_tokens ({self.max_tokens})", "truncated")
        return reply.text

    def picture_part(self, image: Any) -> ImagePart:
        """Return an image as a part of a message, downscaled to `longest_side` and encoded as `picture_format`."""
        return ImagePart(data_url(image, self.picture_format, self.longest_side))

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: the server gives no log-probabilities, so its text is parsed; `read: text` saves one request per "
                "answer",
                self.name,
            )


def data_url(image: Any, form: PictureFormat, longest_side: int) -> str:
    """Return the image as `data:image/...;base64,...`, downscaled if a side exceeds `longest_side`.

    Raises:
        InvalidAnswer, ScoringFailed: `answer_image` raises them.
    """
    rgb = answer_image(image)
    if max(rgb.size) > longest_side:
        rgb = rgb.copy()
        rgb.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if form == "png":
        rgb.save(buffer, "PNG", compress_level=1)  # a quarter of the default time for an eighth more bytes
    else:
        rgb.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def spread_frames(frames: Sequence[Any], limit: int) -> list[Any]:
    """Return at most `limit` frames, evenly spaced from the first to the last; the middle one for a limit of 1."""
    if len(frames) <= limit:
        return list(frames)
    if limit == 1:
        return [frames[len(frames) // 2]]
    return [frames[round(i * (len(frames) - 1) / (limit - 1))] for i in range(limit)]
