"""Calculations that a model proposes: what reads them, and what rewards the proposer for hard ones.

data.prompts: {name: written, by: proposer, reader: {name: "mmrl_shapeworld.reasoning.proposed_sums:ProposedSums"}}
rewards: [{name: "mmrl_shapeworld.reasoning.proposed_sums:ProposedDifficulty"}]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from mmrl.data.sample import Sample
from mmrl.data.written_prompts import QuestionReader
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.rules.reference_likelihood import model_of
from mmrl_shapeworld.reasoning.calculation_splits import REQUEST
from mmrl_shapeworld.reasoning.calculations import FAMILIES, OPERATORS, Calculation, part_of

MOST = 8
"""The most operands of a calculation that counts as a question."""
_FORM = re.compile(rf"([0-9])((?:[{re.escape(OPERATORS)}][1-9])+)=")


def read_calculation(text: str) -> Calculation | None:
    """Return the calculation that a text is; None: it is none, or one of more than `MOST` operands.

    >>> str(read_calculation("3+5*7="))
    '3+5*7='
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or len(found[2]) // 2 >= MOST:
        return None
    digits = tuple(int(each) for each in found[2][1::2])
    return Calculation(FAMILIES["sums"].modulus, int(found[1]), found[2][0::2], digits)


class ProposedSums(QuestionReader):
    """A reader of calculations; those of the splits for development and validation are refused."""

    def request(self, parent: Sample) -> Sample:
        """Return the request for a calculation, the same for every parent."""
        return Sample(id=f"request-{parent.id}", prompt=REQUEST, source="request")

    def read(self, text: str, parent: Sample) -> Sample | None:
        """Return the calculation as a sample with its answer."""
        found = read_calculation(text)
        if found is None or part_of(found) != "train":
            return None
        return Sample(id="written", prompt=str(found), answer=found.answer, source=f"sums-{found.operands:02d}")


class ProposedDifficulty(RowsReward):
    """The share of the solver's answers to a proposed calculation that are wrong, if some are right (PasoDoble).

    Equal texts of an iteration share one reward, so that proposals stay different. A calculation that the solver never
    solves earns nothing, nor does a text that is none. With `validity: ignored` both earn 1, since no answer to them is
    right. `proposed_valid` is 1 for a calculation, `proposed_operands` its length.
    """

    name, needs, range = "proposed_difficulty", ("text",), (0.0, 1.0)
    source = "1 - pass rate of the solver, if above 0 (arXiv:2511.11881)"
    models = ("policy",)

    def __init__(self, draws: int = 4, validity: Literal["required", "ignored"] = "required") -> None:
        """
        Args:
            draws: the answers of the solver, the policy of the run, to each calculation.
            validity: whether texts that are no calculation, and ones that the solver never solves, earn nothing.
        """
        self.draws, self.required = draws, validity == "required"

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Let the solver answer all calculations in few calls."""
        solver = model_of(context, "policy")
        found = [read_calculation(item.text or "") for item in items]
        questions = [
            Sample(id=f"proposed-{number}", prompt=str(each)) for number, each in enumerate(found) if each is not None
        ]
        answers = iter(solver.answers(questions, context.seed, self.draws) if questions else [])
        equal = Counter(item.text for item in items)
        scored: list[Scored] = []
        for item, each in zip(items, found, strict=True):
            right = 0 if each is None else sum(_final(text) == str(each.answer) for text in next(answers))
            scored.append(self._scored(each, right, equal[item.text]))
        return scored

    def _scored(self, calculation: Calculation | None, right: int, sharers: int) -> Scored:
        difficulty = (1 - right / self.draws) / sharers
        return {
            self.name: difficulty if right or not self.required else 0.0,
            "proposed_valid": float(calculation is not None),
            "proposed_operands": float(0 if calculation is None else calculation.operands),
        }


def _final(text: str) -> str:
    """Return what stands behind the chain of an answer."""
    return text.rpartition("</think>")[2].strip()
