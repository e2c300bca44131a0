"""Choose the hard screens of the split `screen-few`, and write `mmrl_shapeworld.worlds.hard_screens`.

python -m tools.shapeworld_pretrain.hard_screens
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLProcessor

from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.worlds import screens
from mmrl_shapeworld.worlds.world_splits import measure_of, samples, world_questions
from tools.shapeworld_pretrain.vlm_evaluate import answers

COUNT, DRAWS, MOST = 136, 8, 4
"""Screens that are chosen; answers to each; and the most of these that are right."""
TEXT = '''\
"""The numbers of the screens of `screen-train` that `shapeworld:vlm-worlds` gets right now and then.

Of eight answers at temperature 1, one to four are right, and kinds of action are as frequent as in training, as far as
there are. Written by `python -m tools.shapeworld_pretrain.hard_screens`.
"""

NUMBERS = (
{numbers}
)  # fmt: skip
'''


def right_answers() -> np.ndarray:
    """Return the number of right answers to each question of `screen-train`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration.from_pretrained(VLM_WORLDS)
    processor = Qwen3VLProcessor.from_pretrained(VLM_WORLDS)
    questions = [question for _, question in world_questions("screen", "train")]
    reward, rows = measure_of("screen"), samples("screen-train")
    right = np.zeros(len(rows), int)
    for _ in range(DRAWS):
        texts = answers(model, processor, questions, greedy=False)
        items = [reward_input(row, text, n, str(n)) for n, (row, text) in enumerate(zip(rows, texts, strict=True))]
        right += np.asarray(reward.score(items).values[reward.name]) == 1
    return right


def chosen(right: np.ndarray) -> list[int]:
    """Return the numbers of the screens: each kind of action as often as in training, as far as there are hard ones."""
    kinds = [
        (question.prompt.split()[0], question.answer["action"]) for _, question in world_questions("screen", "train")
    ]
    hard = np.flatnonzero((right >= 1) & (right <= MOST)).tolist()
    numbers: list[int] = []
    for kind in sorted(set(kinds)):
        numbers += [n for n in hard if kinds[n] == kind][: round(COUNT * kinds.count(kind) / len(kinds))]
    return sorted(numbers + [n for n in hard if n not in numbers][: COUNT - len(numbers)])


def main() -> None:
    """Write the module."""
    numbers = chosen(right_answers())
    lines = textwrap.fill(", ".join(map(str, numbers)) + ",", 116, initial_indent="    ", subsequent_indent="    ")
    Path(screens.__file__).with_name("hard_screens.py").write_text(TEXT.format(numbers=lines))


if __name__ == "__main__":
    main()
