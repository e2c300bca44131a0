"""From samples to what a model's forward pass takes, with nothing lost on the way.

Each sample goes through its model's own processor alone; `collate` puts several side by side. A picture or a video
that does not become an input of the model is an error: some processors drop videos without a word.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.understanding.vlm import VLM, Family

if TYPE_CHECKING:
    pass

MEDIA = {"image": "pixel_values", "video": "pixel_values_videos"}
_NOT_INPUTS = ("labels",)  # PaliGemma's processor makes them


@dataclass(frozen=True)
class EncodedPrompt:
    """One prompt, ready for the model. Tensors have a batch dimension of 1, or one row a picture or patch."""

    inputs: dict[str, Tensor]
    images: int
    videos: int

    @property
    def length(self) -> int:
        """Tokens, those of pictures included."""
        return self.inputs["input_ids"].shape[1]

    @property
    def bytes(self) -> int:
        """Of all its inputs."""
        return sum(value.nbytes for value in self.inputs.values())

    def followed_by(self, tokens: Sequence[int], family: Family) -> EncodedPrompt:
        """The prompt with the beginning of an answer."""
        if not tokens:
            return self
        ids = self.inputs["input_ids"]
        inputs = dict(self.inputs)
        for name in sequence_inputs(self.inputs):
            kind = family.answer_type if name == "token_type_ids" else 0
            added = torch.full((1, len(tokens)), kind, dtype=self.inputs[name].dtype)
            inputs[name] = torch.cat([self.inputs[name], added], dim=1)
        inputs["input_ids"] = torch.cat([ids, ids.new_tensor([list(tokens)])], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        return replace(self, inputs=inputs)


class PromptEncoder:
    """Encodes samples with a model's own processor."""

    def __init__(self, vlm: VLM, reader: MediaReader) -> None:
        self._processor, self._family, self._reader = vlm.processor, vlm.family, reader
        self._taken = set(inspect.signature(vlm.model.forward).parameters)  # what it does not name, it would not read
        self._placeholders = vlm.placeholders
        self._marks = [str(mark) for mark in vlm.tokenizer.convert_ids_to_tokens(vlm.suppressed.tolist())]
        self._name = type(vlm.processor).__name__
        self._cache = PromptCache()

    @property
    def takes_video(self) -> bool:
        """Processors without a part for videos drop them without a word."""
        return getattr(self._processor, "video_processor", None) is not None

    def refuse(self, sample: Sample) -> None:
        """Refuse what the processor cannot take, before anything is decoded.

        Raises:
            DataError: naming the sample and the processor.
        """
        if sample.videos and not self.takes_video:
            raise DataError(f"sample {sample.id!r} holds a video, which {self._name} does not take")
        if not sample.images and not sample.videos and not self._takes_text_alone:
            raise DataError(f"sample {sample.id!r} holds no picture, and {self._name} takes no text alone")
        if sample.images and sample.videos and not self._family.mixes_media:
            raise DataError(
                f"sample {sample.id!r} holds pictures and videos, which {self._name} does not take together"
            )

    def encode(self, sample: Sample) -> EncodedPrompt:
        """One sample; the same one as before gives the same prompt.

        Raises:
            DataError: the processor cannot take what the sample holds, or something of it would not reach the model.
        """
        if (known := self._cache.get(sample)) is not None:
            return known
        prompt = self._encode(sample)
        self._cache.put(sample, prompt)
        return prompt

    def _encode(self, sample: Sample) -> EncodedPrompt:
        self.refuse(sample)
        text = self._written(sample)
        arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt"}
        if sample.images:
            arguments["images"] = [[self._reader.image(path, sample.id) for path in sample.images]]
        if sample.videos:
            clips = [self._reader.video(path, sample.id) for path in sample.videos]
            arguments["videos"] = [[clip.frames for clip in clips]]
            arguments["videos_kwargs"] = {
                "do_sample_frames": False,
                "video_metadata": [[_times(clip) for clip in clips]],
            }
        try:
            encoded = dict(self._processor(**arguments))
        except ValueError as err:  # videos of one sample that differ in length, to InternVL and LLaVA-OneVision
            raise DataError(f"sample {sample.id!r}: {self._name} cannot take it: {err}") from err
        inputs = {name: torch.as_tensor(value) for name, value in encoded.items() if name not in _NOT_INPUTS}
        self._refuse_lost(sample, inputs)
        return EncodedPrompt(inputs, len(sample.images), len(sample.videos))

    @property
    def _takes_text_alone(self) -> bool:
        return self._processor.chat_template is not None

    def _written(self, sample: Sample) -> str:
        """The conversation as text, with one mark for each picture and video: its processor puts them there."""
        turns = conversation(sample)
        for said in (part["text"] for turn in turns for part in turn["content"] if part["type"] == "text"):
            if mark := next((mark for mark in self._marks if mark in said), None):
                raise DataError(f"sample {sample.id!r}: its text holds {mark}, by which {self._name} marks its media")
        if self._processor.chat_template is None:
            text = plain_text(turns, self._processor.image_token)
        else:
            text = self._processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for kind, paths in (("image", sample.images), ("video", sample.videos)):
            mark = getattr(self._processor, f"{kind}_token", None)
            if mark is not None and text.count(mark) != len(paths):
                raise DataError(
                    f"sample {sample.id!r} holds {len(paths)} {kind}(s), and the chat template of {self._name} made "
                    f"{text.count(mark)} places for them ({mark}): it would be lost"
                )
        return str(text)

    def _refuse_lost(self, sample: Sample, inputs: dict[str, Tensor]) -> None:
        """Every picture and video must stand in the text and among the inputs that the model names."""
        if unread := sorted(set(inputs) - self._taken):
            raise DataError(
                f"sample {sample.id!r}: {self._name} makes {', '.join(unread)}, which the model's forward pass does "
                "not take: it would be lost"
            )
        ids = inputs["input_ids"]
        for kind, paths in (("image", sample.images), ("video", sample.videos)):
            if not paths:
                continue
            place = self._placeholders.get(kind, self._placeholders.get("image"))
            standing = int((ids == place).sum()) if place is not None else 0
            pixels = inputs.get(MEDIA[kind], inputs.get(MEDIA["image"]))  # some call the frames of a video pictures
            if standing < len(paths) or pixels is None or not pixels.numel():
                raise DataError(
                    f"sample {sample.id!r}: {len(paths)} {kind}(s) went into {self._name} and "
                    f"{standing} tokens and {'no' if pixels is None else 'some'} pixels came out: it would be lost"
                )


