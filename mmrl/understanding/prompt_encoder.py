"""Encoding of samples into inputs of a model's forward pass, and their collation into batches.

Each sample goes through the model's own processor; `collate` pads and concatenates several. An image or video that does
not become an input of the model raises `DataError`: some processors drop videos silently.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.understanding.vlm import VLM, VLMFamily

_PIXELS = ("pixel", "image_patches")
"""Parts of the names of inputs with pixels; some models have two for an image, in a low and a high resolution."""
CACHE_BYTES = 512 * 2**20
"""Bytes of encoded prompts that a `PromptCache` keeps by default."""
PLACES = re.compile(r"<(image|video)>")
"""Marks of the positions of images and videos in a text; without marks, media come first."""
_NOT_INPUTS = ("labels", "video_metadata")
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""Ends of the names of inputs with one value for each token; an input of patches may have the same shape."""


@dataclass(frozen=True)
class WirePrompt:
    """A prompt as it is sent to a server, whose processor computes the inputs itself."""

    sample_id: str
    token_ids: tuple[int, ...]  # with the marks of the chat template alone: one placeholder for each image
    images: tuple[Image.Image, ...]


@dataclass(frozen=True)
class EncodedPrompt:
    """The model inputs of one prompt. Tensors have a batch dimension of 1, or one row for each image or patch."""

    inputs: dict[str, Tensor]
    images: int
    videos: int
    family: VLMFamily = VLMFamily("")
    """The family decides which prompts may be in one batch."""
    wire: WirePrompt | None = None  # with `PromptEncoder(keep_media=True)`

    @property
    def length(self) -> int:
        """The number of tokens, image tokens included."""
        return self.inputs["input_ids"].shape[1]

    @property
    def bytes(self) -> int:
        """The size of all its inputs, and of the images that are kept with them."""
        pictures = self.wire.images if self.wire else ()
        pixels = sum(picture.width * picture.height for picture in pictures)
        return sum(value.nbytes for value in self.inputs.values()) + 3 * pixels

    def followed_by(self, tokens: Sequence[int], family: VLMFamily) -> EncodedPrompt:
        """Return the prompt followed by the first tokens of an answer."""
        if not tokens:
            return self
        ids = self.inputs["input_ids"]
        inputs = dict(self.inputs)
        for name in sequence_inputs(self.inputs):
            added = torch.full((1, len(tokens)), family.answer_kind(name), dtype=self.inputs[name].dtype)
            inputs[name] = torch.cat([self.inputs[name], added], dim=1)
        inputs["input_ids"] = torch.cat([ids, ids.new_tensor([list(tokens)])], dim=1)
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        wire = self.wire and replace(self.wire, token_ids=(*self.wire.token_ids, *tokens))
        return replace(self, inputs=inputs, wire=wire)


