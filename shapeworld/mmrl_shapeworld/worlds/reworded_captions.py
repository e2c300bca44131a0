"""Captions in other words than their reference, for studies of rewards of open answers: which follows the facts?

The reference states the facts in the plainest wording. An answer says some of them, more or less of them wrong, in
synonyms, other wordings and full sentences. The truth is the F1 of its facts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl.rewards import RewardInput
from mmrl.rewards.rules.text_similarity import BMAS
from mmrl.studies.scoring import LabelledAnswers
from mmrl_shapeworld.shipped_models import VLM_WORLDS
from mmrl_shapeworld.vqa.questions import PLACES
from mmrl_shapeworld.worlds.caption_facts import FactCheck
from mmrl_shapeworld.worlds.picture_captions import SIZES, SYNONYMS, WORDINGS, Facts, caption
from mmrl_shapeworld.worlds.world_canvas import SEEN_COLOURS, SEEN_SHAPES

COUNT = 240
KEPT = 0.75
"""The share of things that an answer mentions."""
SENTENCES = ("there is {}", "i see {}", "the picture shows {}", "one can see {}", "{}")
ATTRIBUTE_VALUES = {"colour": SEEN_COLOURS, "shape": SEEN_SHAPES, "size": tuple(SIZES), "place": PLACES}
"""The values of each attribute of a thing."""


class ShapeBMAS(BMAS):
    """`bmas` by the embeddings of the tiny VLM of the worlds, whose tokenizer has the words of captions."""

    name = "shape_bmas"

    def __init__(self, threshold: float | None = None) -> None:
        """Load the token embeddings, the abstract's form; `threshold` as in `bmas`."""
        super().__init__(str(VLM_WORLDS), embeddings="input", threshold=threshold)


def reworded_captions(seed: int) -> LabelledAnswers:
    """Return answers about as many pictures, whose share of wrong attributes lies anywhere from none to all."""
    rng = np.random.default_rng((seed, 13))
    inputs = []
    for number in range(COUNT):
        question = caption(rng)
        things: Sequence[Facts] = question.metadata["facts"]
        mentioned = [fact for fact in things if rng.random() < KEPT] or things[:1]
        references = {"answer": " and ".join(map(WORDINGS[0], things)), "facts": things}
        text = reworded(mentioned, float(rng.random()), rng)
        inputs.append(RewardInput(f"{seed}-{number}", 0, question.prompt, text=text, references=references))
    truth = FactCheck().score(inputs).values[FactCheck.name]
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, np.asarray(truth, np.float64))


def reworded(things: Sequence[Facts], errors: float, rng: np.random.Generator) -> str:
    """Return sentences in any order, with synonyms, and with this share of attributes drawn anew."""
    clauses = []
    for n in rng.permutation(len(things)):
        stated = {
            key: value if rng.random() > errors else ATTRIBUTE_VALUES[key][rng.integers(len(ATTRIBUTE_VALUES[key]))]
            for key, value in things[n].items()
        }
        reworded = {key: SYNONYMS.get(value, value) for key, value in stated.items()}
        clauses.append(SENTENCES[rng.integers(len(SENTENCES))].format(WORDINGS[rng.integers(1, 3)](reworded)))
    return ". ".join(clauses)