def collate(
    prompts: Sequence[EncodedPrompt],
    padding: int,
) -> dict[str, Tensor]:
    """Prompts side by side, padded on the left: [P, L] for what has one value a token, all else one after another."""
    longest = max(prompt.length for prompt in prompts)
    joined: dict[str, list[Tensor]] = {}
    for prompt in prompts:
        room = longest - prompt.length
        sequences = sequence_inputs(prompt.inputs)
        for name, value in prompt.inputs.items():
            if name in sequences:
                value = F.pad(value, (room, 0), value=padding if name == "input_ids" else 0)
            joined.setdefault(name, []).append(value)
    for name in ("mm_token_type_ids", "token_type_ids"):  # a prompt of text alone may come without
        if name in joined and len(joined[name]) != len(prompts):
            raise DataError(f"some prompts of this batch have {name} and some have none")
    return {name: torch.cat(_to_one_shape(values)) for name, values in joined.items()}


def stackable(prompts: Sequence[EncodedPrompt]) -> list[list[int]]:
    """Numbers of prompts, in sets that `collate` may put side by side: those whose videos have one shape.

    Where videos are one tensor of frames (LLaVA-OneVision), frames that fill a shorter one up would be looked at.
    """
    sets: dict[tuple[int, ...] | None, list[int]] = {}
    for number, prompt in enumerate(prompts):
        videos = prompt.inputs.get(MEDIA["video"])
        sets.setdefault(None if videos is None else tuple(videos.shape[1:]), []).append(number)
    without = sets.pop(None, []) if len(sets) > 1 else []  # they go with any
    return [sorted(numbers + (without if not place else [])) for place, numbers in enumerate(sets.values())]


def sequence_inputs(inputs: dict[str, Tensor]) -> set[str]:
    """The names of those that have one value a token."""
    shape = inputs["input_ids"].shape
    return {name for name, value in inputs.items() if value.shape == shape}


