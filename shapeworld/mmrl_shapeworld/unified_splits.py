"""Data for a model that draws and looks: captions with the questions that they answer, and questions about pictures.

`shapeworld:unified-train` has different captions and no pictures; `metadata.questions` is what a caption answers.
`unified-development`, `-validation` and `-later` have by turns a caption, whose source is its form (`draw-single`,
`draw-count`, `draw-pair`, `draw-relation`), and a question about a true picture (`look`). `BothTasks` measures both.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from mmrl.data.sample import Sample
from mmrl.rewards.core.picture_drawing import lacks_sample, painter_of
from mmrl.rewards.core.reward import RowsReward, Scored
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl_shapeworld.answered_captions import (
    NO,
    OPPOSITE,
    WHOLE,
    YES,
    PictureQuestion,
    answered_questions,
    clause_question,
    count_question,
    whole_question,
)
from mmrl_shapeworld.captions import SEEN_KINDS, Caption, Clause, sample_caption, sample_scene
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.scenes import draw, picture_uri

SPLITS = {
    "unified-train": (181, 256),
    "unified-development": (182, 512),
    "unified-validation": (183, 768),
    "unified-later": (184, 768),
}
"""Seed and size of each split. Settings are chosen on `unified-development`; the last two are for results."""
NAMES = tuple(SPLITS)
PIXELS = 32


@cache
def samples(split: str) -> list[Sample]:
    """Return a split as data.

    Raises:
        KeyError: there is no such split.
    """
    seed, size = SPLITS[split]
    rng = np.random.default_rng(seed)
    if split == "unified-train":
        different: dict[str, Caption] = {}
        while len(different) < size:
            caption = sample_caption(rng, SEEN_KINDS)
            different.setdefault(str(caption), caption)
        return [_drawn(f"{split}-{number:04d}", caption) for number, caption in enumerate(different.values())]
    found = []
    for number in range(size):
        id, caption = f"{split}-{number:04d}", sample_caption(rng, SEEN_KINDS)
        found.append(_looked(id, caption, rng) if number % 2 else _drawn(id, caption))
    return found


def caption_questions(caption: Caption) -> list[dict[str, str]]:
    """Return the questions that a caption answers, as data, each with a kind.

    `whole` is whether the caption is true, and `changed` whether a changed one is: yes and no. `thing` is one question
    for each clause, `absent` is how many there are of what no clause names, zero, and `attribute` are all others.
    """
    from mmrl_shapeworld.caption_mutations import mutations

    others = [each for each in mutations(caption, deepen=False) if _excludes(caption, each)]
    rng = np.random.default_rng(zlib.crc32(str(caption).encode()))
    changed = others[rng.integers(len(others))]
    named = {(clause.colour, clause.shape) for clause in caption.clauses}
    unnamed = [kind for kind in SEEN_KINDS if kind not in named]
    absent = count_question(Clause(0, *unnamed[rng.integers(len(unnamed))]))
    things = [clause_question(clause) for clause in caption.clauses]
    kinds = (
        ("whole", [PictureQuestion(whole_question(caption), YES)]),
        ("changed", [PictureQuestion(whole_question(changed), NO)]),
        ("thing", things),
        ("absent", [absent]),
        ("attribute", [each for each in answered_questions(caption) if each not in things]),
    )
    return [{"question": each.text, "answer": each.answer, "kind": kind} for kind, found in kinds for each in found]


def _excludes(caption: Caption, changed: Caption) -> bool:
    """Return whether no picture of a caption is one of the changed caption, which differs in one thing.

    Two relations of different axes may hold at once, and one without a size is true of every size.
    """
    if caption.relation != changed.relation:
        return changed.relation == OPPOSITE.get(caption.relation or "")
    sizes = {clause.size for clause in (*caption.clauses, *changed.clauses)}
    return len(sizes) == 1 or None not in sizes


def _drawn(id: str, caption: Caption) -> Sample:
    return Sample(
        id=id,
        prompt=str(caption),
        answer=caption.as_dict(),
        source=f"draw-{caption.form}",
        metadata={"questions": caption_questions(caption)},
    )


def _looked(id: str, caption: Caption, rng: np.random.Generator) -> Sample:
    """Return a question about a true picture: whether a caption is true of it, which may be changed, or another one."""
    from mmrl_shapeworld.caption_mutations import mutations

    scene = sample_scene(caption, rng)
    if rng.random() < WHOLE:
        changed = mutations(caption, deepen=False)
        named = caption if rng.random() < 0.5 else changed[rng.integers(len(changed))]
        question = PictureQuestion(whole_question(named), YES if named.holds_for(scene) else NO)
    else:
        listed = caption_questions(caption)
        found = [each for each in listed if each["kind"] in ("thing", "absent", "attribute")]
        chosen = found[rng.integers(len(found))]
        question = PictureQuestion(chosen["question"], chosen["answer"])
    return Sample(
        id=id,
        prompt=question.text,
        images=(picture_uri(draw(scene, PIXELS)),),
        answer=question.answer,
        source="look",
        metadata={"tags": [" ".join(question.text.split()[:2])]},
    )


class BothTasks(RowsReward):
    """1 if what a model of the run draws of a caption is strictly correct, or the answer about a picture right, else 0.

    `credit` is the rule checker's partial credit of a drawn picture. `gap` is 1 for a right answer and -1 for a right
    picture: over as many questions as captions, twice its mean is how far answers are ahead of pictures. What the
    policy answers to a caption is not read.
    """

    name, needs, range = "right", ("references.answer",), (0.0, 1.0)
    source = "docs/shapeworld.md"
    models = painters = ("painter",)

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        """Draw all captions, judge the pictures, and compare the answers."""
        captions = [item.sample for item in items if item.sample is not None and not item.sample.images]
        drawn = iter(painter_of(context, "painter").pictures(captions, context.seed))
        scored: list[Scored] = []
        for item in items:
            if item.sample is None:
                scored.append(lacks_sample(self.name))
            elif item.sample.images:
                right = float((item.text or "").strip() == item.references["answer"])
                scored.append({self.name: right, "credit": right, "gap": right})
            else:
                verdict = judge(next(drawn)[0], Caption.from_dict(item.references["answer"]))
                right = float(verdict.strict)
                scored.append({self.name: right, "credit": verdict.score, "gap": -right})
        return scored
