"""`picture_questions`: means by hand from a model whose probabilities are known, and what has no answer."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.models.picture_questions import PictureQuestions

QUESTIONS = [
    {"question": "is this two red circles ?", "answer": "yes", "kind": "whole"},
    {"question": "how many red circles ?", "answer": "two", "kind": "thing"},
    {"question": "what shape is red ?", "answer": "the circle", "kind": "thing"},
]
SURE = {"yes": [0.5], "two": [0.9], "the circle": [0.5, 0.4]}
"""The probability of each token of an answer."""


class SureModel:
    """A model that is as sure of an answer as `SURE` says, and remembers the questions."""

    def __init__(self) -> None:
        self.questions_seen: list[tuple[str, str]] = []

    def log_probs(self, texts):
        self.questions_seen += [(each.sample.prompt, each.sample.images[0]) for each in texts]
        end = [np.log(1e-3)]
        return [np.array([*np.log(SURE[each.text]), *end], np.float32) for each in texts]


def item(questions, id: str = "a", image=None) -> RewardInput:
    return RewardInput(
        id, 0, "two red circles", image=image or Image.new("RGB", (8, 8)), references={"questions": questions}
    )


def scored(*items: RewardInput, **settings):
    reward, model = PictureQuestions(**settings), SureModel()
    return reward.score(items, RewardContext(models={reward.models[0]: model})), model


def test_the_mean_over_all_questions_is_that_of_products_of_tokens_without_the_end():
    found, model = scored(item(QUESTIONS), item(QUESTIONS[:1], "b", Image.new("RGB", (8, 8), "white")))
    assert found.values["picture_questions"] == pytest.approx([(0.5 + 0.9 + 0.2) / 3, 0.5])
    assert found.values["picture_questions_thing"][0] == pytest.approx(0.55)
    assert [question for question, _ in model.questions_seen] == [
        each["question"] for each in (*QUESTIONS, QUESTIONS[0])
    ]
    pictures = [picture for _, picture in model.questions_seen]
    assert len(set(pictures[:3])) == 1 and pictures[3] != pictures[0]


@pytest.mark.parametrize(
    ("kinds", "value"),
    [({"whole": 1.0}, 0.5), ({"whole": 1.0, "thing": 1.0}, (0.5 + 0.55) / 2), ({"whole": 1, "thing": 3}, 0.5375)],
)
def test_kinds_have_weights_whatever_the_number_of_their_questions(kinds, value):
    found, model = scored(item(QUESTIONS), kinds=kinds)
    assert found.values["picture_questions"] == pytest.approx([value])
    assert len(model.questions_seen) == (1 if len(kinds) == 1 else 3)


def test_a_kind_that_a_sample_lacks_does_not_count():
    found, _ = scored(item(QUESTIONS[:1]), kinds={"whole": 1.0, "thing": 9.0})
    assert found.values["picture_questions"] == pytest.approx([0.5])


def test_without_questions_or_a_model_nothing_is_scored():
    found, _ = scored(item([]), item([{"question": "?"}]), item(QUESTIONS))
    assert found.status["picture_questions"] == [Status.ERROR, Status.ERROR, Status.OK]
    found, _ = scored(item(QUESTIONS), kinds={"place": 1.0})
    assert found.status["picture_questions"] == [Status.ERROR]
    assert PictureQuestions().score([item(QUESTIONS)], RewardContext()).status["picture_questions"] == [Status.ERROR]
    for kinds in ({}, {"whole": 0.0}):
        with pytest.raises(RewardError, match="kinds is"):
            PictureQuestions(kinds=kinds)
