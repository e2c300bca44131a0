"""`CaptionMutations`: new captions by one change of another, for prompts that grow while training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample
from mmrl_shapeworld.captions import RELATIONS, SEEN_KINDS, Caption, Clause
from mmrl_shapeworld.scenes import COLOURS, SHAPES
from mmrl_shapeworld.splits import caption_sample

SIZES = (None, "small", "large")
MAX_COUNT = 4


class CaptionMutations(Proposer):
    """A proposer of captions that differ from their parent in one thing, all changes alike.

    A colour or a shape becomes another; one thing changes its size, several their number; a caption of one thing gets
    a second one beside it (`deepen`), with or without a relation between them, and a pair gets or changes its relation.
    No caption names a held-out kind, or anything that the grammar of ShapeWorld lacks.
    """

    def __init__(self, deepen: bool = True) -> None:
        """`deepen`: whether captions of one thing may become captions of two."""
        self._deepen = deepen

    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample | None:
        """Return the sample of a changed caption, with the parsed caption as its answer."""
        caption = Caption.from_dict(parent.sample.answer)
        found = mutations(caption, self._deepen)
        return caption_sample(found[int(rng.integers(len(found)))], parent.sample.id) if found else None


def mutations(caption: Caption, deepen: bool = True) -> list[Caption]:
    """Return all captions that one change makes of a caption."""
    found = [
        replace(caption, clauses=(*caption.clauses[:place], changed, *caption.clauses[place + 1 :]))
        for place, clause in enumerate(caption.clauses)
        for changed in (
            *(replace(clause, colour=colour) for colour in COLOURS if colour != clause.colour),
            *(replace(clause, shape=shape) for shape in SHAPES if shape != clause.shape),
        )
    ]
    if len(caption.clauses) == 1:
        (only,) = caption.clauses
        if only.count == 1:
            found += [Caption((replace(only, size=size),)) for size in SIZES if size != only.size]
        if only.size is None:
            found += [
                Caption((replace(only, count=count),))
                for count in (only.count - 1, only.count + 1)
                if 1 <= count <= MAX_COUNT
            ]
        if deepen and only.count == 1:
            plain = replace(only, size=None)
            found += [
                Caption((plain, Clause(1, *kind)), relation) for kind in SEEN_KINDS for relation in (None, *RELATIONS)
            ]
    else:
        found += [replace(caption, relation=relation) for relation in RELATIONS if relation != caption.relation]
    return [each for each in found if _is_trainable(each)]


def _is_trainable(caption: Caption) -> bool:
    """Return whether all kinds are seen in training, and those of two clauses differ."""
    kinds = [(clause.colour, clause.shape) for clause in caption.clauses]
    return len(set(kinds)) == len(kinds) and all(kind in SEEN_KINDS for kind in kinds)
