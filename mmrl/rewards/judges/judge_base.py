"""What all judges share: settings, what they are shown of an answer, and asking for the probability of a word."""

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
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.judges import verdicts
from mmrl.rewards.judges.endpoint import Endpoint
from mmrl.rewards.judges.templates import Kind, Part, Picture, between, load_prompt

View: TypeAlias = list[Part] | InvalidAnswer | ScoringFailed
Reads = Literal["auto", "logprobs", "text"]
LONGEST_TEXT = 100_000
"""Characters of an answer; a longer one is malformed."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class JudgeBase(Reward):
    """A reward that asks a model on a server. Its fields are the arguments of all four judges.

    Raises:
        RewardError: a setting that cannot work.
    """

    range = (0.0, 1.0)
    batch_size = 1
    concurrency = 16
    kind: ClassVar[Kind]
    usual_prompt: ClassVar[str]

    model: str
    """As the server calls it."""
    prompt: str = ""
    """A shipped prompt by name, or the path of a YAML file (see `templates`); empty: the judge's usual one."""
    base_url: str = "http://127.0.0.1:8000/v1"
    api_key_env: str = ""
    """The environment variable that holds the server's key. Empty: no key is sent."""
    timeout_s: float = 60.0
    """Of each wait for the server, and from asking to the end of the answer's body; a server that sends its headers
    bit by bit can outlast it, and a suite's `deadline_s` ends that too."""
    read: Reads = "auto"
    """"logprobs" takes probabilities of the first token, "text" reads what the judge writes, "auto" takes probabilities
    where the server gives them and reads the text where it does not."""
    max_tokens: int = 512
    """That the judge may write where its text is read."""
    temperature: float = 0.0
    seed: int | None = 0
    """Sent along where it is not None; a server may ignore it."""
    source_picture: str = ""
    """The key of `references` that holds a picture to be shown beside the answer: the one that was edited, or that a
    question is about."""
    picture_format: PictureFormat = "png"
    longest_side: int = 1024
    """Larger pictures are sent smaller."""
    max_frames: int = 8
    """Of a video, evenly spread."""
    extra_body: Mapping[str, Any] | None = None
    """What else goes into each request, such as {"chat_template_kwargs": {"enable_thinking": False}}."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "longest_side", "max_frames"):
            if getattr(self, name) < 1:
                raise RewardError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, choices in (("read", get_args(Reads)), ("picture_format", get_args(PictureFormat))):
            if getattr(self, name) not in choices:
                raise RewardError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        self._prompt = load_prompt(self.prompt or self.usual_prompt, self.kind)
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
        self._said = False

    def fingerprint(self) -> str:
        """As of any reward, with the prompt's text for its name, and without what changes no score."""
        known = {name: value for name, value in self.settings.items() if name not in ("timeout_s", "api_key_env")}
        asked = [self._prompt.system, self._prompt.user, self._prompt.scale]
        whole = json.dumps([self.name, self.version, known | {"prompt": asked}], sort_keys=True, default=repr)
        return hashlib.sha256(whole.encode()).hexdigest()

    def shown(self, item: RewardInput) -> list[Part]:
        """Picture, frames and text of an answer, as they stand in a request.

        Raises:
            InvalidAnswer: the text is empty or too long.
            ScoringFailed: "missing": there is nothing to judge.
        """
        parts: list[Part] = []
        if item.image is not None:
            parts += [self._picture(item.image), "\n"]
        for frame in spread(item.video, self.max_frames) if item.video is not None else ():
            parts += [self._picture(frame), "\n"]
        if item.text is not None:
            if not item.text.strip():
                raise InvalidAnswer("the answer is empty")
            if len(item.text) > LONGEST_TEXT:
                raise InvalidAnswer(f"the answer has {len(item.text)} characters; {LONGEST_TEXT} are read at most")
            parts.append(between("answer", item.text) + "\n")
        if not parts:
            raise ScoringFailed(f"{self.name} needs a picture, a video or a text to judge", "missing")
        return parts

    def views(self, items: Sequence[RewardInput]) -> list[View]:
        """What is shown of each answer to one prompt, or why it cannot be."""
        found: list[View] = []
        for item in items:
            try:
                found.append(self.shown(item))
            except (InvalidAnswer, ScoringFailed) as err:
                found.append(err)
        return found

    def given(self, item: RewardInput) -> list[Part]:
        """The picture that the answer is about, if the settings name one."""
        if not self.source_picture:
            return []
        held = item.references.get(self.source_picture)
        if held is None:
            raise ScoringFailed(f"{self.name} needs references.{self.source_picture}", "missing")
        picture = reference_image(held, self.source_picture)
        return ["Given was this picture:\n", self._picture(picture), "\nTo be judged is this:\n"]

    def texts(self, item: RewardInput) -> dict[str, str]:
        """What the prompt's places are filled with, between tags."""
        found = {}
        if self._prompt.asks_for("prompt"):
            if not item.prompt.strip():
                raise ScoringFailed(f"{self.name} needs a prompt to judge by, and it is empty", "missing")
            found["prompt"] = between("prompt", item.prompt)
        if self._prompt.asks_for("reference"):
            right = item.references.get("answer")
            if right is None:
                raise ScoringFailed(f"{self.name} needs references.answer", "missing")
            text = right if isinstance(right, str) else json.dumps(right, ensure_ascii=False, default=str)
            found["reference"] = between("reference", text)
        return found

    def probability(self, messages: list[dict[str, Any]], yes: str, no: str) -> float:
        """That the judge says `yes` rather than `no`, in [0, 1]; 0 or 1 where its text alone can be read."""
        if self.read != "text":
            try:
                reply = self._endpoint.ask(messages, 1, logprobs=True)
            except ScoringFailed as err:
                if self.read == "logprobs" or err.kind not in ("http_400", "http_422"):
                    raise
                reply = None  # some servers refuse a request for log-probabilities
            if reply is not None and reply.first_token is not None:
                return verdicts.share(reply.first_token, yes, no)
            if self.read == "logprobs":
                raise ScoringFailed("the server gives no log-probabilities; read: text asks for words", "no_logprobs")
            if reply is not None and reply.text and not reply.cut:
                self._say_once()
                return float(verdicts.choice(reply.text, (yes, no)) == yes)
        said = verdicts.choice(self.written(messages), (yes, no))
        if self.read == "auto":
            self._say_once()
        return float(said == yes)

    def written(self, messages: list[dict[str, Any]]) -> str:
        """What the judge writes.

        Raises:
            ScoringFailed: "truncated": it was not done within `max_tokens`.
        """
        reply = self._endpoint.ask(messages, self.max_tokens)
        if reply.cut:
            raise ScoringFailed(f"the judge was not done within max_tokens ({self.max_tokens})", "truncated")
        return reply.text

    def _picture(self, image: Any) -> Picture:
        return Picture(data_url(image, self.picture_format, self.longest_side))

    def _say_once(self) -> None:
        if not self._said:
            self._said = True
            _log.warning("%s: the server gives no log-probabilities: its words are read. `read: text` saves the "
                         "request that asks for them", self.name)  # fmt: skip


# Pictures and videos as a request carries them: data URLs of bounded size.


PictureFormat = Literal["png", "jpeg"]

JPEG_QUALITY = 92


def data_url(image: Any, form: PictureFormat, longest_side: int) -> str:
    """The picture as `data:image/...;base64,...`, made smaller (never larger) so that no side exceeds `longest_side`.

    Raises:
        InvalidAnswer, ScoringFailed: as `answer_image`.
    """
    shown = answer_image(image)
    if max(shown.size) > longest_side:
        shown = shown.copy()
        shown.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if form == "png":
        shown.save(buffer, "PNG", compress_level=1)  # a quarter of the usual time for an eighth more bytes
    else:
        shown.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def spread(frames: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the frames, evenly from the first to the last; the middle one if only one may be shown."""
    if len(frames) <= most:
        return list(frames)
    if most == 1:
        return [frames[len(frames) // 2]]
    return [frames[round(i * (len(frames) - 1) / (most - 1))] for i in range(most)]
