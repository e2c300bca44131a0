"""Prompts that a model writes: read, refused, different within a batch, and alike after a resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.data.written_prompts import Captions, Instructions, QuestionReader, WrittenSampler
from mmrl.errors import DataError


class Doubled(QuestionReader):
    """A question is a number, and its answer the double; odd ones are refused."""

    def request(self, parent: Sample) -> Sample:
        return Sample(id=f"request-{parent.id}", prompt=f"like {parent.prompt}")

    def read(self, text: str, parent: Sample) -> Sample | None:
        return None if int(text) % 2 else Sample(id="x", prompt=text, answer=2 * int(text), source="written")


class Numbers:
    """A writer of random numbers below `most`, which remembers its requests."""

    def __init__(self, most: int) -> None:
        self.most, self.requests = most, []

    def answers(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        self.requests.append([sample.prompt for sample in samples])
        rng = np.random.default_rng(seed)
        return [[str(number) for number in rng.integers(self.most, size=draws)] for _ in samples]


def samples(count: int = 8) -> list[Sample]:
    return [Sample(id=f"s{number}", prompt=f"p{number}", answer=number) for number in range(count)]


def sampler(most: int = 1000, tries: int = 2, seed: int = 0) -> tuple[WrittenSampler, Numbers]:
    writer = Numbers(most)
    return WrittenSampler(samples(), 4, seed, writer.answers, Doubled(), tries=tries), writer


def test_questions_take_the_place_of_samples_and_others_stay():
    found, writer = sampler()
    batch = found.next()
    assert all(each.startswith("like p") for each in writer.requests[0]) and len(writer.requests[0]) == 4
    written = [sample for sample in batch if sample.source == "written"]
    assert written and all(sample.answer == 2 * int(sample.prompt) for sample in written)
    assert found.metrics() == {"prompts/written_share": len(written) / 4}
    parents = {sample.id for sample in batch} - {sample.id for sample in written}
    assert parents <= {f"s{number}" for number in range(8)}
    assert len({sample.id for sample in batch}) == 4
    more = found.more(3)
    assert len({sample.id for sample in [*batch, *more]}) == 7


def test_no_question_comes_twice_in_a_batch_and_new_ones_come_in_each():
    found, _ = sampler(most=2, tries=8)  # "0" is the only question there is
    batch = found.next()
    assert sum(sample.prompt == "0" for sample in batch) == 1 and found.metrics() == {"prompts/written_share": 0.25}
    many, _ = sampler(most=10**6, tries=8)
    assert {sample.prompt for sample in many.next()}.isdisjoint(sample.prompt for sample in many.next())


def test_a_resumed_source_writes_the_same():
    straight, _ = sampler()
    begun, _ = sampler()
    for _ in range(3):
        straight.next(), begun.next()
    resumed, _ = sampler()
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    for _ in range(3):
        assert resumed.next() == straight.next()
    other, _ = sampler(seed=1)
    assert other.next() != sampler()[0].next()


def test_written_samples_are_not_kept():
    found, _ = sampler()
    batch = found.next()
    written = next(sample for sample in batch if sample.source == "written")
    with pytest.raises(DataError, match="no sample"):
        found.sample(written.id)
    assert found.sample("s3").prompt == "p3"
    with pytest.raises(DataError, match="another source of prompts"):
        found.load_state_dict({"seed": 0})


class SameText(QuestionReader):
    """A reader that makes the same text of everything, about the parent's picture."""

    def request(self, parent: Sample) -> Sample:
        return parent

    def read(self, text: str, parent: Sample) -> Sample | None:
        return Sample(id="x", prompt="a circle", images=parent.images, source="written")


@pytest.mark.parametrize(("pictures", "share"), [(4, 1.0), (1, 0.25)])
def test_equal_texts_about_different_pictures_are_different_questions(pictures, share):
    parents = [Sample(id=f"s{n}", prompt=f"p{n}", images=(f"{n % pictures}.png",)) for n in range(4)]
    found = WrittenSampler(parents, 4, 0, Numbers(9).answers, SameText())
    found.next()
    assert found.metrics() == {"prompts/written_share": share}


def test_captions_take_the_place_of_requests_and_pictures_stay():
    parent = Sample(id="a", prompt="Describe.", images=("a.png",), answer={"n": 1}, metadata={"k": 2})
    reader = Captions()
    assert reader.request(parent) is parent
    assert reader.read(" a red circle\n", parent) == replace(parent, prompt="a red circle")
    assert reader.read(" \n", parent) is None
    talk = replace(parent, prompt="", messages=({"role": "user", "content": "Describe."},))
    assert reader.read("a circle", talk).last_text == "a circle"


def test_an_editor_gets_what_stands_behind_the_thoughts_and_the_users_picture():
    parent = Sample(id="a", prompt="make the big one green", images=("a.png",), answer={"n": 1}, metadata={"k": 2})
    reader = Instructions()
    assert reader.request(parent) is parent
    edited = replace(parent, prompt="make the circle green", images=(), conditions={"image": "a.png"})
    assert reader.read("<think>the circle is big</think> make the circle green\n", parent) == edited
    assert reader.read("make the circle green", parent) == edited
    found = Instructions(behind=";", condition="image_2").read("the circle is big; make it red", parent)
    assert (found.prompt, found.conditions) == ("make it red", {"image_2": "a.png"})
    talk = replace(parent, prompt="", messages=({"role": "user", "content": "make the big one green"},))
    for sample, empty in ((parent, ""), (talk, "<think>the circle is big</think> ")):
        read = reader.read(empty, sample)
        assert (read.prompt, read.messages) == ("make the big one green", ())
    with pytest.raises(ValueError, match="2 images, and an edit starts from one"):
        reader.read("make it red", replace(parent, images=("a.png", "b.png")))