class PromptEncoder:
    """An encoder of samples with a model's own processor, and a cache of its results."""

    def __init__(self, vlm: VLM, reader: MediaReader, keep_media: bool = False) -> None:
        """`keep_media`: prompts are sent to servers, so each keeps its images and its tokens before expansion."""
        self._keep_media = keep_media
        self._processor, self._family, self._reader = vlm.processor, vlm.family, reader
        self._accepted = set(inspect.signature(vlm.model.forward).parameters)  # other inputs would be ignored
        self._placeholders = vlm.placeholders
        self._marks = [str(mark) for mark in vlm.tokenizer.convert_ids_to_tokens(vlm.suppressed.tolist())]
        self._name = type(vlm.processor).__name__
        count = getattr(getattr(vlm.model, "model", None), "get_rope_index", None)
        types = count is not None and "mm_token_type_ids" in inspect.signature(count).parameters
        self._wanted = {"return_mm_token_type_ids": True} if types else {}  # Cosmos 3 Edge makes them on request alone
        self._cache = PromptCache()

    @property
    def takes_video(self) -> bool:
        """True if the processor has a video processor; one without it drops videos silently."""
        return getattr(self._processor, "video_processor", None) is not None and self._family.plays

    def check_sample(self, sample: Sample) -> None:
        """Check that the processor takes the media of a sample, before anything is decoded.

        Raises:
            DataError: it does not; the message names the sample and the processor.
        """
        if sample.videos and not self.takes_video:
            raise DataError(f"sample {sample.id!r} holds a video, which {self._name} does not take")
        if not sample.images and not sample.videos and self._processor.chat_template is None:
            raise DataError(f"sample {sample.id!r} holds no image, and {self._name} takes no text alone")
        if sample.videos and self._keep_media:
            raise DataError(
                f"sample {sample.id!r} holds a video, and run.servers sends pictures alone: leave run.servers out"
            )
        if sample.images and sample.videos and not self._family.mixes_media:
            raise DataError(f"sample {sample.id!r} holds images and videos, which {self._name} does not take together")

    def encode(self, sample: Sample) -> EncodedPrompt:
        """Encode a sample; results are cached by sample object.

        Raises:
            DataError: the processor does not take the sample's media, or some of them would not reach the model.
        """
        if (known := self._cache.get(sample)) is not None:
            return known
        prompt = self._encode(sample)
        self._cache.put(sample, prompt)
        return prompt

    def _encode(self, sample: Sample) -> EncodedPrompt:
        self.check_sample(sample)
        text = self._render(sample)
        arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt", **self._wanted}
        images = [self._reader.image(path, sample.id) for path in sample.images]
        if images:
            arguments["images"] = [images]
        if sample.videos:
            clips = [self._reader.video(path, sample.id) for path in sample.videos]
            arguments["videos"] = [[clip.frames for clip in clips]]
            arguments["videos_kwargs"] = {
                "do_sample_frames": False,
                "return_metadata": True,
                "video_metadata": [[_video_metadata(clip) for clip in clips]],
            }
        try:
            encoded = dict(self._processor(**arguments))
        except ValueError as err:  # InternVL and LLaVA-OneVision need videos of equal length in a sample
            raise DataError(f"sample {sample.id!r}: {self._name} cannot take it: {err}") from err
        inputs = {name: torch.as_tensor(value) for name, value in encoded.items() if name not in _NOT_INPUTS}
        self._check_nothing_lost(sample, inputs)
        wire = None
        if self._keep_media:
            wire = WirePrompt(sample.id, tuple(self._processor.tokenizer(text)["input_ids"]), tuple(images))
        return EncodedPrompt(inputs, len(sample.images), len(sample.videos), self._family, wire)

    def _render(self, sample: Sample) -> str:
        """Return the conversation as text, with one placeholder for each image and video."""
        turns = conversation(sample)
        for words in (part["text"] for turn in turns for part in turn["content"] if part["type"] == "text"):
            if mark := next((mark for mark in self._marks if mark in words), None):
                raise DataError(f"sample {sample.id!r}: its text holds {mark}, by which {self._name} marks its media")
        if self._processor.chat_template is None:
            text = plain_text(turns, self._mark_of("image") or "")
        else:
            text = self._processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for kind, paths in (("image", sample.images), ("video", sample.videos)):
            mark = self._mark_of(kind)
            if mark is not None and text.count(mark) != len(paths):
                raise DataError(
                    f"sample {sample.id!r} holds {len(paths)} {kind}(s), and the chat template of {self._name} made "
                    f"{text.count(mark)} places for them ({mark}): it would be lost"
                )
        return str(text)

    def _mark_of(self, kind: str) -> str | None:
        """Return what a chat template writes for an image or a video, or None if the processor does not say it."""
        named = (getattr(self._processor, f"{kind}_{each}", None) for each in ("placeholder_token", "token"))
        mark = next((each for each in named if each is not None), None)
        return None if mark is None else str(getattr(mark, "content", mark))  # BLIP-2 has an object

    def _check_nothing_lost(self, sample: Sample, inputs: dict[str, Tensor]) -> None:
        """Raise unless every image and video has tokens in the text and pixels among the inputs."""
        if unread := sorted(set(inputs) - self._accepted):
            raise DataError(
                f"sample {sample.id!r}: {self._name} makes {', '.join(unread)}, which the model's forward pass does "
                "not take: it would be lost"
            )
        ids = inputs["input_ids"]
        for kind, paths in (("image", sample.images), ("video", sample.videos)):
            if not paths:
                continue
            place = self._placeholders.get(kind, self._placeholders.get("image"))
            places = int((ids == place).sum()) if place is not None else 0
            if kind == "video" and not places and not sample.images:  # GLM-4V marks frames as images
                places = int((ids == self._placeholders.get("image", -1)).sum())
            names = pixel_inputs(inputs)
            own = [name for name in names if is_of_videos(name) == (kind == "video")]
            # Some models take the frames of a video as images.
            pixels = sum(inputs[name].numel() for name in own or (names if kind == "video" else []))
            if places < len(paths) or not pixels:
                raise DataError(
                    f"sample {sample.id!r}: {len(paths)} {kind}(s) went into {self._name} and "
                    f"{places} tokens and {'some' if pixels else 'no'} pixels came out: it would be lost"
                )


