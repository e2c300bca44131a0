"""The similarity of a picture with the one that a text describes: a model of the run draws the text again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.image_input import answer_image, reference_image
from mmrl.rewards.core.picture_drawing import painter_of
from mmrl.rewards.core.reward import Reward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, WeightFile
from mmrl.rewards.models.clip_encoder import load_encoder


class Reconstruction(Reward):
    """Similarity of an answer with the picture that it is to describe or to repeat: the cosine of CLIP's vectors.

    In [-1, 1]; 1 for the same picture. A picture is compared as it is. A text is drawn first, `draws` times, by a model
    of the run, and has the mean of these cosines: a caption is as good as what can be drawn from it.
    """

    name, range = "reconstruction", (-1.0, 1.0)
    source = "reconstruction similarity of UAE, arXiv:2509.09666"
    licence = "that of the named model"

    def __init__(
        self,
        painter: str | None = None,
        model: str = "openai/clip-vit-large-patch14",
        reference: str = "images",
        draws: int = 1,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """
        Args:
            painter: the model of the run that draws texts; None: answers are pictures.
            model: any CLIP or SigLIP, by path or hub id, of transformers or open_clip (see `load_encoder`).
            reference: the key in `references` of the picture, a path or data URI, or a list of which it is the first.
            draws: the pictures that are drawn of a text.
            device: of the CLIP; "auto" is CUDA if available.
            dtype: of the CLIP.
        """
        if draws < 1:
            raise RewardError(f"{self.name}: draws is {draws}; a text is drawn once at least")
        self._encoder = load_encoder(self.name, model, dtype=dtype)
        self._encoder.freeze(device)
        self._painter, self._reference, self._draws = painter, reference, draws
        self.models = self.painters = () if painter is None else (painter,)
        self._lock = threading.Lock()  # one call of the network at a time

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._encoder.files)

    def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
        """Return the score of a picture; a text needs a run that draws it."""
        return self._only(self.score_rows([item], RewardContext())[0])

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Draw all texts in few calls, and compare all pictures in one."""
        originals = [attempt(self._original, item, errors=FAULTS) for item in items]
        drawn = self._drawn(items, context)
        scored: list[Scored] = []
        usable: list[tuple[Image.Image, Sequence[Image.Image]]] = []
        for original, pictures in zip(originals, drawn, strict=True):
            faults = [each for each in (original, pictures) if isinstance(each, Exception)]
            scored.append(faults[0] if faults else 0.0)
            if not isinstance(original, Exception) and not isinstance(pictures, Exception):
                usable.append((original, pictures))
        found = iter(self._compared(usable))
        return [each if isinstance(each, Exception) else next(found) for each in scored]

    def measures(self, original: Image.Image, picture: Image.Image) -> Mapping[str, float]:
        """Return further scores of a picture by name, to be reported beside the similarity."""
        return {}

    def _compared(self, pairs: Sequence[tuple[Image.Image, Sequence[Image.Image]]]) -> list[Scored]:
        import torch

        if not pairs:
            return []
        flat = [image for original, pictures in pairs for image in (original, *pictures)]
        device = next(self._encoder.network.parameters()).device
        with self._lock, torch.inference_mode():
            vectors = self._encoder.embed_pixels(self._encoder.pixels(flat).to(device)).cpu()
        scored: list[Scored] = []
        for original, pictures in pairs:
            count = len(pictures)
            own, vectors = vectors[: count + 1], vectors[count + 1 :]
            cosine = float((own[1:] @ own[0]).clamp(-1, 1).mean())
            further = [self.measures(original, picture) for picture in pictures]
            scored.append({self.name: cosine} | {key: sum(each[key] for each in further) / count for key in further[0]})
        return scored

    def _drawn(self, items: Sequence[RewardInput], context: RewardContext) -> list[Any]:
        """Return the pictures of each answer, or what is wrong with it."""
        found: list[Any] = []
        texts: list[Sample] = []
        for item in items:
            if item.image is not None:
                picture = attempt(answer_image, item.image, errors=FAULTS)
                found.append(picture if isinstance(picture, Exception) else [picture])
            elif item.text is None:
                found.append(ScoringFailed("the answer is neither a picture nor a text", "wrong_type"))
            elif not item.text.strip():
                found.append(InvalidAnswer("the text is empty, so there is nothing to draw"))
            elif self._painter is None:
                found.append(ScoringFailed(f"{self.name} names no painter, and the answer is a text", "no_model"))
            else:
                found.append(None)
                texts.append(Sample(id=item.id, prompt=item.text.strip()))
        if not texts:
            return found
        try:
            pictures = iter(painter_of(context, str(self._painter)).pictures(texts, context.seed, self._draws))
        except ScoringFailed as err:
            return [err if each is None else each for each in found]
        return [next(pictures) if each is None else each for each in found]

    def _original(self, item: RewardInput) -> Image.Image:
        value = item.references.get(self._reference)
        first = value[0] if isinstance(value, list | tuple) and value else value
        return reference_image(first, self._reference)

    def _only(self, scored: Scored) -> float | Mapping[str, float]:
        if isinstance(scored, Exception):
            raise scored
        return scored
