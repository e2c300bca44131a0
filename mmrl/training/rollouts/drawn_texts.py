"""`DrawnTexts`: trajectories of a text and of the picture that is drawn of it, for rewards that see the picture.

chain = DrawnTexts(writer, models["painter"], Captions())
rollout = chain.rollout(requests, seed=0)  # its `media` are pictures, its decisions tokens
rollout.drawn                              # the painter's rollout, row by row, whose decisions are steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mmrl.config.sampling import AnySamplingConfig
from mmrl.data.written_prompts import QuestionReader
from mmrl.policy import Capability, Policy
from mmrl.rollout import Rollout
from mmrl.rollout_request import PromptMixture, RolloutRequest
from mmrl.seeds import fold_in
from mmrl.training.named_model import NamedModel

PICTURE_STREAM = 11
"""The number of the random stream that texts are drawn with, beside the one that they are written with."""


@dataclass(frozen=True)
class DrawnTexts:
    """A writer whose texts a painter draws, one picture of each: trajectories of both (UniGRPO, arXiv:2603.23500)."""

    writer: Policy
    painter: NamedModel
    reader: QuestionReader
    sampling: AnySamplingConfig | None = None
    """The painter's; None: as it is trained."""
    keep_means: bool = False
    """True keeps the means of the painter's steps, for guarded ratios."""
    original_prompt: float = 0.0
    """The share of the user's prompt in the painter's guidance, in [0, 1], in evaluations: the rest is the text's."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the writer without the ones that take a text apart from its picture."""
        apart = {Capability.TEACHER_FORCE, Capability.ROW_STARTS, Capability.SELECT_ROWS}
        return self.writer.capabilities - apart

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of texts that answer the requests, with their pictures as `media` and as `drawn`."""
        texts = self.writer.rollout(requests, seed)
        first = requests[0]
        rows = zip(texts.media, texts.samples, texts.group_index.tolist(), strict=True)
        to_draw = [
            RolloutRequest(
                self.reader.read(text, sample) or sample,
                n=1,
                group=group,
                shared_seed=first.shared_seed,
                iteration=first.iteration,
                keep_means=self.keep_means,
                sampling=self.sampling,
                mixture=PromptMixture(sample.last_text, self.original_prompt) if self.original_prompt else None,
            )
            for text, sample, group in rows
        ]
        drawn = self.painter.draw(to_draw, fold_in(seed, PICTURE_STREAM))
        return replace(texts, media=drawn.media, drawn=drawn)