def collate(
    prompts: Sequence[EncodedPrompt],
    padding: int,
) -> dict[str, Tensor]:
    """Batch P prompts: inputs with one value for each token are padded on the left to [P, L], others concatenated."""
    longest = max(prompt.length for prompt in prompts)
    joined: dict[str, list[Tensor]] = {}
    for prompt in prompts:
        room = longest - prompt.length
        sequences = sequence_inputs(prompt.inputs)
        for name, value in prompt.inputs.items():
            if name in sequences:
                value = F.pad(value, (room, 0), value=padding if name == "input_ids" else 0)
            joined.setdefault(name, []).append(value)
    for name, values in joined.items():  # a prompt without media may lack types of tokens
        if name.endswith("token_type_ids") and len(values) != len(prompts):
            raise DataError(f"some prompts of this batch have {name} and some have none")
    return {name: torch.cat(_to_one_shape(values)) for name, values in joined.items()}


def stackable(prompts: Sequence[EncodedPrompt]) -> list[list[int]]:
    """Return the indices of prompts in sets that `collate` may batch: prompts whose videos have the same shape.

    In models that take videos as one tensor of frames (LLaVA-OneVision), padding frames would be attended to. Some
    families cannot tell the tokens of images from those of videos, or count the images of a whole batch.
    """
    if any(not prompt.family.batches for prompt in prompts):
        return [[number] for number in range(len(prompts))]
    sets: dict[tuple[int, ...] | None, list[int]] = {}
    for number, prompt in enumerate(prompts):
        videos = prompt.inputs.get("pixel_values_videos")
        key = (0,) if prompt.images and not prompt.family.mixes_media else None
        sets.setdefault(key if videos is None else tuple(videos.shape[1:]), []).append(number)
    without = sets.pop(None, []) if len(sets) > 1 else []  # prompts without videos fit into any set
    return [sorted(numbers + (without if not place else [])) for place, numbers in enumerate(sets.values())]


