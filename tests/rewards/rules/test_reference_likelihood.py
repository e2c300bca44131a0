"""Rewards from the likelihood of answers under a model of the run: by hand, in groups, and what cannot be scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, reward_input
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rewards.rules.reference_likelihood import LikelyAnswer, ReasoningReflection, ReferenceLikelihood, reflection

SAMPLE = Sample("s", prompt="3+5*7=", answer=56)


class Stub:
    """A model that knows the probabilities of a text's tokens after a prefix; the end has the probability 0.5."""

    def __init__(self, known: Mapping[tuple[str, str], Sequence[float]]) -> None:
        self.known, self.calls = known, 0

    def log_probs(self, texts: Sequence[TextQuery]) -> list[np.ndarray]:
        self.calls += 1
        return [np.log(np.array([*self.known[each.prefix, each.text], 0.5], np.float32)) for each in texts]


def answers(*texts: str, group: int = 0) -> list[RewardInput]:
    return [reward_input(SAMPLE, text, group, f"s/{row}") for row, text in enumerate(texts)]


def context(name: str, stub: Stub) -> RewardContext:
    return RewardContext(models={name: stub})


def test_the_mean_probability_of_the_reference_less_that_without_reasoning():
    stub = Stub(
        {
            ("<think>8;</think>", "56"): (0.8, 0.6),
            ("<think>9;</think>", "56"): (0.2, 0.1),
            ("<think></think>", "56"): (0.3, 0.3),
        }
    )
    rows = answers("<think>8;</think>56", "<think>9;</think>63", "<think></think>56")
    found = ReferenceLikelihood().score(rows, context("policy", stub))
    assert found.values["reference_likelihood"].tolist() == pytest.approx([0.4, 0.0, 0.0])
    assert found.values["reference_likelihood_raw"].tolist() == pytest.approx([0.7, 0.15, 0.3])
    assert stub.calls == 2
    biased = ReferenceLikelihood(debias=False).score(rows, context("policy", stub))
    assert biased.values["reference_likelihood"].tolist() == pytest.approx([0.7, 0.15, 0.3])


def test_an_answer_without_an_end_of_its_reasoning_is_invalid():
    stub = Stub({("<think></think>", "56"): (0.3,)})
    found = ReferenceLikelihood().score(answers("<think>8;"), context("policy", stub))
    assert found.status["reference_likelihood"] == [Status.INVALID] and found.values["reference_likelihood"] == [0.0]


@pytest.mark.parametrize("name", ["reference_likelihood", "reasoning_reflection", "likely_answer"])
def test_outside_of_a_run_nothing_is_scored_and_the_reason_is_named(name):
    reward = load(name)
    found = reward.score(answers("<think></think>56"))
    assert math.isnan(found.values[name][0]) and "scored outside of a run" in found.detail[0][name]
    assert reward.models == (("reference" if name == "likely_answer" else "policy"),)
    with pytest.raises(RewardError, match="marker is empty"):
        load(name, marker="")


def test_tokens_that_reasoning_decides_weigh_by_their_spread():
    log_probs = np.log(np.array([[0.9, 0.01, 0.9], [0.1, 0.01, 0.9]]))
    values, spread = reflection(log_probs)
    assert values.tolist() == pytest.approx([0.9, 0.1])  # the middle and the last say nothing
    plain, same = reflection(log_probs, weighted=False)
    assert plain.tolist() == pytest.approx([(0.9 * 0.01 * 0.9) ** (1 / 3), (0.1 * 0.01 * 0.9) ** (1 / 3)])
    assert spread == same == pytest.approx(math.log(9) / 2 / 3)
    assert reflection(log_probs[:1])[0].tolist() == pytest.approx(plain[:1].tolist())  # a group of one


def test_spreads_are_those_of_each_group():
    stub = Stub(
        {(f"<think>{n}</think>", "56"): (0.1 * n, 0.5) for n in range(1, 5)} | {("a</think>", "56"): (0.5, 0.5)}
    )
    one = answers("<think>1</think>5", "<think>4</think>6")
    other = answers("<think>2</think>5", "no reasoning", "a</think>1", group=1)
    found = ReasoningReflection().score([*one, *other], context("policy", stub))
    assert found.values["reasoning_reflection"].tolist() == pytest.approx([0.1, 0.4, 0.2, 0.0, 0.5])
    assert found.status["reasoning_reflection"][3] is Status.INVALID
    with pytest.raises(RewardError, match="spread or uniform"):
        ReasoningReflection(weights="none")


def test_an_answer_is_compared_with_peers_that_end_alike():
    known = {("<think>1</think>", "56"): (0.9,), ("<think>2</think>", "56"): (0.5,), ("<think>3</think>", "8"): (0.1,)}
    rows = answers("<think>1</think>56", "<think>2</think>56", "<think>3</think>8", "<think>2</think>")
    found = LikelyAnswer().score(rows, context("reference", Stub(known)))
    assert found.values["likely_answer"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert found.status["likely_answer"][3] is Status.INVALID
    assert found.values["likely_answer_probability"][:3].tolist() == pytest.approx([0.9, 0.5, 0.1])
    generous = LikelyAnswer(margin=0.25).score(rows, context("reference", Stub(known)))
    assert generous.values["likely_answer"].tolist() == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(RewardError, match="margin is -1"):
        LikelyAnswer(margin=-1)
