"""Measure a VLM on the questions of ShapeWorld: the rewards of each task, sampled and greedy.

python -m tools.shapeworld_pretrain.vlm_evaluate FOLDER    # the numbers of docs/shapeworld.md
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl.rewards import RewardSuite, load
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld.vqa.question_splits import REWARDS, SPLITS, as_sample, questions
from mmrl_shapeworld.vqa.questions import Question
from tools.shapeworld_pretrain.vlm_batches import processed

LONGEST = 32
"""Tokens of the longest right answer, three boxes with labels, and some to spare."""


@dataclass(frozen=True)
class Skill:
    """The scores on one task."""

    reward: float  # the mean; 0 for malformed answers
    well_formed: float  # the share of answers that the reward could read
    tokens: float  # of an answer, on average, with its end


def measure(
    model: Qwen3VLForConditionalGeneration, processor: Qwen3VLProcessor, split: str = "vlm-development"
) -> dict[str, tuple[Skill, Skill]]:
    """Return for each task the scores at temperature 1 and of greedy answers."""
    measured = {}
    for task, questions_of_task in questions(split).items():
        sampled, greedy = (answers(model, processor, questions_of_task, greedy) for greedy in (False, True))
        measured[task] = (
            skill(task, questions_of_task, sampled, processor),
            skill(task, questions_of_task, greedy, processor),
        )
    return measured


@torch.no_grad()
def answers(
    model: Qwen3VLForConditionalGeneration,
    processor: Qwen3VLProcessor,
    questions: Sequence[Question],  # of one kind: as many frames each
    greedy: bool,
    rows: int = 128,
) -> list[str]:
    """Return the model's answers; torch's global generator seeds the sampling."""
    texts: list[str] = []
    model.eval()
    for begin in range(0, len(questions), rows):
        inputs = processed(processor, questions[begin : begin + rows])
        out = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=not greedy)
        texts += processor.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return texts


def skill(task: str, questions: Sequence[Question], answers: Sequence[str], processor: Qwen3VLProcessor) -> Skill:
    """Return the scores of the answers."""
    choice = REWARDS[task]
    suite = RewardSuite([(load(choice.name, **choice.args), 1.0)])
    items = [
        reward_input(as_sample(task, question, str(n)), text, n, str(n))
        for n, (question, text) in enumerate(zip(questions, answers, strict=True))
    ]
    scored = suite.score(items)
    states = scored.status[choice.name]
    if failed := sum(status not in ("ok", "invalid") for status in states):
        raise RuntimeError(f"{task}: {failed} answers could not be scored")
    lengths = [len(ids) + 1 for ids in processor.tokenizer(list(answers)).input_ids]
    return Skill(
        reward=float(torch.as_tensor(scored.values[choice.name]).mean()),
        well_formed=sum(status == "ok" for status in states) / len(states),
        tokens=sum(lengths) / len(lengths),
    )


def main() -> None:
    """Print the table for a saved model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--split", default="vlm-development", choices=list(SPLITS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(args.folder)
    processor = Qwen3VLProcessor.from_pretrained(args.folder)
    print("| task | reward at T = 1 | greedy | annotator | well-formed at T = 1 | tokens |\n|-|-|-|-|-|-|")
    for task, (sampled, greedy) in measure(model, processor, args.split).items():
        questions_of_task = questions(args.split)[task]
        annotator = skill(task, questions_of_task, [question.annotated for question in questions_of_task], processor)
        cells = (sampled.reward, greedy.reward, annotator.reward, sampled.well_formed)
        print(f"| {task} | {' | '.join(f'{cell:.3f}' for cell in cells)} | {sampled.tokens:.1f} |", flush=True)


if __name__ == "__main__":
    main()
