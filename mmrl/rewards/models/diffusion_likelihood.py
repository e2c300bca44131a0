"""`diffusion_likelihood`: a generator of the run denoises a picture with its prompt and without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

from mmrl.data.sample import Sample
from mmrl.rewards.core.denoising import denoiser_of
from mmrl.rewards.core.image_input import answer_image, reference_image
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput


class DiffusionLikelihood(RowsReward):
    """The error of a generator of the run that denoises a picture without its prompt, less that with it.

    The picture's latents are noised to `levels` levels; the error of a level is the mean squared difference between the
    generator's velocity, without guidance, and the true one. The score is the mean of the error without a prompt less
    that with it, an estimate of how likely the prompt makes the picture relative to all pictures: above 0 if the prompt
    says something true of it. All answers of an iteration have the same noise. A picture is scored with the prompt of
    its sample; a text is a prompt for the picture that `references` has, so a caption is as good as what it explains.
    """

    name, range = "diffusion_likelihood", (-math.inf, math.inf)
    source = "diffusion classifier, arXiv:2303.16203; relative to no prompt: pointwise information, arXiv:2405.20759"

    def __init__(
        self, model: str = "policy", levels: int = 4, relative: bool = True, reference: str = "images"
    ) -> None:
        """
        Args:
            model: a generator of the run; `policy` is the policy as it is now.
            levels: the number of noise levels, in the middles of equal parts of those that the model was trained at.
            relative: False leaves the error without a prompt out: minus the error alone.
            reference: the key in `references` of the picture that a text is a prompt for, a path or data URI, or a list
                of which it is the first.
        """
        if levels < 1:
            raise RewardError(f"{self.name}: levels is {levels}; an error has one noise level at least")
        self.models = self.denoisers = (model,)
        self._places = [(number + 0.5) / levels for number in range(levels)]
        self._relative, self._reference = relative, reference

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers with one call of the model, with their prompts and without."""
        generator = denoiser_of(context, self.models[0])
        pictures = [attempt(self._picture, item, errors=FAULTS) for item in items]
        usable = [place for place, picture in enumerate(pictures) if not isinstance(picture, Exception)]
        if not usable:
            return pictures
        samples, media = [_described(items[place]) for place in usable], [pictures[place] for place in usable]
        blank = [replace(sample, prompt="") for sample in samples] if self._relative else []
        levels = generator.denoise([*samples, *blank], media + media[: len(blank)], self._places, context.seed)
        errors = [mean(each.error for each in own) for own in levels]
        own, without = errors[: len(samples)], errors[len(samples) :] or [0.0] * len(samples)
        scores = [other - error for error, other in zip(own, without, strict=True)]
        found: dict[int, Scored] = dict(zip(usable, scores, strict=True))
        return [found.get(place, picture) for place, picture in enumerate(pictures)]

    def _picture(self, item: RewardInput) -> Any:
        """Return the picture or the frames that are denoised."""
        if item.video is not None:
            return [answer_image(frame) for frame in item.video]
        if item.image is not None:
            return answer_image(item.image)
        if item.text is None:
            raise ScoringFailed("the answer is neither a picture nor a text", "wrong_type")
        if not item.text.strip():
            raise InvalidAnswer("the text is empty, so it describes nothing")
        value = item.references.get(self._reference)
        return reference_image(value[0] if isinstance(value, list | tuple) and value else value, self._reference)


def _described(item: RewardInput) -> Sample:
    """Return the sample whose prompt an answer's picture is denoised with."""
    if item.text is not None:
        return Sample(id=item.id, prompt=item.text.strip())
    return item.sample or Sample(id=item.id, prompt=item.prompt)
