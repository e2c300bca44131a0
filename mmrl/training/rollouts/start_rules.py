"""Start rules: what the rows of a group start with beside their sample, round after round.

A rule gives rows of the first round another start (a prefix, another prompt, a budget, a temperature), may ask for
further rounds once it has seen scores, and decides which rows are trained on and compared. A rule of your own is a
class in a file, `data.starts: {name: my_rules.py:HintedHalf}`:

    @dataclass(frozen=True)
    class HintedHalf(StartRule):
        hint: str

        def first(self, requests, context):
            start = RowStart("hinted", prefix=self.hint)
            half = [replace(each, n=each.n // 2, start=start) for each in requests]
            return split_groups(requests, half)

        def select(self, scored, context):
            return selection(scored, compared=by_label(scored))  # the hinted answers of a prompt among themselves

A rule keeps no state: all of it follows from the answers of the iteration so far, which every process knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.config.train import TrainConfig
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, GroupSampler, Origin, ScoredRollouts

STARTS_STREAM = 5
"""The number of the random stream of rules."""
ALONE = "alone"
"""The label, in metrics, of rows that start with their sample alone."""


@dataclass(frozen=True)
class StartContext:
    """The facts about the run that a rule knows, beside the answers of the iteration."""

    progress: float  # share of training that is done, in [0, 1]
    rng: np.random.Generator  # of this iteration; equal in all processes

    @classmethod
    def of(cls, seed: int, iteration: int, progress: float) -> StartContext:
        """Return the context of an iteration."""
        return cls(progress, np.random.default_rng([seed, iteration, STARTS_STREAM]))


class StartRule:
    """A rule for what rows start with. The base class changes nothing."""

    def errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting of `config` that cannot work with this rule."""
        yield from ()

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests of the first round, from one for each prompt of `group_size` answers."""
        return requests

    def more(self, scored: ScoredRollouts, context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests of another round, of groups that have answers or of new ones; none ends the sampling.

        `scored` holds the answers of all rounds so far, `scored.round_sizes` the number of each round.
        """
        return ()

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select the rows that are trained on and compared, after the last round (`selection`)."""
        return selection(scored)


@dataclass(frozen=True)
class StartedGroupSampler:
    """A group sampler whose requests a start rule changes and adds to."""

    rule: StartRule
    sampler: GroupSampler  # of the first round
    context: StartContext

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return the requests of the rule's next round."""
        if scored is None:
            return list(self.rule.first(self.sampler.next_requests(prompts, None), self.context))
        return list(self.rule.more(scored, self.context))

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select as the rule says.

        Metrics: `tokens` of all rounds, `starts/rounds`, `starts/rows`, `starts/trained_rows`, and of the rows of each
        label its share of all (`starts/share/<label>`), its mean total (`starts/reward/<label>`) and its mean number of
        tokens (`starts/length/<label>`); the label of rows without a start is `alone`.
        """
        found = self.rule.select(scored, self.context)
        return replace(found, metrics=start_metrics(scored, found.trained) | found.metrics)


@dataclass(frozen=True)
class AtTemperature:
    """A group sampler whose answers are written at one temperature."""

    sampler: GroupSampler
    temperature: float

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return the requests of the sampler, at this temperature."""
        start = RowStart(temperature=self.temperature)
        return [replace(each, start=start) for each in self.sampler.next_requests(prompts, scored)]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select as the sampler does."""
        return self.sampler.select(scored, iteration)


def selection(
    scored: ScoredRollouts,
    trained: Tensor | None = None,  # [R] bool; None: all rows
    in_baseline: Tensor | None = None,  # [R] bool, True where `trained` is; None: those rows
    compared: Tensor | None = None,  # [R] int64; rows with equal numbers are compared; None: those of a group
) -> CollectedRollouts:
    """Return the collected rows of an iteration.

    On-policy rows, of which reward metrics are means, are those of the first round that start with their sample alone;
    if a group has none, those are all rows of the first round.

    Raises:
        ValueError: a row is trained on and has no baseline.
    """
    everything = torch.ones(len(scored.samples), dtype=torch.bool)
    trained = everything if trained is None else trained
    in_baseline = trained if in_baseline is None else in_baseline
    check_shapes("R", everything=everything, trained=trained, in_baseline=in_baseline)
    if bool((trained & ~in_baseline).any()):
        raise ValueError("a row that is trained on must be in the baseline, which its advantage is relative to")
    first = scored.is_from(Origin.POLICY) & (rounds_of(scored) == 0)
    alone = first & torch.tensor([start is None for start in scored.starts])
    group_index = scored.group_index
    enough = set(group_index[alone].tolist()) == set(group_index[first].tolist())
    return CollectedRollouts(scored, in_baseline, trained, alone if enough else first, compared=compared)


def rounds_of(scored: ScoredRollouts) -> Tensor:
    """Return the round that sampled each row, [R] int64 from 0."""
    sizes = torch.tensor(scored.round_sizes)
    return torch.arange(len(sizes)).repeat_interleave(sizes)


def rows_of_groups(scored: ScoredRollouts) -> dict[int, list[int]]:
    """Return the rows of each group, in order."""
    found: dict[int, list[int]] = {}
    for row, group in enumerate(scored.group_index.tolist()):
        found.setdefault(group, []).append(row)
    return found


def labels(scored: ScoredRollouts) -> list[str]:
    """Return the label of each row; `alone` for rows that start with their sample alone."""
    return [ALONE if start is None else start.label for start in scored.starts]


def token_counts(scored: ScoredRollouts) -> list[int]:
    """Return the number of tokens that the policy wrote in each row, without its prefix."""
    return [len(ids) for rollout in scored.rollouts for ids in rollout.token_ids or [[]] * rollout.rows]


def by_label(scored: ScoredRollouts) -> Tensor:
    """Return [R] int64: one number for each group and label, so that sub-groups are compared in themselves."""
    pairs = list(zip(scored.group_index.tolist(), labels(scored), strict=True))
    numbers = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
    return torch.tensor([numbers[pair] for pair in pairs])


def split_groups(
    requests: Sequence[RolloutRequest],
    started: Sequence[RolloutRequest],  # for some of the requests, by group
) -> list[RolloutRequest]:
    """Return requests, each followed by those of `started` in its group, and shorter by as many answers.

    Raises:
        ValueError: a group would have more answers than requested.
    """
    found = []
    for request in requests:
        own = [each for each in started if each.group == request.group]
        left = request.n - sum(each.n for each in own)
        if left < 0:
            raise ValueError(f"the sub-groups of {request.sample.id!r} have more than its {request.n} answers")
        found += [*([replace(request, n=left)] if left else []), *own]
    return found


def filled(template: str, sample: Sample) -> str:
    """Return a template in which {prompt} stands for the sample's prompt, and {key} for the text of its metadata.

    Raises:
        DataError: the sample's metadata have no text of that name.
    """

    def text_of(match: re.Match[str]) -> str:
        value = sample.last_text if match[1] == "prompt" else sample.metadata.get(match[1])
        if not isinstance(value, str):
            raise DataError(f"sample {sample.id!r}: data.starts names {match[0]}, and its metadata have no such text")
        return value

    return re.sub(r"\{(\w+)\}", text_of, template)


def start_metrics(scored: ScoredRollouts, trained: Tensor) -> dict[str, float]:
    """Return the metrics of `StartedGroupSampler.select`."""
    names, total, lengths = labels(scored), scored.total, token_counts(scored)
    metrics = {"starts/rounds": float(len(scored.round_sizes)), "starts/rows": float(len(names))}
    metrics["tokens"] = float(sum(lengths))
    metrics["starts/trained_rows"] = float(trained.sum())
    for name in sorted(set(names)):
        rows = [row for row, each in enumerate(names) if each == name]
        metrics[f"starts/share/{name or 'unnamed'}"] = len(rows) / len(names)
        metrics[f"starts/reward/{name or 'unnamed'}"] = float(total[rows].nanmean())
        metrics[f"starts/length/{name or 'unnamed'}"] = float(np.mean([lengths[row] for row in rows]))
    return metrics
