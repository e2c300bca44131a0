"""Experience that stands in the data set: demonstrations, and pairs of a chosen and a rejected answer.

Answers are texts for a policy that writes and pictures for one that draws. Either reads them into a rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from mmrl.data.media.answer_media import picture_of, pictures_of
from mmrl.data.media.decode import load_image
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.policy import LatentInitPolicy, Policy, Rollout, TargetText, TeacherForcingPolicy
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.objectives.base import uses_velocity_loss
from mmrl.training.rollouts.demonstrations import demonstrations_of
from mmrl.training.rollouts.reward_metrics import length_metrics
from mmrl.training.run.timers import Phases


@dataclass
class Demonstrations:
    """The demonstrations of an iteration's prompts, one each, and each as good as the other: advantage 1.

    A sample with several demonstrations shows one of them at a time, at random.
    """

    policy: Policy
    prompts: PromptSource
    micro_batch: int  # rows of one rollout
    seed: int

    def __post_init__(self) -> None:
        self._read = reader_of(self.policy)

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Read them. Metrics, of texts: `length`, and `length_by_source/<source>`, in tokens.

        Raises:
            DataError: a sample has no demonstration.
        """
        given = []
        for group, sample in enumerate(self.prompts.next()):
            answers = self._read.demonstrations(sample)
            if not answers:
                raise DataError(f"sample {sample.id!r} has no demonstration to learn from")
            given.append((sample, answers[fold_in(self.seed, iteration, group) % len(answers)], group))
        return _experience(self._read, given, [1.0] * len(given), self.micro_batch, phases)

    def state_dict(self) -> dict[str, Any]:
        """Of the prompts; all else follows from the seed and the iteration."""
        return {"prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.prompts.load_state_dict(state["prompts"])


@dataclass
class PreferencePairs:
    """The chosen and the rejected answer to each of an iteration's prompts.

    Rows 2i and 2i + 1 are a pair of one group, chosen first (advantage 1), then rejected (advantage -1), and no pair is
    split over two rollouts.
    """

    policy: Policy
    prompts: PromptSource
    micro_batch: int  # rows of one rollout: an even number

    def __post_init__(self) -> None:
        self._read = reader_of(self.policy)
        if self.micro_batch % 2:
            raise ConfigError(f"data.micro_batch: {self.micro_batch} rows would split a pair: take an even number")

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Read them. Metrics, of texts: `length`, and `length_by_source/<source>`, in tokens.

        Raises:
            DataError: a sample has no pair.
        """
        given = [
            (sample, answer, group)
            for group, sample in enumerate(self.prompts.next())
            for answer in self._read.pair(sample)
        ]
        return _experience(self._read, given, [1.0, -1.0] * (len(given) // 2), self.micro_batch, phases)

    def state_dict(self) -> dict[str, Any]:
        """Of the prompts; all else follows from the iteration."""
        return {"prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.prompts.load_state_dict(state["prompts"])


Given: TypeAlias = tuple[Sample, str, int]
"""A sample, an answer to it (a text, or the path of a picture), and its group."""


class Reader(Protocol):
    """What a policy makes of given answers."""

    @property
    def what(self) -> str:
        """What answers are: "text" or "picture"."""
        ...

    def demonstrations(self, sample: Sample) -> tuple[str, ...]:
        """The answers that are to be imitated; empty if there are none."""
        ...

    def pair(self, sample: Sample) -> tuple[str, str]:
        """The chosen and the rejected answer."""
        ...

    def __call__(self, given: Sequence[Given]) -> Rollout:
        """A rollout of these answers."""
        ...


@dataclass(frozen=True)
class ReadTexts:
    """Answers are texts, each with its end token."""

    policy: TeacherForcingPolicy
    what: str = "text"

    def demonstrations(self, sample: Sample) -> tuple[str, ...]:
        """As they stand."""
        return demonstrations_of(sample)

    def pair(self, sample: Sample) -> tuple[str, str]:
        """As they stand."""
        return pair_of(sample)

    def __call__(self, given: Sequence[Given]) -> Rollout:
        """Teacher-forced."""
        return self.policy.score_targets([TargetText(*each) for each in given])


@dataclass(frozen=True)
class ReadPictures:
    """Answers are pictures: `{image: path}` in a sample, encoded into the latents that a rollout would end in."""

    policy: LatentInitPolicy
    what: str = "picture"

    def __post_init__(self) -> None:
        self.policy.encode([])  # refuses models that cannot, before anything else is done

    def demonstrations(self, sample: Sample) -> tuple[str, ...]:
        """
        Raises:
            DataError: the sample's demonstration is no picture.
        """
        found = pictures_of(sample.demonstration)
        if sample.demonstration is not None and not found:
            raise DataError(f"sample {sample.id!r}: its demonstration is no picture: {{image: path}} is due, or a list")
        return found

    def pair(self, sample: Sample) -> tuple[str, str]:
        """
        Raises:
            DataError: there is none, they are no pictures, or they are the same.
        """
        chosen, rejected = picture_of(sample.chosen), picture_of(sample.rejected)
        if chosen is None or rejected is None or chosen == rejected:
            raise DataError(
                f"sample {sample.id!r} needs two different pictures, {{image: path}} as 'chosen' and as 'rejected'"
            )
        return chosen, rejected

    def __call__(self, given: Sequence[Given]) -> Rollout:
        """Encoded."""
        pictures = [load_image(path, sample.id) for sample, path, _ in given]
        samples, groups = [sample for sample, _, _ in given], [group for _, _, group in given]
        return self.policy.rollout_from_latents(samples, groups, self.policy.encode(pictures), pictures)


def reader_of(policy: Policy) -> Reader:
    """How a policy reads answers. A model that cannot encode pictures is refused by name."""
    if uses_velocity_loss(policy.capabilities):
        return ReadPictures(policy)  # type: ignore[arg-type]  # `check_compatible` has seen to it
    return ReadTexts(policy)  # type: ignore[arg-type]


def refuse_without(samples: Sequence[Sample], kind: str, policy: Policy) -> None:
    """Refuse samples that a source cannot use, all at once and before anything is learnt.

    `kind` is "demonstrations" or "pairs", as an algorithm's `experience` names it.

    Raises:
        DataError: saying how many samples lack what is due, and which is the first.
    """
    read = reader_of(policy)
    lacking = []
    for sample in samples:
        try:
            has = read.pair(sample) if kind == "pairs" else read.demonstrations(sample)
        except DataError:
            has = ()
        if not has:
            lacking.append(sample.id)
    if lacking:
        what = read.what
        due = (
            f"a {what} under 'chosen' and another under 'rejected'"
            if kind == "pairs"
            else f"a {what} as 'demonstration'"
        )
        raise DataError(f"{len(lacking)} of {len(samples)} samples lack {due}; the first is {lacking[0]!r}")


def pair_of(sample: Sample) -> tuple[str, str]:
    """The chosen and the rejected text.

    Raises:
        DataError: there is none, they are no texts, or they are the same.
    """
    chosen, rejected = sample.chosen, sample.rejected
    if not (isinstance(chosen, str) and isinstance(rejected, str)) or chosen == rejected:
        raise DataError(f"sample {sample.id!r} needs two different texts, 'chosen' and 'rejected', to prefer one")
    return chosen, rejected


def _experience(
    read: Reader, given: Sequence[Given], advantages: Sequence[float], rows: int, phases: Phases
) -> Experience:
    """Micro-batches of given answers; what each decision earns is what its answer does."""
    batches = []
    lengths: list[int] = []
    for start in range(0, len(given), rows):
        with phases("rollout"), torch.no_grad():
            rollout = read(given[start : start + rows])
        gained = torch.tensor(advantages[start : start + rows])
        credit = gained.to(rollout.mask.device)[:, None].where(rollout.mask, 0.0)
        batches.append(MicroBatch(rollout, gained, torch.ones_like(gained, dtype=torch.bool), credit))
        lengths += rollout.mask.sum(1).tolist()
    metrics = length_metrics(lengths, [sample.source for sample, _, _ in given]) if read.what == "text" else {}
    return Experience(batches, metrics)
