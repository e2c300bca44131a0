"""Encoding of samples into inputs of a model's forward pass, by the model's own processor.

An image or video that does not become an input of the model raises `DataError`: some processors drop videos silently.
"""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.understanding.encoded_prompt import EncodedPrompt, WirePrompt, is_of_videos, pixel_inputs
from mmrl.understanding.vlm import VLM

CACHE_BYTES = 512 * 2**20
"""Bytes of encoded prompts that a `PromptCache` keeps by default."""
PLACES = re.compile(r"<(image|video)>")
"""Marks of the positions of images and videos in a text; without marks, media come first."""
_NOT_INPUTS = ("labels", "video_metadata")


class PromptEncoder:
    """An encoder of samples with a model's own processor, and a cache of its results."""

    def __init__(self, vlm: VLM, reader: MediaReader, keep_media: bool = False) -> None:
        """`keep_media`: prompts are sent to servers, so each keeps its images and its tokens before expansion."""
        self.keep_media = keep_media
        self.processor, self._family, self._reader = vlm.processor, vlm.family, reader
        self._accepted = set(inspect.signature(vlm.model.forward).parameters)  # other inputs would be ignored
        self._placeholders = vlm.placeholders
        self._marks = [str(mark) for mark in vlm.tokenizer.convert_ids_to_tokens(vlm.suppressed.tolist())]
        self.processor_name = type(vlm.processor).__name__
        count = getattr(getattr(vlm.model, "model", None), "get_rope_index", None)
        types = count is not None and "mm_token_type_ids" in inspect.signature(count).parameters
        self._wanted = {"return_mm_token_type_ids": True} if types else {}  # Cosmos 3 Edge makes them on request alone
        self.instructions = ""  # read before the text of every sample
        self._cache = PromptCache()

    @property
    def takes_video(self) -> bool:
        """True if the processor has a video processor; one without it drops videos silently."""
        return getattr(self.processor, "video_processor", None) is not None and self._family.plays

    def check_sample(self, sample: Sample) -> None:
        """Check that the processor takes the media of a sample, before anything is decoded.

        Raises:
            DataError: it does not; the message names the sample and the processor.
        """
        if sample.videos and not self.takes_video:
            raise DataError(f"sample {sample.id!r} holds a video, which {self.processor_name} does not take")
        if not sample.images and not sample.videos and self.processor.chat_template is None:
            raise DataError(f"sample {sample.id!r} holds no image, and {self.processor_name} takes no text alone")
        if sample.images and sample.videos and not self._family.mixes_media:
            raise DataError(
                f"sample {sample.id!r} holds images and videos, which {self.processor_name} does not take together"
            )

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
        return self.processed(
            self._render(sample),
            [self._reader.image(path, sample.id) for path in sample.images],
            [self._reader.video(path, sample.id) for path in sample.videos],
            sample.id,
            subject=f"sample {sample.id!r}",
        )

    def processed(
        self,
        text: str,  # with one placeholder for each image and video
        images: Sequence[Image.Image],
        clips: Sequence[VideoFrames],
        sample_id: str,
        subject: str,  # for messages
        begins: bool = True,  # False: the text continues another, so that no token marks its beginning
    ) -> EncodedPrompt:
        """Return the model inputs of a rendered text and its media.

        Raises:
            DataError: the processor does not take the media, or some of them would not reach the model.
        """
        self._check_places(text, len(images), len(clips), subject)
        times = [_video_metadata(clip) for clip in clips]
        inputs = self._inputs(text, images, clips, times, subject, begins)
        self._check_nothing_lost(inputs, len(images), len(clips), subject)
        wire = None
        if self.keep_media:
            self._check_mark(bool(clips), subject)
            sent = [sent_metadata(len(clip.frames), self._reader.budget.video.fps) for clip in clips]
            if sent != times:
                self._check_times(inputs, self._inputs(text, images, clips, sent, subject, begins), subject)
            ids = self.processor.tokenizer(text, add_special_tokens=begins)["input_ids"]
            wire = WirePrompt(sample_id, tuple(ids), tuple(images), tuple(clip.frames for clip in clips))
        return EncodedPrompt(inputs, len(images), len(clips), self._family, wire=wire)

    def _inputs(
        self,
        text: str,
        images: Sequence[Image.Image],
        clips: Sequence[VideoFrames],
        times: Sequence[dict[str, Any]],  # the metadata of each clip
        subject: str,
        begins: bool,
    ) -> dict[str, Tensor]:
        """Return what the processor makes of a text and its media.

        Raises:
            DataError: it does not take them.
        """
        arguments: dict[str, Any] = {"text": [text], "return_tensors": "pt", **self._wanted}
        if not begins:
            arguments["add_special_tokens"] = False
        if images:
            arguments["images"] = [list(images)]
        if clips:
            arguments["videos"] = [[clip.frames for clip in clips]]
            arguments["videos_kwargs"] = {
                "do_sample_frames": False,
                "return_metadata": True,
                "video_metadata": [list(times)],
            }
        try:
            encoded = dict(self.processor(**arguments))
        except ValueError as err:  # InternVL and LLaVA-OneVision need videos of equal length in a sample
            raise DataError(f"{subject}: {self.processor_name} cannot take it: {err}") from err
        return {name: torch.as_tensor(value) for name, value in encoded.items() if name not in _NOT_INPUTS}

    def _check_mark(self, clips: bool, subject: str) -> None:
        """Raise if a prompt for a server has a video, and the processor has no token for one (SmolVLM)."""
        mark = self.mark_of("video")
        if (
            clips
            and mark is not None
            and len(self.processor.tokenizer(mark, add_special_tokens=False)["input_ids"]) > 1
        ):
            raise DataError(
                f"{subject} holds a video, which {self.processor_name} marks by a word of several tokens, where a "
                "server finds none to put it: leave run.servers out"
            )

    def _check_times(self, own: dict[str, Tensor], sent: dict[str, Tensor], subject: str) -> None:
        """Raise unless a processor reads a video with the times that a server assumes as with its true ones."""
        if own.keys() == sent.keys() and all(torch.equal(value, sent[name]) for name, value in own.items()):
            return
        rate = self._reader.budget.video.fps
        raise DataError(
            f"{subject} holds a video, and {self.processor_name} reads the times of its frames, which a server takes "
            f"for {rate:g} a second: choose media.video.fps, min_frames and max_frames so that they are, or leave "
            "run.servers out"
        )

    def _render(self, sample: Sample) -> str:
        """Return the conversation as text, with one placeholder for each image and video."""
        turns = self.conversation(sample)
        for words in (part["text"] for turn in turns for part in turn["content"] if part["type"] == "text"):
            if mark := next((mark for mark in self._marks if mark in words), None):
                raise DataError(
                    f"sample {sample.id!r}: its text holds {mark}, by which {self.processor_name} marks its media"
                )
        if self.processor.chat_template is None:
            return plain_text(turns, self.mark_of("image") or "")
        return str(self.processor.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def conversation(self, sample: Sample) -> list[dict[str, Any]]:
        """Return the turns of a sample (`conversation`), its first user turn with the instructions before its text."""
        turns = conversation(sample)
        first = next((turn for turn in turns if turn["role"] == "user"), None)
        if self.instructions and first is not None:
            words = [place for place, part in enumerate(first["content"]) if part["type"] == "text"]
            at = words[0] if words else len(first["content"])
            first["content"].insert(at, {"type": "text", "text": f"{self.instructions}\n\n"})
        return turns

    def _check_places(self, text: str, images: int, videos: int, subject: str) -> None:
        """Raise unless the text has one placeholder for each image and video, if the processor names them."""
        for kind, count in (("image", images), ("video", videos)):
            mark = self.mark_of(kind)
            if mark is not None and text.count(mark) != count:
                raise DataError(
                    f"{subject} holds {count} {kind}(s), and the chat template of {self.processor_name} made "
                    f"{text.count(mark)} places for them ({mark}): it would be lost"
                )

    def mark_of(self, kind: str) -> str | None:
        """Return what a chat template writes for an image or a video, or None if the processor does not say it."""
        named = (getattr(self.processor, f"{kind}_{each}", None) for each in ("placeholder_token", "token"))
        mark = next((each for each in named if each is not None), None)
        return None if mark is None else str(getattr(mark, "content", mark))  # BLIP-2 has an object

    def _check_nothing_lost(self, inputs: dict[str, Tensor], images: int, videos: int, subject: str) -> None:
        """Raise unless every image and video has tokens in the text and pixels among the inputs."""
        if unread := sorted(set(inputs) - self._accepted):
            raise DataError(
                f"{subject}: {self.processor_name} makes {', '.join(unread)}, which the model's forward pass does "
                "not take: it would be lost"
            )
        ids = inputs["input_ids"]
        for kind, count in (("image", images), ("video", videos)):
            if not count:
                continue
            place = self._placeholders.get(kind, self._placeholders.get("image"))
            places = int((ids == place).sum()) if place is not None else 0
            if kind == "video" and not places and not images:  # GLM-4V marks frames as images
                places = int((ids == self._placeholders.get("image", -1)).sum())
            names = pixel_inputs(inputs)
            own = [name for name in names if is_of_videos(name) == (kind == "video")]
            # Some models take the frames of a video as images.
            pixels = sum(inputs[name].numel() for name in own or (names if kind == "video" else []))
            if places < count or not pixels:
                raise DataError(
                    f"{subject}: {count} {kind}(s) went into {self.processor_name} and "
                    f"{places} tokens and {'some' if pixels else 'no'} pixels came out: it would be lost"
                )


def _video_metadata(clip: VideoFrames) -> dict[str, Any]:
    """Return the metadata that a video processor needs of frames that were sampled before."""
    return {
        "total_num_frames": clip.source_frames,
        "fps": clip.source_fps,
        "duration": clip.duration,
        "frames_indices": list(clip.indices),
    }


def sent_metadata(frames: int, fps: float) -> dict[str, Any]:
    """Return the metadata that vLLM has of a video whose frames it was sent (`video/jpeg`), started with
    `--media-io-kwargs '{"video": {"fps": ..., "num_frames": -1}}'`."""
    return {
        "total_num_frames": frames,
        "fps": fps,
        "duration": frames / fps,
        "frames_indices": list(range(frames)),
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
