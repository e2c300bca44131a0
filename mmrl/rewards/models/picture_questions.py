"""`picture_questions`: how sure a model of the run is of the right answers to questions about a picture.

With a unified model as the policy it judges what it draws itself (UniRL, arXiv:2505.23380; SRUM, arXiv:2510.12784).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mmrl.data.listed_questions import questions_of
from mmrl.data.media.uris import png_uri
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rewards.rules.reference_likelihood import columns, model_of


class PictureQuestions(RowsReward):
    """The mean probability that a model of the run gives to the right answers about a picture, in [0, 1].

    `references.questions` is a list of mappings with a `question`, its `answer` where the picture is right, and
    optionally a `kind`, such as questions about the whole prompt, or about one of its things. The probability of an
    answer is the product of those of its tokens, without its end. `picture_questions_KIND` is the mean of a kind.
    """

    name, needs, range = "picture_questions", ("image", "references.questions"), (0.0, 1.0)
    source = "Σ_k w_k mean over kind k of p(a* | picture, q) / Σ_k w_k"

    def __init__(self, model: str = "policy", kinds: Mapping[str, float] | None = None) -> None:
        """
        Args:
            model: a model of the run that answers; `policy` is the policy as it is now.
            kinds: the weight of the mean of each kind of question. Questions of other kinds are left out, and a kind
                that a sample lacks does not count. None: the mean over all questions.
        """
        if kinds is not None and not (kinds and all(weight > 0 for weight in kinds.values())):
            raise RewardError(f"{self.name}: kinds is {kinds!r}; it has the name of a kind and a weight above 0")
        self.models, self._kinds = (model,), kinds

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Ask all questions about all pictures in few calls of the model."""
        model = model_of(context, self.models[0])
        queries = [attempt(self._queries, item, errors=FAULTS) for item in items]
        flat = [query for found in queries if not isinstance(found, Exception) for _, query in found]
        answers = iter(columns(model, flat))
        scored: list[Scored] = []
        for found in queries:
            if isinstance(found, Exception):
                scored.append(found)
                continue
            sure: dict[str, list[float]] = {}
            for kind, _ in found:
                tokens = next(answers)
                assert not isinstance(tokens, Exception)  # as only queries went in
                sure.setdefault(kind, []).append(float(np.exp(tokens.sum())))
            scored.append(self._scored(sure))
        return scored

    def _queries(self, item: RewardInput) -> list[tuple[str, TextQuery]]:
        """Return the questions about a picture that count, each with its kind."""
        picture = png_uri(answer_image(item.image))
        try:
            questions = questions_of(item.references["questions"])
        except DataError as err:
            raise ScoringFailed(f"references: {err}", "reference") from err
        found = []
        for number, each in enumerate(questions):
            if self._kinds is None or each.kind in self._kinds:
                sample = Sample(id=f"{item.id}/{number}", prompt=each.question, images=(picture,))
                found.append((each.kind, TextQuery(sample, each.answer)))
        if not found:
            wanted = "one" if self._kinds is None else f"one of the kinds {', '.join(self._kinds)}"
            raise ScoringFailed(f"references.questions has no question; expected {wanted}", "reference")
        return found

    def _scored(self, sure: Mapping[str, Sequence[float]]) -> dict[str, float]:
        means = {kind: float(np.mean(values)) for kind, values in sure.items()}
        weights = self._kinds or {kind: len(values) for kind, values in sure.items()}
        total = sum(weights[kind] for kind in means)
        mean = sum(weights[kind] * value for kind, value in means.items()) / total
        return {self.name: min(mean, 1.0)} | {f"{self.name}_{kind}": value for kind, value in means.items() if kind}
