"""`own_votes`: how many further answers of a model of the run agree with an answer, a judgement without references.

With the policy itself as the model, it judges its own answers (self-consistency, arXiv:2203.11171; as the preference of
self-rewarding training, arXiv:2411.04109).
"""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.rules.reference_likelihood import model_of, split_reasoning


class OwnVotes(RowsReward):
    """The share of further answers of a model that end as this one does, in [0, 1].

    All answers to a prompt are compared with the same further ones, which are drawn anew in each iteration. Compared is
    what follows the last `marker`, without spaces around it; an answer without a marker is invalid, and a further one
    without it counts for none.
    """

    name, needs, range = "own_votes", ("text", "sample"), (0.0, 1.0)
    source = "mean of 1[answer(y) = answer(y_k)], y_k ~ model"

    def __init__(self, model: str = "policy", draws: int = 8, marker: str = "</think>") -> None:
        """
        Args:
            model: a model of the run, which votes; `policy` is the policy as it is now.
            draws: the further answers to each prompt.
            marker: the end of the reasoning; empty: there is none, and whole texts are compared.
        """
        if draws < 1:
            raise RewardError(f"{self.name}: draws is {draws}; at least one answer votes")
        self.models, self.draws, self.marker = (model,), draws, marker

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Score all answers with one call for all prompts."""
        samples = {item.sample.id: item.sample for item in items if item.sample is not None}
        model = model_of(context, self.models[0])
        drawn = model.answers(list(samples.values()), context.seed, draws=self.draws)
        votes = {id: [ending(text, self.marker) for text in texts] for id, texts in zip(samples, drawn, strict=True)}
        scored: list[Scored] = []
        for item in items:
            assert item.sample is not None  # `needs` says so
            own = ending(item.text or "", self.marker)
            if isinstance(own, InvalidAnswer):
                scored.append(own)
                continue
            scored.append(sum(each == own for each in votes[item.sample.id]) / self.draws)
        return scored


def ending(text: str, marker: str) -> str | InvalidAnswer:
    """Return what an answer says after its reasoning, or what is wrong with it.

    >>> ending("3+4=7</think> 7 ", "</think>")
    '7'
    """
    if not marker:
        return text.strip() or InvalidAnswer("the answer is empty")
    reasoning, answer = split_reasoning(text, marker)
    if isinstance(reasoning, InvalidAnswer):
        return reasoning
    return answer.strip() or InvalidAnswer("there is no answer after the reasoning")