def _to_one_shape(values: list[Tensor]) -> list[Tensor]:
    """Zeros at the end of every dimension but the first, up to the largest: models leave such tiles out."""
    due = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    return [
        F.pad(v, [n for size, most in zip(v.shape[:0:-1], due[::-1], strict=True) for n in (0, most - size)])
        for v in values
    ]


def _times(clip: VideoFrames) -> dict[str, Any]:
    """What a video processor is told of frames that were chosen before: which they are, of how many, at what rate."""
    return {
        "total_num_frames": clip.source_frames,
        "fps": clip.source_fps,
        "duration": clip.duration,
        "frames_indices": list(clip.indices),
    }


# Prompts that were encoded before: an evaluation asks for the same ones, sampled and greedy, time after time.


MOST_BYTES = 512 * 2**20


class PromptCache:
    """The prompts that were used last, up to so many bytes; a sample is known by being the same object."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._held = most_bytes, 0
        # The sample is kept too, so that its id stays its own.
        self._prompts: OrderedDict[int, tuple[Sample, EncodedPrompt]] = OrderedDict()

    def get(self, sample: Sample) -> EncodedPrompt | None:
        """None: encode it, and `put` it here."""
        found = self._prompts.get(id(sample))
        if found is None:
            return None
        self._prompts.move_to_end(id(sample))
        return found[1]

    def put(self, sample: Sample, prompt: EncodedPrompt) -> None:
        """Keep a prompt, and give up those that were not used for longest. Nobody may write into its tensors."""
        if prompt.bytes > self._most or id(sample) in self._prompts:
            return
        self._prompts[id(sample)] = sample, prompt
        self._held += prompt.bytes
        while self._held > self._most:
            self._held -= self._prompts.popitem(last=False)[1][1].bytes


# From a sample to the conversation that a processor's chat template takes.


PLACES = re.compile(r"<(image|video)>")
"""Where a prompt wants its pictures and videos; without any, they come first."""


def conversation(sample: Sample) -> list[dict[str, Any]]:
    """Turns, each with a role and a list of parts (`image`, `video` or `text`).

    Raises:
        DataError: the places for pictures or videos are not as many as there are of them, or a message is none.
    """
    said = sample.messages or ({"role": "user", "content": sample.prompt},)
    try:
        turns = [{"role": turn.get("role", "user"), "content": _parts(turn.get("content"))} for turn in said]
    except DataError as err:
        raise DataError(f"sample {sample.id!r}: {err}") from None
    due = {"image": len(sample.images), "video": len(sample.videos)}
    found = {kind: sum(part["type"] == kind for turn in turns for part in turn["content"]) for kind in due}
    if found == due:
        return turns
    first: dict[str, Any] | None = next((turn for turn in turns if turn["role"] == "user"), None)
    if first is not None and not any(found.values()):
        first["content"] = [{"type": kind} for kind, count in due.items() for _ in range(count)] + first["content"]
    else:
        raise DataError(
            f"sample {sample.id!r}: its text has places for {found['image']} pictures and {found['video']} videos "
            f"(<image>, <video>), and it comes with {due['image']} and {due['video']}"
        )
    return turns


def plain_text(turns: list[dict[str, Any]], image_token: str) -> str:
    """For processors without a chat template: all pictures first, then all words (PaliGemma)."""
    parts = [part for turn in turns for part in turn["content"]]
    pictures = image_token * sum(part["type"] == "image" for part in parts)
    return pictures + " ".join(part["text"] for part in parts if part["type"] == "text")


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        pieces = PLACES.split(content)  # words, kind, words, kind, ..., words
        return [
            {"type": piece} if number % 2 else {"type": "text", "text": piece}
            for number, piece in enumerate(pieces)
            if piece
        ]
    if not isinstance(content, Sequence):
        raise DataError(f"the content of a message is {content!r:.60}: expected a text or a list of parts")
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("image", "video"):
            if own := sorted(part.keys() - {"type"}):
                raise DataError(
                    f"a part of a message has {', '.join(own)} of its own: media stand in '{kind}s' of the sample, in "
                    f'their order, and a message marks their places by {{"type": "{kind}"}} or <{kind}>'
                )
            parts.append({"type": kind})
        elif kind == "text":
            parts.extend(_parts(str(part.get("text", ""))))
        else:
            raise DataError(f"a part of a message is of the type {kind!r}: expected image, video or text")
    return parts
