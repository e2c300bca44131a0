"""`GrowingSampler`: prompts that are added and dropped while a run trains, by the scores of their answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmrl.data.jsonl import line_text, read_row, sample_line
from mmrl.data.media.decode import with_media_seen_from
from mmrl.data.prompts import Outcome, PromptSampler, PromptSource
from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample
from mmrl.errors import DataError

GROWTH = "growth"
"""The key in `Sample.metadata` of what an added sample comes from."""
PASSES = 4
"""The number of times that a parent may be tried for a proposal that is not there yet."""
DRAW_STREAM, PARENT_STREAM, ANSWER_STREAM = 2, 3, 4
"""The numbers of the random streams that draw added samples, parents, and answers of parents."""

ScoreName = Literal["regret", "range", "variance"]
SCORES: dict[ScoreName, Callable[[Sequence[float]], float]] = {
    "regret": lambda totals: max(totals) - float(np.mean(totals)),
    "range": lambda totals: max(totals) - min(totals),
    "variance": lambda totals: float(np.var(totals)),
}
"""The score of a prompt by the total rewards of its answers: the gap between the best and the mean, or the worst (eva,
arXiv:2411.00062), or their variance (learnability; ExIt, arXiv:2509.04575)."""


@dataclass
class AddedPrompt:
    """A sample that was added while training."""

    sample: Sample
    iteration: int  # of the data source, from 1, after which it was added
    score: float | None = None  # of its last answers; None: it has none yet
    dropped: int | None = None  # the iteration after which it was dropped; None: it is there

    def line(self) -> dict[str, Any]:
        """Return the JSON object of a state: the sample, and the rest beside it."""
        return {"sample": sample_line(self.sample), "iteration": self.iteration, "score": self.score,
                "dropped": self.dropped}  # fmt: skip

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> AddedPrompt:
        """Return what `line` was made from.

        Raises:
            DataError: the sample in it cannot be read.
        """
        return cls(_read(line["sample"]), int(line["iteration"]), line["score"], line["dropped"])


class GrowingSampler(PromptSource):
    """Batches of the samples of a data set and of samples that a proposer makes from them.

        sampler = GrowingSampler(samples, groups=8, seed=0, proposer=my_proposer, every=2, add=4)

    Every `every` iterations, `add` samples are made from parents that are drawn by score, without replacement. A
    `share` of each batch is drawn from the added samples, again by score; those without answers yet have the highest
    score there is. Of more than `capacity` added samples those of the lowest scores are dropped. The samples of the
    data set stay, and come in shuffled epochs.
    """

    def __init__(
        self,
        samples: Sequence[Sample],  # with unique ids
        groups: int,  # samples in a batch
        seed: int,
        proposer: Proposer,
        *,
        score: ScoreName = "regret",
        parents: Literal["score", "uniform"] = "score",  # with what odds parents are drawn
        every: int = 1,  # iterations
        add: int = 8,  # samples
        capacity: int = 256,  # added samples
        share: float = 0.5,  # of a batch, in [0, 1]; rounded down to whole prompts
    ) -> None:
        self._base = PromptSampler(samples, groups, seed)
        self._groups, self._seed, self._proposer = groups, seed, proposer
        self._score, self._by_score = SCORES[score], parents == "score"
        self._every, self._add, self._capacity, self._share = every, add, capacity, share
        self._contents = {_content(sample) for sample in samples}
        self._scores: dict[str, float] = {}  # of samples of the data set, by id
        self.added: dict[str, AddedPrompt] = {}
        """All samples that were ever added, by id, in order; dropped ones too, since stored answers may be theirs."""
        self._iterations = self._draws = 0
        self._in_batch: set[str] = set()  # added samples of the current iteration

    def next(self) -> list[Sample]:
        """Return the samples of the next iteration, all different."""
        self._base.begin_batch()
        self._in_batch = set()
        return self.more(self._groups)

    def more(self, count: int) -> list[Sample]:
        """Return up to `count` further samples of the current iteration, different from those it has had."""
        drawn = self._draw(int(self._share * count))
        found = self._base.more(count - len(drawn))
        return [*found, *drawn, *self._draw(count - len(found) - len(drawn))]

    def sample(self, id: str) -> Sample:
        """Return the sample with this id.

        Raises:
            DataError: there is no such sample.
        """
        return self.added[id].sample if id in self.added else self._base.sample(id)

    def wanted_answers(self, outcomes: Sequence[Outcome]) -> Sequence[int | None]:
        """Return the answers that become starting points, where the proposer reads answers and samples are added."""
        if not self._proposer.reads_answers or (self._iterations + 1) % self._every:
            return [None] * len(outcomes)
        rng = np.random.default_rng([self._seed, self._iterations, ANSWER_STREAM])
        return [self._proposer.wanted_answer(each.sample, depth_of(each.sample), each.totals, rng) for each in outcomes]

    def learn(self, outcomes: Sequence[Outcome]) -> None:
        """Update scores, and every few iterations add samples and drop others; one scored answer changes no score."""
        self._iterations += 1
        known = [each for each in outcomes if len(each.totals) > 1]
        for each in known:
            score = float(self._score(each.totals))
            if each.sample.id in self.added:
                self.added[each.sample.id].score = score
            else:
                self._scores[each.sample.id] = score
        if self._iterations % self._every == 0:
            self._grow(self._parents(known))
            self._drop()

    def metrics(self) -> dict[str, float]:
        """Return the numbers of added and dropped samples, their mean depth, and mean scores."""
        present = self._present()
        scores = {
            "added": [each.score for each in present if each.score is not None],
            "data": [*self._scores.values()],
        }
        return {
            "prompts/added": float(len(present)),
            "prompts/dropped": float(len(self.added) - len(present)),
            "prompts/added_in_batch": float(len(self._in_batch)),
            **({"prompts/depth": float(np.mean([depth_of(each.sample) for each in present]))} if present else {}),
            **{f"prompts/score/{name}": float(np.mean(each)) for name, each in scores.items() if each},
        }

    def lines(self, folder: Path | str = ".") -> list[str]:
        """Return the added samples as lines of a data set in `folder`, by which paths of media are found.

        `metadata.growth` has their scores and when they came.
        """
        found = [
            replace(each.sample, metadata={**each.sample.metadata, GROWTH: {
                **each.sample.metadata[GROWTH], "iteration": each.iteration, "score": each.score,
                "dropped": each.dropped}})
            for each in self.added.values()
        ]  # fmt: skip
        return [line_text(with_media_seen_from(each, folder)) for each in found]

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the following batches, as JSON values."""
        return {
            "data": self._base.state_dict(),
            "seed": self._seed,
            "iterations": self._iterations,
            "draws": self._draws,
            "scores": dict(self._scores),
            "added": [each.line() for each in self.added.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            DataError: the state belongs to samples with other ids or prompts, or in another order.
        """
        self._base.load_state_dict(state["data"])
        self._seed, self._iterations = int(state["seed"]), int(state["iterations"])
        self._draws = int(state["draws"])
        self._scores = {id: float(score) for id, score in state["scores"].items()}
        found = [AddedPrompt.from_line(line) for line in state["added"]]
        self.added = {each.sample.id: each for each in found}
        self._contents = {_content(sample) for sample in (*self._base.samples, *(each.sample for each in found))}

    def _present(self) -> list[AddedPrompt]:
        return [each for each in self.added.values() if each.dropped is None]

    def _draw(self, count: int) -> list[Sample]:
        """Draw added samples that are not in the batch, without replacement, with odds by score."""
        ready = [each for each in self._present() if each.sample.id not in self._in_batch]
        count = min(count, len(ready))
        if count <= 0:
            return []
        scores = np.array([np.nan if each.score is None else each.score for each in ready])
        most = max(1e-12, *self._scores.values(), *(each.score or 0.0 for each in ready))
        # A regret is a little below 0 where the mean of equal rewards is rounded up; those of score 0 fill up the rest.
        odds = np.where(np.isnan(scores), most, np.maximum(scores, 0.0)) + 1e-12 * most
        self._draws += 1
        rng = np.random.default_rng([self._seed, self._draws, DRAW_STREAM])
        places = rng.choice(len(ready), count, replace=False, p=odds / odds.sum())
        found = [ready[place].sample for place in places]
        self._in_batch |= {sample.id for sample in found}
        return found

    def _parents(self, outcomes: Sequence[Outcome]) -> list[Parent]:
        """Return the possible parents: of this iteration with an answer, or all that have a score."""
        if self._proposer.reads_answers:
            found = [
                Parent(each.sample, float(self._score(each.totals)), each.answer, depth_of(each.sample))
                for each in outcomes
                if each.answer is not None
            ]
        else:
            found = [Parent(self._base.sample(id), score) for id, score in self._scores.items()]
            found += [
                Parent(each.sample, each.score, depth=depth_of(each.sample))
                for each in self._present()
                if each.score is not None
            ]
        return [each for each in found if each.score > 0 or not self._by_score]

    def _grow(self, parents: Sequence[Parent]) -> None:
        """Add samples of parents that are drawn in turn, by score, until there are enough or none is new."""
        rng = np.random.default_rng([self._seed, self._iterations, PARENT_STREAM])
        added = 0
        for _ in range(1 if self._proposer.reads_answers else PASSES):
            odds = np.array([each.score if self._by_score else 1.0 for each in parents])
            order = rng.choice(len(parents), len(parents), replace=False, p=odds / odds.sum()) if len(parents) else ()
            for place in order:
                if added == self._add:
                    return
                proposed = self._proposer.propose(parents[place], rng)
                if proposed is not None and _content(proposed) not in self._contents:
                    self._keep(proposed, parents[place])
                    added += 1

    def _keep(self, proposed: Sample, parent: Parent) -> None:
        number = len(self.added)
        while (id := f"added-{number:05d}") in self.added or self._base.has(id):
            number += 1
        growth = {"parent": parent.sample.id, "depth": parent.depth + 1}
        named = replace(proposed, id=id, metadata={**proposed.metadata, GROWTH: growth})
        sample = _read(json.loads(line_text(named)))  # as a resumed run reads it
        self.added[id] = AddedPrompt(sample, self._iterations)
        self._contents.add(_content(sample))

    def _drop(self) -> None:
        """Drop the added samples of the lowest scores, the oldest first, until no more are left than there may be."""
        present = self._present()
        order = sorted(present, key=lambda each: np.inf if each.score is None else each.score)
        for each in order[: max(0, len(present) - self._capacity)]:
            each.dropped = self._iterations


def depth_of(sample: Sample) -> int:
    """Return how many proposals lie between a sample and the data set; 0 for a sample of the data set."""
    growth = sample.metadata.get(GROWTH)
    return int(growth["depth"]) if isinstance(growth, Mapping) else 0


def _content(sample: Sample) -> str:
    """Return what makes a sample another one: all that it shows to a policy."""
    return json.dumps([sample.prompt, sample.messages, sample.images, sample.videos, dict(sample.conditions)])


def _read(line: Mapping[str, Any]) -> Sample:
    sample, problems = read_row(dict(line), "")
    if sample is None:
        raise DataError(f"a proposed sample is no sample: {problems[0]}")
    return sample
