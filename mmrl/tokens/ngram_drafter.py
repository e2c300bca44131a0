"""A drafter of tokens that counts n-grams in the last answers, and so follows a policy as it is trained.

A drafter guesses the next tokens of an answer, which the policy then checks in one pass. One that is not retrained
falls behind the policy (TLT, arXiv:2511.16665), and what the policy wrote is all that retraining needs.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence

from numpy.typing import NDArray


class NGramDrafter:
    """Counts of the tokens that followed each context of up to `order` - 1 tokens in the last answers."""

    def __init__(self, order: int, answers: int, relearn: bool = True) -> None:
        """
        Args:
            order: tokens of an n-gram, its context included; at least 2.
            answers: the number of answers that are counted.
            relearn: True: the oldest answers are forgotten for new ones. False: the first ones are kept.
        """
        self.order, self._relearn = order, relearn
        self._most = answers
        self._answers: deque[tuple[list[int], int]] = deque()  # the tokens with their context, and the context's length
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def learn(self, context: Sequence[int], answer: Sequence[int]) -> None:
        """Count an answer that follows a context, the last tokens of its prompt."""
        if len(self._answers) == self._most:
            if not self._relearn:
                return
            self._add(*self._answers.popleft(), amount=-1)
        begun = list(context[-self.order + 1 :])
        self._answers.append(([*begun, *answer], len(begun)))
        self._add(*self._answers[-1], amount=1)

    def counts(self, context: Sequence[int]) -> Counter[int]:
        """Return how often each token followed the longest end of a context that was seen; empty: none was."""
        for length in range(min(self.order - 1, len(context)), -1, -1):
            found = self._counts.get(tuple(context[len(context) - length :]))
            if found:
                return found
        return Counter()

    def draft(
        self,
        context: Sequence[int],  # the text so far
        most: int,
        noise: Sequence[NDArray] | None = None,  # [V] exponential numbers for each of the next tokens; None: greedy
    ) -> list[int]:
        """Return up to `most` next tokens, each drawn as the policy draws: argmax of a share over the noise.

        With the policy's own noise, two equal distributions draw equal tokens, and similar ones mostly do.
        """
        drafted: list[int] = []
        while len(drafted) < most:
            seen = self.counts([*context, *drafted])
            if not seen:
                break
            own = None if noise is None else noise[len(drafted)]
            drafted.append(max(sorted(seen), key=lambda each: seen[each] / (1.0 if own is None else own[each])))
        return drafted

    def _add(self, tokens: Sequence[int], start: int, amount: int) -> None:
        for place in range(start, len(tokens)):
            for length in range(min(self.order - 1, place) + 1):
                context = tuple(tokens[place - length : place])
                seen = self._counts[context]
                seen[tokens[place]] += amount
                if not seen[tokens[place]]:
                    del seen[tokens[place]]
                if not seen:
                    del self._counts[context]
