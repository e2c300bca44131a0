"""Proposals differ from their parent in what they say they change."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmrl.config.loading.load import parse_config
from mmrl.data.media.uris import uri_bytes
from mmrl.data.proposers import AttemptStarts, Parent, WordSwaps
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError

LISTS = [["red", "blue", "dark blue"], ["cat", "dog"]]
BASE = "name: a\npolicy: {kind: pipeline, model: m}\nrewards: [{name: ocr}]\ndata: {path: x, prompts: {name: growing"


def proposals(proposer, sample, count=60, answer=None, depth=0):
    rng = np.random.default_rng(0)
    return [proposer.propose(Parent(sample, 1.0, answer, depth), rng) for _ in range(count)]


def test_one_word_is_swapped_for_another_of_its_list():
    sample = Sample("a", prompt="a red dog", source="animals")
    found = proposals(WordSwaps(LISTS), sample)
    assert {each.prompt for each in found} == {"a blue dog", "a dark blue dog", "a red cat"}
    assert {each.source for each in found} == {"animals"}


def test_words_are_whole_words():
    assert proposals(WordSwaps(LISTS), Sample("a", prompt="a bored doggy"), 3) == [None] * 3


def test_parts_are_joined_up_to_a_number():
    proposer = WordSwaps(LISTS, parts=["a pig"], joined=1.0, max_parts=2)
    assert {each.prompt for each in proposals(proposer, Sample("a", prompt="a red dog"))} == {"a red dog and a pig"}
    full = {each.prompt for each in proposals(proposer, Sample("a", prompt="a red dog and a pig"))}
    assert full == {"a blue dog and a pig", "a dark blue dog and a pig", "a red cat and a pig"}


def test_an_answer_would_become_wrong():
    with pytest.raises(ValueError, match="'a' has an answer, which would be wrong"):
        proposals(WordSwaps(LISTS), Sample("a", prompt="a red dog", answer="dog"), 1)


def test_a_text_becomes_a_turn_of_a_conversation():
    sample = Sample("a", prompt="3+4=", answer=7)
    (once,) = proposals(AttemptStarts(message="Again."), sample, 1, "8")
    assert once.prompt == "" and once.answer == 7 and once.last_text == "Again."
    assert [turn["content"] for turn in once.messages] == ["3+4=", "8", "Again."]
    (twice,) = proposals(AttemptStarts(message="Again."), once, 1, "9")
    assert [turn["role"] for turn in twice.messages] == ["user", "assistant", "user", "assistant", "user"]


def test_of_several_attempts_the_last_may_be_left():
    sample, proposer = Sample("a", prompt="3+4=", answer=7), AttemptStarts(message="Again.", keep="last")
    (once,) = proposals(proposer, sample, 1, "8")
    (twice,) = proposals(proposer, once, 1, "9", depth=1)
    assert [turn["content"] for turn in once.messages] == ["3+4=", "8", "Again."]
    assert [turn["content"] for turn in twice.messages] == ["3+4=", "9", "Again."]
    talk = Sample("b", messages=({"role": "user", "content": "x"},) * 3)
    (found,) = proposals(proposer, talk, 1, "8")
    assert len(found.messages) == 5  # a conversation of the data set is left whole


def test_a_picture_takes_the_place_of_the_condition_without_loss():
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    sample = Sample("a", prompt="make it blue", conditions={"image": "a.png", "strength": 0.5}, answer={"x": 1})
    (found,) = proposals(AttemptStarts(), sample, 1, picture)
    assert found.prompt == sample.prompt and found.answer == sample.answer and found.conditions["strength"] == 0.5
    again = Image.open(io.BytesIO(uri_bytes(found.conditions["image"])))
    assert np.array_equal(np.asarray(again), np.asarray(picture))


def test_complete_and_deep_answers_are_no_starting_points():
    rng, sample = np.random.default_rng(0), Sample("a", prompt="x")
    proposer = AttemptStarts(below=1.0, max_depth=2)
    assert {proposer.wanted_answer(sample, 1, [1.0, 0.2, 1.0, 0.9], rng) for _ in range(40)} == {1, 3}
    assert proposer.wanted_answer(sample, 0, [1.0, 1.0], rng) is None
    assert proposer.wanted_answer(sample, 2, [0.0, 0.2], rng) is None


def test_mistakes_are_errors():
    with pytest.raises(ValueError, match="an answer to sample 'a' is a list"):
        proposals(AttemptStarts(), Sample("a", prompt="x"), 1, [])
    with pytest.raises(ValueError, match="has no condition 'image'"):
        proposals(AttemptStarts(), Sample("a", prompt="x"), 1, Image.new("RGB", (2, 2)))
    with pytest.raises(ValueError, match="max_depth is 0"):
        AttemptStarts(max_depth=0)
    with pytest.raises(ValueError, match="keep is 'first'"):
        AttemptStarts(keep="first")
    with pytest.raises(ValueError, match="two words or more"):
        WordSwaps([["red"]])
    with pytest.raises(ValueError, match="joined is 2"):
        WordSwaps(LISTS, joined=2)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("}}", "proposer"),
        (", proposer: {name: word_swap}}}", "word_swaps"),
        (", proposer: {name: attempts}, share: 1.5}}", "share"),
    ],
)
def test_wrong_keys_are_errors(rest, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(BASE + rest, "a.yaml")


def test_a_proposer_with_wrong_arguments_is_found_before_training():
    from mmrl.config.validation import data_errors

    config = parse_config(BASE + ", proposer: {name: attempts, args: {depth: 3}}}}", "a.yaml")
    assert any("data.prompts.proposer: attempts(" in each for each in data_errors(config))
