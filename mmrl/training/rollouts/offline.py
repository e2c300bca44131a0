"""Experience from the data set: demonstrations, and pairs of a chosen and a rejected answer.

A reader turns answers into rollouts: texts for a policy that writes texts, images for one that makes images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch

from mmrl.data.media.decode import load_image
from mmrl.data.media.sample_media import answer_image, answer_images
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import ConfigError, DataError
from mmrl.policy import LatentInitPolicy, Policy, TeacherForcingPolicy
from mmrl.rollout import Rollout
from mmrl.rollout_request import TargetText
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.objectives.base import uses_velocity_loss
from mmrl.training.rollouts.demonstrations import demonstrated_turns, demonstrations_of
from mmrl.training.rollouts.exchange import shared_rollouts
from mmrl.training.rollouts.rollout_metrics import length_metrics
from mmrl.training.run.timers import Phases


@dataclass
class _DataSetSource:
    """A source of answers in the data set, whose state is that of its prompts."""

    policy: Policy
    prompts: PromptSource
    micro_batch: int  # rows of one rollout

    def __post_init__(self) -> None:
        self._read: AnswerReader = answer_reader(self.policy)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the prompts; the rest follows from the seed and the iteration."""
        return {"prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prompts.load_state_dict(state["prompts"])


@dataclass
class Demonstrations(_DataSetSource):
    """A source of one demonstration for each prompt of an iteration, all with advantage 1.

    A sample with several demonstrations gives a random one in each iteration.
    """

    seed: int

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return their rollouts. Metrics of texts: `length`, and `length_by_source/<source>`, in tokens.

        Raises:
            DataError: a sample has no demonstration.
        """
        answers: list[OfflineAnswer] = []
        for group, sample in enumerate(self.prompts.next()):
            texts = self._read.demonstrations(sample)
            if not texts:
                raise DataError(f"sample {sample.id!r} has no demonstration")
            answers.append((sample, texts[fold_in(self.seed, iteration, group) % len(texts)], group))
        return offline_experience(self._read, answers, [1.0] * len(answers), self.micro_batch, phases)


@dataclass
class PreferencePairs(_DataSetSource):
    """A source of the chosen and the rejected answer to each prompt of an iteration.

    Rows 2i and 2i + 1 are a pair of one group, chosen first (advantage 1), then rejected (advantage -1), and no pair is
    split over two rollouts. With an `axis`, the samples say which answer is chosen on it.

    Raises:
        ConfigError: `micro_batch` is odd.
    """

    axis: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self._read, TextAnswerReader):
            self._read = replace(self._read, axis=self.axis)
        if self.micro_batch % 2:
            raise ConfigError(f"data.micro_batch: {self.micro_batch} rows would split a pair: take an even number")

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return their rollouts. Metrics of texts: `length`, and `length_by_source/<source>`, in tokens.

        Raises:
            DataError: a sample has no pair.
        """
        answers = [
            (sample, answer, group)
            for group, sample in enumerate(self.prompts.next())
            for answer in self._read.pair(sample)
        ]
        return offline_experience(self._read, answers, [1.0, -1.0] * (len(answers) // 2), self.micro_batch, phases)


OfflineAnswer: TypeAlias = tuple[Sample, str | tuple[str, ...], int]
"""A sample, an answer to it (a text, the texts of the turns of an episode, or the path of an image), and its group."""


@dataclass(frozen=True)
class TextAnswerReader:
    """A reader of texts, each with its end token."""

    policy: TeacherForcingPolicy
    axis: str | None = None  # of `metadata.axes`, which says which text of a pair is chosen; None: as they stand
    kind: ClassVar[str] = "text"

    def demonstrations(self, sample: Sample) -> tuple[str, ...] | tuple[tuple[str, ...], ...]:
        """Return the texts to imitate, or the turns of the episodes; empty if there are none."""
        return demonstrated_turns(sample) or demonstrations_of(sample)

    def pair(self, sample: Sample) -> tuple[str, str]:
        """Return the chosen and the rejected text, on the reader's axis."""
        chosen, rejected = preference_pair(sample)
        return (chosen, rejected) if self.axis is None or chosen_on(sample, self.axis) else (rejected, chosen)

    def __call__(self, answers: Sequence[OfflineAnswer]) -> Rollout:
        """Return a rollout with teacher forcing."""
        targets = []
        for sample, answer, group in answers:
            text, turns = (answer, ()) if isinstance(answer, str) else ("", answer)
            targets.append(TargetText(sample, text, group, turns=turns))
        return self.policy.score_targets(targets)


@dataclass(frozen=True)
class ImageAnswerReader:
    """A reader of images, `{image: path}` in a sample, encoded into the clean latents of a rollout."""

    policy: LatentInitPolicy
    kind: ClassVar[str] = "picture"

    def __post_init__(self) -> None:
        self.policy.encode([])  # raises at once for a model without an image encoder

    def demonstrations(self, sample: Sample) -> tuple[str, ...]:
        """Return the paths of the images.

        Raises:
            DataError: the sample's demonstration is not an image.
        """
        found = answer_images(sample.demonstration)
        if sample.demonstration is not None and not found:
            raise DataError(
                f"sample {sample.id!r}: expected its demonstration to be {{image: path}} or a list of those"
            )
        return found

    def pair(self, sample: Sample) -> tuple[str, str]:
        """Return the paths of the two images.

        Raises:
            DataError: one is missing or not an image, or they are equal.
        """
        chosen, rejected = answer_image(sample.chosen), answer_image(sample.rejected)
        if chosen is None or rejected is None or chosen == rejected:
            raise DataError(
                f"sample {sample.id!r} needs two different pictures, {{image: path}} as 'chosen' and as 'rejected'"
            )
        return chosen, rejected

    def __call__(self, answers: Sequence[OfflineAnswer]) -> Rollout:
        """Return a rollout that ends in the encoded images."""
        images = [load_image(str(path), sample.id) for sample, path, _ in answers]
        samples, groups = [sample for sample, _, _ in answers], [group for _, _, group in answers]
        return self.policy.rollout_from_latents(samples, groups, self.policy.encode(images), images)


AnswerReader: TypeAlias = TextAnswerReader | ImageAnswerReader


def answer_reader(policy: Policy) -> AnswerReader:
    """Return the reader of a policy's answers.

    Raises:
        UnsupportedError: the policy makes images, and its model has no image encoder.
    """
    if uses_velocity_loss(policy.capabilities):
        return ImageAnswerReader(policy)  # type: ignore[arg-type]  # `check_compatible` checks the capability
    return TextAnswerReader(policy)  # type: ignore[arg-type]


def check_answers(samples: Sequence[Sample], kind: str, policy: Policy, axis: str | None = None) -> None:
    """Raise, before training, unless every sample has the answers that a source needs.

    `kind` is "demonstrations" or "pairs", the `experience` of the algorithm; `axis` is that of pairs of texts.

    Raises:
        DataError: samples lack answers; the message has their number and the first one's id.
    """
    read = answer_reader(policy)
    lacking = []
    for sample in samples:
        try:
            has = read.pair(sample) if kind == "pairs" else read.demonstrations(sample)
        except DataError:
            has = ()
        if not has:
            lacking.append(sample.id)
    if axis is not None and not lacking:
        for sample in samples:
            chosen_on(sample, axis)
    if lacking:
        expected = (
            f"a {read.kind} under 'chosen' and another under 'rejected'"
            if kind == "pairs"
            else f"a {read.kind} as 'demonstration'"
        )
        form = ', written as {"image": "its path"}' if read.kind == "picture" else ""
        raise DataError(f"{len(lacking)} of {len(samples)} samples lack {expected}{form}; the first is {lacking[0]!r}")


def preference_pair(sample: Sample) -> tuple[str, str]:
    """Return the chosen and the rejected text.

    Raises:
        DataError: one is missing or not a text, or they are equal.
    """
    chosen, rejected = sample.chosen, sample.rejected
    if not (isinstance(chosen, str) and isinstance(rejected, str)) or chosen == rejected:
        raise DataError(f"sample {sample.id!r} needs two different texts, 'chosen' and 'rejected', to prefer one")
    return chosen, rejected


def chosen_on(sample: Sample, axis: str) -> bool:
    """Return whether the text under `chosen` is the better one on an axis of `metadata.axes`.

    Raises:
        DataError: the sample says nothing about this axis.
    """
    axes = sample.metadata.get("axes")
    side = axes.get(axis) if isinstance(axes, Mapping) else None
    if side not in ("chosen", "rejected"):
        raise DataError(
            f"sample {sample.id!r}: expected metadata.axes.{axis} to be chosen or rejected, the better text of the "
            f"pair on this axis, got {side!r}"
        )
    return bool(side == "chosen")


def offline_experience(
    read: AnswerReader, answers: Sequence[OfflineAnswer], advantages: Sequence[float], rows: int, phases: Phases
) -> Experience:
    """Return micro-batches of at most `rows` answers; each decision has the advantage of its answer.

    Metrics of texts: `length`, and `length_by_source/<source>`, in tokens.
    """
    starts = range(0, len(answers), rows)
    own: dict[int, Rollout] = {}
    for number, start in enumerate(starts):
        if processes.owns(number):
            with phases("rollout"), torch.no_grad():
                own[number] = read(answers[start : start + rows])
    batches = []
    lengths: list[int] = []
    for start, rollout in zip(starts, shared_rollouts(own, [sample for sample, _, _ in answers]), strict=True):
        batches.append(MicroBatch.of_rows(rollout, torch.tensor(advantages[start : start + rows])))
        lengths += rollout.mask.sum(1).tolist()
    metrics = length_metrics(lengths, [sample.source for sample, _, _ in answers]) if read.kind == "text" else {}
    return Experience(batches, metrics)
