"""Encoding of observations: what a chat template writes between two turns of the policy, with pictures and clips.

The template renders the conversation up to the policy's last turn, once without and once with the observation. What the
second has more, after the end token of the turn, is tokenised by the model's own processor. The text of the turn itself
is never rendered: a word stands for it, so the ids that were sampled stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from jinja2 import TemplateError

from mmrl.data.media.budget import fit_image
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation
from mmrl.errors import DataError
from mmrl.understanding.continuation import EncodedObservation, relative_positions
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.vlm import VLM

ANSWER = "mmrlturn"
"""The word that stands for a turn of the policy."""


class ObservationEncoder:
    """An encoder of observations with a model's chat template and processor, for one call.

    Rows of a group often see the same: equal pictures with equal texts are encoded once, and equal conversations
    rendered once, as long as the encoder lives.
    """

    def __init__(self, vlm: VLM, prompts: PromptEncoder, reader: MediaReader) -> None:
        self._vlm, self._prompts, self._reader = vlm, prompts, reader
        self._known: dict[tuple[Any, ...], EncodedObservation] = {}
        self._suffixes: dict[str, str] = {}  # of the messages up to an observation
        self._end = str(vlm.tokenizer.convert_ids_to_tokens(vlm.end))
        self._special = _special_texts(vlm, prompts)

    def check_family(self) -> None:
        """Check that the model's chat template can continue a conversation.

        Raises:
            DataError: it has none, or changes earlier turns when others follow.
        """
        if self._vlm.processor.chat_template is None:
            raise DataError(
                f"environment: {self._prompts.processor_name} has no chat template, so there is no form in which an "
                "observation could follow an answer: choose a model that was made for conversations"
            )
        question = {"role": "user", "content": [{"type": "text", "text": "?"}]}
        self._suffix([question], Observation("."), "environment")

    def begin(self, sample: Sample) -> list[dict[str, Any]]:
        """Return the messages of a sample, which `encode` continues."""
        return self._prompts.conversation(sample)

    def encode(
        self, messages: Sequence[dict[str, Any]], observation: Observation, sample: Sample
    ) -> tuple[EncodedObservation, list[dict[str, Any]]]:
        """Encode an observation that follows a turn of the policy, which `messages` end before.

        Returns:
            the observation, and the messages up to the next turn of the policy.

        Raises:
            DataError: the model does not take the observation's media, or its template cannot place them.
        """
        subject = f"an observation of sample {sample.id!r}"
        if observation.videos and not self._prompts.takes_video:
            raise DataError(f"{subject} holds a video, which {self._prompts.processor_name} does not take")
        if observation.images and observation.videos and not self._vlm.family.mixes_media:
            raise DataError(
                f"{subject} holds images and videos, which {self._prompts.processor_name} does not take together"
            )
        text, continued = self._suffix(messages, observation, subject)
        images = [fit_image(image.convert("RGB"), self._reader.budget.image) for image in observation.images]
        key = (text, *((image.size, sha256(image.tobytes()).digest()) for image in images))
        if key in self._known:
            return self._known[key], continued
        encoded = self._prompts.processed(text, images, observation.videos, sample.id, subject, begins=False)
        found = EncodedObservation(encoded, relative_positions(self._vlm.model, self._vlm.family, encoded))
        if not observation.videos and not self._prompts.keep_media:  # what a server gets names the sample
            self._known[key] = found
        return found, continued

    def _suffix(
        self, messages: Sequence[dict[str, Any]], observation: Observation, subject: str
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return the text from after the end token of a turn to where the next one begins, and the messages so far."""
        parts: list[dict[str, Any]] = [{"type": "image"} for _ in observation.images]
        parts += [{"type": "video"} for _ in observation.videos]
        if words := self._escaped(observation.text):
            parts.append({"type": "text", "text": words})
        answered = [*messages, {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}]
        continued = [*answered, {"role": "user", "content": parts}]
        key = repr(continued)  # messages hold texts alone, and a mark for each picture and clip
        if key in self._suffixes:
            return self._suffixes[key], continued
        try:
            without = self._rendered(answered)
            with_it = self._rendered(continued, add_generation_prompt=True)
        except (TemplateError, TypeError) as err:
            raise DataError(
                f"{subject}: the chat template of {self._prompts.processor_name} cannot continue a conversation: {err}"
            ) from err
        if ANSWER not in without or not with_it.startswith(without):
            raise DataError(
                f"{subject}: the chat template of {self._prompts.processor_name} writes earlier turns otherwise once "
                "an observation follows, so what was sampled would not be what is continued"
            )
        ending = without.rpartition(ANSWER)[2]
        after = ending + with_it[len(without) :]
        self._suffixes[key] = after.removeprefix(self._end)
        return self._suffixes[key], continued

    def _rendered(self, messages: Sequence[dict[str, Any]], **settings: Any) -> str:
        return str(self._vlm.processor.apply_chat_template(list(messages), tokenize=False, **settings))

    def _escaped(self, text: str) -> str:
        """Return an untrusted text in which no special token is left: a space is put into each.

        The word for a turn of the policy is parted too.
        """
        return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def _special_texts(vlm: VLM, prompts: PromptEncoder) -> re.Pattern[str]:
    """Return a pattern of all texts that the tokenizer or the processor takes for special tokens."""
    added = vlm.tokenizer.added_tokens_decoder.values()
    texts = {str(token.content) for token in added if token.special}
    texts |= {str(mark) for mark in vlm.tokenizer.convert_ids_to_tokens(vlm.suppressed.tolist())}
    texts |= {mark for kind in ("image", "video") if (mark := prompts.mark_of(kind))}
    texts.add(ANSWER)
    return re.compile("|".join(map(re.escape, sorted(filter(None, texts), key=len, reverse=True))))
