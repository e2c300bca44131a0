"""Preference pairs as questions for a judge: each pair in both orders, so that a preference for a place shows.

    {"prompt": "two red circles", "chosen": "a.png", "rejected": "b.png"}

becomes two samples: one shows a.png first and has the answer A, the other shows b.png first and has the answer B.
`metadata.pair` names the pair, by which the reward `both_orders` finds the other order again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.data.media.uris import is_data_uri
from mmrl.data.sample import Sample
from mmrl.errors import DataError

FIRST, SECOND = "A", "B"
"""The verdicts, by the place of the better answer."""
TASK = "judging"
"""The task of the questions, which says how to answer and sets the reward."""
QUESTION = "Two answers to a request follow, A first and then B. Which one is better?\nThe request: {prompt}"
"""The question about two answers; {prompt} is what they answer."""
PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp")


def judged_pairs(samples: Iterable[Sample], question: str = QUESTION, task: str | None = TASK) -> list[Sample]:
    """Return each pair in both orders, the two side by side: first with the chosen answer as A, then as B.

    Pictures are the images of the question, behind those that the pair's own prompt has; texts are part of it. What
    else a sample has is kept, and its `chosen` and `rejected` are gone.

    Args:
        samples: with `chosen` and `rejected`, both pictures (paths, data URIs, {"image": ...}) or both texts.
        question: with the slot {prompt}, for the pair's prompt.
        task: of the questions; None for samples whose own rewards say all.

    Raises:
        DataError: a sample is no pair, or the question lacks its slot.
    """
    return [each for sample in samples for each in both_orders(sample, question, task)]


def both_orders(sample: Sample, question: str = QUESTION, task: str | None = TASK) -> tuple[Sample, Sample]:
    """Return one pair in both orders: see `judged_pairs`."""
    if question.count("{prompt}") != 1:
        raise DataError(f"the question is {question!r}; it must have the slot {{prompt}} once, for the pair's prompt")
    if sample.messages:
        raise DataError(f"sample {sample.id!r}: a pair to judge has a prompt, and no messages")
    answers = [_answer_of(sample, name) for name in ("chosen", "rejected")]
    if answers[0][0] != answers[1][0]:
        raise DataError(f"sample {sample.id!r}: one of chosen and rejected is a picture, and the other a text")
    are_pictures = answers[0][0]
    contents = [content for _, content in answers]
    found = []
    for letter, placed in ((FIRST, contents), (SECOND, contents[::-1])):
        text = pair_text(question, sample.prompt, () if are_pictures else placed)
        found.append(
            replace(
                sample,
                id=f"{sample.id}-{letter.lower()}",
                prompt=text,
                images=(*sample.images, *placed) if are_pictures else sample.images,
                answer=letter,
                task=task,
                chosen=None,
                rejected=None,
                metadata={**sample.metadata, "pair": sample.id},
            )
        )
    return found[0], found[1]


def pair_text(question: str, prompt: str, texts: Sequence[str] = ()) -> str:
    """Return the text of a question about two answers, behind their pictures or with their two texts."""
    text = question.replace("{prompt}", prompt)
    return f"{text}\n{FIRST}: {texts[0]}\n{SECOND}: {texts[1]}" if texts else text


def _answer_of(sample: Sample, name: str) -> tuple[bool, str]:
    """Return whether an answer is a picture, and its path, URI or text."""
    value: Any = getattr(sample, name)
    if isinstance(value, dict) and isinstance(value.get("image"), str):
        return True, value["image"]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"sample {sample.id!r}: {name} is {value!r:.60}; expected a picture or a text")
    return is_data_uri(value) or Path(value).suffix.lower() in PICTURE_ENDINGS, value
