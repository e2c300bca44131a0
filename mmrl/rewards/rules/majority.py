"""`majority`: what most answers of a group say is the label of each, without references.

The answers to the same prompt vote (TTRL, arXiv:2504.16084), or those to the prompt in other words (Co-Reward,
arXiv:2508.00410), where `data.starts` asks in two ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

from mmrl.rewards.core.reward import GroupReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.rules.own_votes import ending

Voters = Literal["own", "others", "all"]


class Majority(GroupReward):
    """1 for an answer that ends as most of its voters do, the answers of its group that started alike, else 0.

    With `voters: others`, the group's answers that started otherwise vote, such as those to the prompt in other words
    (`data.starts: {name: rephrasing}`); with `all`, the whole group. Compared is what follows the last `marker`,
    without spaces around it; an answer without a marker is invalid and has no vote. Of endings that are equally
    frequent, the one that was drawn first is the label. `majority_share` is the share of voters that have the label.
    """

    name, needs, range = "majority", ("text",), (0.0, 1.0)
    source = "1[answer(y) = the mode of answers(voters)], TTRL, arXiv:2504.16084; Co-Reward, arXiv:2508.00410"

    def __init__(self, voters: Voters = "own", marker: str = "</think>") -> None:
        """
        Args:
            voters: the answers of the group that vote: `own`, those that started as the answer did; `others`, the rest;
                or `all`.
            marker: the end of the reasoning; empty: there is none, and whole texts are compared.
        """
        if voters not in get_args(Voters):
            raise RewardError(f"{self.name}: voters is {voters!r}; it is one of {', '.join(get_args(Voters))}")
        self.voters, self.marker = voters, marker

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score a group; answers whose voters are not there, as in evaluations of one start, fail."""
        endings = [ending(item.text or "", self.marker) for item in items]
        starts = [str(item.metadata.get("start", {}).get("label", "")) for item in items]
        votes = {start: self._votes(start, starts, endings) for start in set(starts)}
        return [self._scored(own, votes[start]) for own, start in zip(endings, starts, strict=True)]

    def _votes(
        self, start: str, starts: Sequence[str], endings: Sequence[str | InvalidAnswer]
    ) -> list[str | InvalidAnswer]:
        """Return the endings of those who vote on answers with this start."""
        wanted = {"own": {start}, "others": set(starts) - {start}, "all": set(starts)}[self.voters]
        return [each for each, own in zip(endings, starts, strict=True) if own in wanted]

    def _scored(self, own: str | InvalidAnswer, votes: Sequence[str | InvalidAnswer]) -> Scored:
        if not votes:
            return ScoringFailed(
                f"{self.name}: the answers that started otherwise vote, and here are none: set data.starts", "alone"
            )
        if isinstance(own, InvalidAnswer):
            return own
        counts = Counter(each for each in votes if isinstance(each, str))
        label, count = counts.most_common(1)[0] if counts else (None, 0)
        return {self.name: float(own == label), f"{self.name}_share": count / len(votes)}
