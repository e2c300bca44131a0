"""Rewards from how likely a model of the run finds an answer after reasoning, without a verifier.

`models` of a run has the models; `policy` is the policy itself, as it is now. The reasoning of an answer is its text up
to the last `marker`, and an answer without one is invalid. See docs/several-models.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.reward import GroupReward, RowsReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, rows_by_group
from mmrl.rewards.core.text_scoring import TextModel, TextQuery

Column = NDArray[np.float32]
"""[T] float32, the log-probabilities of an answer's tokens, without its end."""


class ReferenceLikelihood(RowsReward):
    """The mean probability of the true answer's tokens after the policy's own reasoning (RLPR, arXiv:2506.18254).

    Debiased: less the same mean without any reasoning, after `direct`, and at least 0, so that a prompt whose answer is
    obvious rewards no reasoning. `reference_likelihood_raw` is the value before.
    """

    name, needs, range = "reference_likelihood", ("text", "references.answer", "sample"), (0.0, 1.0)
    source = "clip(mean p(y* | x, z) − mean p(y* | x), 0, 1)"

    def __init__(
        self, model: str = "policy", debias: bool = True, marker: str = "</think>", direct: str = "<think></think>"
    ) -> None:
        """
        Args:
            model: a model of the run.
            debias: subtract the value without reasoning.
            marker: the end of the reasoning.
            direct: the beginning of an answer without reasoning.
        """
        self.models, self.debias, self.marker, self.direct = (model,), debias, _marker(self.name, marker), direct

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers in few calls of the model."""
        model = model_of(context, self.models[0])
        answers = [str(item.references["answer"]) for item in items]
        reasonings = [split_reasoning(item.text or "", self.marker)[0] for item in items]
        rows = list(zip(items, answers, reasonings, strict=True))
        reasoned = columns(model, [query(item, answer, reasoning) for item, answer, reasoning in rows])
        direct = reasoned
        if self.debias:
            direct = columns(model, [query(item, answer, self.direct) for item, answer, _ in rows])
        return [self._value(after, alone) for after, alone in zip(reasoned, direct, strict=True)]

    def _value(self, reasoned: Column | Exception, direct: Column | Exception) -> Scored:
        if isinstance(reasoned, Exception):
            return reasoned
        value = float(np.exp(reasoned).mean())
        less = float(np.exp(direct).mean()) if self.debias and not isinstance(direct, Exception) else 0.0
        return {self.name: min(max(value - less, 0.0), 1.0), f"{self.name}_raw": value}


class ReasoningReflection(GroupReward):
    """The likelihood of the true answer after the reasoning, on tokens that reasoning decides (R3, arXiv:2506.13351).

    A token's weight is the spread of its log-probability over the reasonings of a group: most tokens of a long answer
    are as likely after any reasoning, and say nothing about it. The score is the weighted geometric mean of the tokens'
    probabilities. `reasoning_reflection_spread` is the mean spread, by which prompts can be chosen.
    """

    name, needs, range = "reasoning_reflection", ("text", "references.answer", "sample"), (0.0, 1.0)
    source = "exp(Σ σ_j log p(y*_j | x, z, y*_<j) / Σ σ_j), σ_j over a group"

    def __init__(self, model: str = "policy", weights: str = "spread", marker: str = "</think>") -> None:
        """
        Args:
            model: a model of the run.
            weights: `spread`, or `uniform`: the plain geometric mean.
            marker: the end of the reasoning.
        """
        if weights not in ("spread", "uniform"):
            raise RewardError(f"{self.name}: weights is {weights!r}; it is spread or uniform")
        self.models, self.weights, self.marker = (model,), weights, _marker(self.name, marker)

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Raise, since a model of a run is needed."""
        raise ScoringFailed(f"{self.name} computes with a model of a run, and here is none", "no_model")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all groups of a batch in few calls of the model."""
        reasonings = [split_reasoning(item.text or "", self.marker)[0] for item in items]
        queries = [
            query(item, str(item.references["answer"]), each) for item, each in zip(items, reasonings, strict=True)
        ]
        found = columns(model_of(context, self.models[0]), queries)
        scored: list[Scored] = [each if isinstance(each, Exception) else np.nan for each in found]
        for rows in rows_by_group(items).values():
            valid_rows = [row for row in rows if not isinstance(found[row], Exception)]
            if valid_rows:
                table = np.stack([np.asarray(found[row]) for row in valid_rows])
                values, spread = reflection(table, self.weights == "spread")
                for row, value in zip(valid_rows, values.tolist(), strict=True):
                    scored[row] = {self.name: value, f"{self.name}_spread": spread}
        return scored


class LikelyAnswer(GroupReward):
    """1 if a model finds the answer about as likely after its reasoning as after that of peers, else 0 (GRPO-CARE).

    Peers are the answers of the group that end alike, the answer itself among them, so that right answers are compared
    with right ones; use it with `counts_if` on the reward of right answers. A bonus for reasoning that leads to the
    answer, in place of a KL penalty; the model is a slow snapshot of the policy (arXiv:2506.16141).
    `likely_answer_probability` is the mean probability of the answer's tokens.
    """

    name, needs, range = "likely_answer", ("text", "sample"), (0.0, 1.0)
    source = "p(y | x, z) > mean of peers − margin"

    def __init__(self, model: str = "reference", margin: float = 0.01, marker: str = "</think>") -> None:
        """
        Args:
            model: a model of the run.
            margin: how far below the mean of its peers an answer's probability may lie.
            marker: the end of the reasoning.
        """
        if margin < 0:
            raise RewardError(f"{self.name}: margin is {margin}; it is 0 or above")
        self.models, self.margin, self.marker = (model,), margin, _marker(self.name, marker)

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Raise, since a model of a run is needed."""
        raise ScoringFailed(f"{self.name} computes with a model of a run, and here is none", "no_model")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all groups of a batch in few calls of the model."""
        parts = [split_reasoning(item.text or "", self.marker) for item in items]
        queries: list[TextQuery | InvalidAnswer] = []
        for item, (reasoning, answer) in zip(items, parts, strict=True):
            missing = InvalidAnswer("there is no answer after the reasoning")
            queries.append(query(item, answer, reasoning if answer.strip() else missing))
        found = columns(model_of(context, self.models[0]), queries)
        likely = [np.nan if isinstance(each, Exception) else float(np.exp(each).mean()) for each in found]
        scored: list[Scored] = [each if isinstance(each, Exception) else np.nan for each in found]
        for rows in rows_by_group(items).values():
            for row in rows:
                if isinstance(found[row], Exception):
                    continue
                ending = parts[row][1].strip()
                peers = [likely[each] for each in rows if parts[each][1].strip() == ending]
                passed = likely[row] >= float(np.nanmean(peers)) - self.margin
                scored[row] = {self.name: float(passed), f"{self.name}_probability": likely[row]}
        return scored


def reflection(
    log_probs: NDArray[np.float32],  # [N, T] of the true answer's tokens after N reasonings
    weighted: bool = True,
) -> tuple[NDArray[np.float64], float]:  # [N] in (0, 1], and the mean spread
    """Return the geometric mean of the tokens' probabilities, weighted by their spread over the reasonings.

    Where no token has any spread, as in a group of one, all tokens weigh the same.

    >>> values, spread = reflection(np.log(np.array([[0.5, 0.9], [0.5, 0.1]], np.float32)))
    >>> values.round(3).tolist()
    [0.9, 0.1]
    """
    values = log_probs.astype(np.float64)
    spread = values.std(axis=0)
    even = not weighted or spread.sum() < 1e-12
    weights = np.full(len(spread), 1 / len(spread)) if even else spread / spread.sum()
    return np.exp(values @ weights), float(spread.mean())


def split_reasoning(text: str, marker: str) -> tuple[str | InvalidAnswer, str]:
    """Return a text up to the end of its last marker, and what follows; without a marker there is no reasoning."""
    before, found, after = text.rpartition(marker)
    if not found:
        return InvalidAnswer(f"the reasoning never ends with {marker}"), after
    return before + found, after


def query(item: RewardInput, text: str, prefix: str | InvalidAnswer) -> TextQuery | InvalidAnswer:
    """Return the query of a text after an answer's prompt and a prefix, or what is wrong with the prefix."""
    assert item.sample is not None  # `needs` says so
    return prefix if isinstance(prefix, InvalidAnswer) else TextQuery(item.sample, text, prefix)


def model_of(context: RewardContext, name: str) -> TextModel:
    """Return a model of the run.

    Raises:
        ScoringFailed: answers are scored outside of a run, or it has no such model.
    """
    if name not in context.models:
        raise context.no_model(f"model {name}")
    found: TextModel = context.models[name]
    return found


def columns(model: TextModel, queries: Sequence[TextQuery | InvalidAnswer]) -> list[Column | Exception]:
    """Return the log-probabilities of each text's tokens without its end, or what is wrong with the answer."""
    scored = iter(model.log_probs([each for each in queries if isinstance(each, TextQuery)]))
    return [next(scored)[:-1] if isinstance(each, TextQuery) else each for each in queries]


def _marker(name: str, marker: str) -> str:
    if not marker:
        raise RewardError(f"{name}: marker is empty; it is the text that ends the reasoning")
    return marker
