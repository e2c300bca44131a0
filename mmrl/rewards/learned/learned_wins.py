"""`learned_wins`: how likely an answer beats the picture that a reference model draws of its sample (OneReward)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.picture_drawing import lacks_sample, painter_of
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, WeightFile
from mmrl.rewards.learned.judge_inputs import query_features
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.model_files import ResolvedFile

if TYPE_CHECKING:
    from PIL import Image

    from mmrl.rewards.learned.judge_inputs import Facts


class LearnedWins(RowsReward):
    """Probability that an answer beats the picture of a reference model of the run, by a trained judge of pictures.

    In [0, 1]. The judge is a reward model of pairs; where it was trained with a query, such as a task and a criterion,
    the score is the mean over the queries of the sample (`metadata.criterion` may be a list).

        load("learned_wins", model="runs/rewards/shapes-masks", reference="start")
    """

    name, range = "learned_wins", (0.0, 1.0)
    needs = ("image",)
    source = "OneReward, arXiv:2508.21066"
    licence = "that of its encoder"

    def __init__(self, model: str, reference: str, draws: int = 1, device: str = "auto") -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote, with an encoder of the kind `clip`.
            reference: the model of the run that draws what answers are compared with, such as a snapshot of the policy.
            draws: pictures of the reference for each sample; an answer has the mean of its chances.
            device: of the judge; "auto" is CUDA if available.
        """
        from mmrl.rewards.learned.reward_folder import HEADS, read_reward_folder

        folder = Path(model).expanduser()
        settings, self._heads, _ = read_reward_folder(folder)
        if settings.kind != "clip" or settings.raters:
            raise RewardError(f"{model}: {self.name} takes a reward model of pictures without raters")
        if draws < 1:
            raise RewardError(f"{self.name}: draws is {draws}; an answer is compared with one picture at least")
        self._inputs, self._axes = settings.judge_inputs, len(settings.axes)
        self._encoder = load_encoder(self.name, settings.encoder, revision=settings.revision)
        self._encoder.freeze(device)
        place = next(self._encoder.network.parameters()).device
        for head in self._heads:
            head.requires_grad_(False).to(place)
        self._files = [*self._encoder.files, ResolvedFile(folder / HEADS, str(folder / HEADS))]
        self._reference, self._draws = reference, draws
        self.models = self.painters = (reference,)
        self._lock = threading.Lock()  # tokenizers of transformers are not thread-safe

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._files)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Draw the references of all samples in few calls, and judge all pairs in one."""
        scored: list[Any] = [attempt(self._candidate, item, errors=FAULTS) for item in items]
        rows = [row for row, each in enumerate(scored) if not isinstance(each, Exception)]
        painter = painter_of(context, self._reference)
        references = painter.pictures([scored[row].sample for row in rows], context.seed, self._draws)
        pairs = [
            (row, query, reference)
            for row, drawn in zip(rows, references, strict=True)
            for query in scored[row].queries
            for reference in drawn
        ]
        if not pairs:
            return scored
        answers = [scored[row].picture for row, _, _ in pairs]
        chances = self._chances(answers, [each for _, _, each in pairs], [each for _, each, _ in pairs])
        of_rows: dict[int, list[float]] = {row: [] for row in rows}
        for (row, _, _), chance in zip(pairs, chances, strict=True):
            of_rows[row].append(chance)
        return [sum(of_rows[row]) / len(of_rows[row]) if row in of_rows else each for row, each in enumerate(scored)]

    def _candidate(self, item: RewardInput) -> _Candidate:
        if item.sample is None:
            raise lacks_sample(self.name)
        picture = answer_image(item.image)
        try:
            return _Candidate(item.sample, picture, self._inputs.queries(item.sample))
        except DataError as err:
            raise ScoringFailed(str(err), "missing") from err

    def _chances(
        self, answers: Sequence[Image.Image], references: Sequence[Image.Image], facts: Sequence[Facts]
    ) -> list[float]:
        """Return the probability that each answer beats the reference beside it, [N] in (0, 1)."""
        import torch

        from mmrl.rewards.learned.head_training import JudgedPairs, axis_logits

        with self._lock, torch.inference_mode():
            own, other = (
                query_features(self._encoder, pictures, facts, self._inputs) for pictures in (answers, references)
            )
            pairs = JudgedPairs(own, other, own.new_zeros(len(own), self._axes))
            chances = torch.stack([axis_logits(head, pairs).sigmoid() for head in self._heads])  # [E, N, A]
            return [float(each) for each in chances.mean((0, 2))]


@dataclass(frozen=True)
class _Candidate:
    """A valid answer, its sample, and the facts of each query about it."""

    sample: Sample
    picture: Image.Image
    queries: Sequence[Facts]