def pixel_inputs(inputs: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the inputs with the pixels of images and videos."""
    return [name for name, value in inputs.items() if value.is_floating_point() and any(p in name for p in _PIXELS)]


def is_of_videos(name: str) -> bool:
    """Return True if an input has the pixels of videos alone, by its name."""
    return "video" in name


def sequence_inputs(inputs: dict[str, Tensor]) -> set[str]:
    """Return the names of the inputs with one value for each token."""
    shape = inputs["input_ids"].shape
    return {name for name, value in inputs.items() if value.shape == shape and name.endswith(_OF_TOKENS)}


def _to_one_shape(values: list[Tensor]) -> list[Tensor]:
    """Pad every dimension but the first with zeros at the end, to the largest: models skip such tiles."""
    largest = [max(sizes) for sizes in zip(*(value.shape[1:] for value in values), strict=True)]
    return [
        F.pad(v, [n for size, most in zip(v.shape[:0:-1], largest[::-1], strict=True) for n in (0, most - size)])
        for v in values
    ]


def _video_metadata(clip: VideoFrames) -> dict[str, Any]:
    """Return the metadata that a video processor needs of frames that were sampled before."""
    return {
        "total_num_frames": clip.source_frames,
        "fps": clip.source_fps,
        "duration": clip.duration,
        "frames_indices": list(clip.indices),
    }


class PromptCache:
    """A least-recently-used cache of encoded prompts up to a size in bytes, with the sample object as the key.

    An evaluation encodes the same prompts again and again, sampled and greedy.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        # The sample is kept too: `id` is unique only among living objects.
        self._prompts: OrderedDict[int, tuple[Sample, EncodedPrompt]] = OrderedDict()

    def __deepcopy__(self, memo: Any) -> PromptCache:
        """Return an empty cache: the keys of this one belong to its own samples."""
        return PromptCache(self._max_bytes)

    def get(self, sample: Sample) -> EncodedPrompt | None:
        """Return the prompt of a sample, or None if it is not in the cache."""
        found = self._prompts.get(id(sample))
        if found is None:
            return None
        self._prompts.move_to_end(id(sample))
        return found[1]

    def put(self, sample: Sample, prompt: EncodedPrompt) -> None:
        """Store a prompt and evict the least recently used ones. Its tensors must not be modified afterwards."""
        if prompt.bytes > self._max_bytes or id(sample) in self._prompts:
            return
        self._prompts[id(sample)] = sample, prompt
        self._bytes += prompt.bytes
        while self._bytes > self._max_bytes:
            self._bytes -= self._prompts.popitem(last=False)[1][1].bytes


def conversation(sample: Sample) -> list[dict[str, Any]]:
    """Return the turns that a chat template takes, each with a role and a list of `image`, `video` and `text` parts.

    Raises:
        DataError: the number of places differs from the number of images or videos, or a message is malformed.
    """
    messages = sample.messages or ({"role": "user", "content": sample.prompt},)
    try:
        turns = [{"role": turn.get("role", "user"), "content": _parts(turn.get("content"))} for turn in messages]
    except DataError as err:
        raise DataError(f"sample {sample.id!r}: {err}") from None
    expected = {"image": len(sample.images), "video": len(sample.videos)}
    found = {kind: sum(part["type"] == kind for turn in turns for part in turn["content"]) for kind in expected}
    if found == expected:
        return turns
    first: dict[str, Any] | None = next((turn for turn in turns if turn["role"] == "user"), None)
    if first is not None and not any(found.values()):
        first["content"] = [{"type": kind} for kind, count in expected.items() for _ in range(count)] + first["content"]
    else:
        raise DataError(
            f"sample {sample.id!r}: its text has places for {found['image']} images and {found['video']} videos "
            f"(<image>, <video>), and it comes with {expected['image']} and {expected['video']}"
        )
    return turns


def plain_text(turns: list[dict[str, Any]], image_token: str) -> str:
    """Return the text for processors without a chat template: all images first, then all words (PaliGemma)."""
    parts = [part for turn in turns for part in turn["content"]]
    images = image_token * sum(part["type"] == "image" for part in parts)
    return images + " ".join(part["text"] for part in parts if part["type"] == "text")


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
                    f"a part of a message has the keys {', '.join(own)}: media are listed in '{kind}s' of the sample, "
                    f'in their order, and a message marks their places by {{"type": "{kind}"}} or <{kind}>'
                )
            parts.append({"type": kind})
        elif kind == "text":
            parts.extend(_parts(str(part.get("text", ""))))
        else:
            raise DataError(f"a part of a message is of the type {kind!r}: expected image, video or text")
    return parts
