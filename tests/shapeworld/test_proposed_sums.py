"""Proposed calculations: what counts as one, what the proposer earns, and a run in which two models take turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.workflows.train import train
from mmrl_shapeworld.reasoning.calculations import part_of
from mmrl_shapeworld.reasoning.proposed_sums import ProposedDifficulty, ProposedSums, read_calculation
from mmrl_shapeworld.splits import samples

MODULE = "mmrl_shapeworld.reasoning.proposed_sums"
PARENT = Sample(id="p", prompt="1+1=")


@pytest.mark.parametrize(
    "text",
    ["", "3", "3+5", "3+=", "3+0=", "33+5=", "3/5=", "3+5=8", "3+5=3+5=", f"1{'+1' * 8}=", "\u0663+5=", "x" * 999],
)
def test_texts_that_are_no_calculation(text):
    assert read_calculation(text) is None and ProposedSums().read(text, PARENT) is None


def test_calculations_of_other_splits_are_no_prompts():
    reader = ProposedSums()
    kept = [sample for sample in samples("sums-train")[:50] if reader.read(sample.prompt, PARENT)]
    assert len(kept) == 50
    assert not any(reader.read(sample.prompt, PARENT) for sample in samples("sums-validation")[:50])
    found = reader.read(kept[0].prompt, PARENT)
    assert (found.prompt, found.answer, found.source) == (kept[0].prompt, kept[0].answer, kept[0].source)


class Solver:
    """Answers half of the calculations of three operands, all shorter ones, and none that is longer."""

    def answers(self, questions: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        found = []
        for sample in questions:
            calculation = read_calculation(sample.prompt)
            right = {2: draws, 3: draws // 2}.get(calculation.operands, 0)
            wrong = str((calculation.answer + 1) % 10)
            found.append([f"<think>...</think>{calculation.answer}"] * right + [wrong] * (draws - right))
        return found


def scored(*texts: str, **settings):
    items = [RewardInput(id=f"a{n}", group=0, prompt="?", text=text) for n, text in enumerate(texts)]
    found = ProposedDifficulty(**settings).score_rows(items, RewardContext(models={"policy": Solver()}))
    return [each["proposed_difficulty"] for each in found], found


def test_hard_calculations_that_are_solved_earn_most():
    texts = ("3+5=", "3+5*7=", "3+5*7-1=", "junk")
    assert scored(*texts)[0] == [0.0, 0.5, 0.0, 0.0]
    assert scored(*texts, validity="ignored")[0] == [0.0, 0.5, 1.0, 1.0]
    assert scored("3+5*7=", "3+5*7=", "2+5*7=")[0] == [0.25, 0.25, 0.5]  # equal ones share
    values = scored(*texts)[1]
    assert [each["proposed_valid"] for each in values] == [1, 1, 1, 0]
    assert [each["proposed_operands"] for each in values] == [2, 3, 4, 0]
    with pytest.raises(ScoringFailed, match="here is none"):
        scored_alone = RewardInput(id="a", group=0, prompt="?", text="3+5=")
        ProposedDifficulty().score_rows([scored_alone], RewardContext())


def test_requests_have_calculations_as_demonstrations():
    found = samples("sums-questions")
    assert {sample.prompt for sample in found} == {"?"} and len({sample.id for sample in found}) == 256
    assert all(part_of(read_calculation(sample.demonstration)) == "train" for sample in found)


@pytest.mark.integration
def test_a_proposer_and_a_solver_take_turns(tmp_path: Path):
    data = "data: {path: 'shapeworld:sums-questions', prompts: {name: shuffled}}"
    words = [
        "models={proposer: {model: 'shapeworld:sums', train: full}}",
        "rounds=2",
        f"data={{path: 'shapeworld:sums-short', groups: 2, group_size: 4, prompts: {{name: written, by: proposer, "
        f"reader: {{name: '{MODULE}:ProposedSums'}}}}}}",
        f"stages=[{{iterations: 2, once: true, train: proposer, algorithm: {{name: sft}}, {data}}}, {{iterations: 1, "
        f"train: proposer, rewards: [{{name: '{MODULE}:ProposedDifficulty'}}], {data}}}, {{iterations: 1}}]",
        *("training.iterations=6", "sampling.max_new_tokens=8", "evaluation={}", "run.display=quiet"),
        f"run.dir={tmp_path / 'run'}",
    ]
    run = train(load_config("shapes-reasoning", words))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == [0, 0, 1, 2, 1, 2]
    assert ["reward/proposed_valid" in row for row in rows] == [False, False, True, False, True, False]
    assert all("prompts/written_share" in row for row in rows if row["stage"] == 2)
    updates = json.loads((run / "checkpoints/step-6/trainer/state.json").read_text())
    assert updates["updates"] == 2 and updates["others"]["proposer"]["updates"] == 4
