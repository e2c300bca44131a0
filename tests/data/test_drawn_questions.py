"""Questions about drawn pictures: what they ask, whose answer they have, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from mmrl.data.listed_questions import DrawnQuestion, questions_of
from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.data.written_prompts import DrawnPictures
from mmrl.errors import DataError

LISTED = [{"question": "how many?", "answer": 2, "kind": "thing"}, {"question": "is it?", "answer": "yes"}]
PARENT = Sample("a", prompt="two red circles", metadata={"questions": LISTED})


def test_a_picture_becomes_a_question_with_the_answer_of_its_prompt():
    reader, picture = DrawnPictures(), Image.new("RGB", (4, 4), "red")
    assert reader.request(PARENT) is PARENT
    found = reader.read(picture, PARENT)
    answers = {"how many?": "2", "is it?": "yes"}
    assert found == replace(PARENT, prompt=found.prompt, images=found.images, answer=answers[found.prompt])
    assert load_image(found.images[0], "a").tobytes() == picture.tobytes()
    assert reader.read(picture, PARENT) == found


def test_all_questions_have_their_turn():
    pictures = [Image.new("RGB", (4, 4), (value, 0, 0)) for value in range(40)]
    prompts = [DrawnPictures().read(picture, PARENT).prompt for picture in pictures]
    assert 8 < prompts.count("how many?") < 32


def test_texts_and_samples_without_questions_are_errors():
    with pytest.raises(DataError, match="sample 'a' was answered by a text"):
        DrawnPictures().read("two circles", PARENT)
    with pytest.raises(DataError, match=r"has no metadata\.questions"):
        DrawnPictures().read(Image.new("RGB", (4, 4)), Sample("a", prompt="two red circles"))
    assert questions_of(LISTED)[1] == DrawnQuestion("is it?", "yes", "")
    for wrong in ("how many?", [{"question": "how many?"}], [{"question": "a", "answer": "b", "weight": 1}]):
        with pytest.raises(DataError, match="expected a list of mappings"):
            questions_of(wrong)
