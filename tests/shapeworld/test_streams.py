"""Clips that arrive one after another: what is seen when, when the question comes, and what is waited for."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch
from mmrl.errors import DataError
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import NUMBERS
from mmrl_shapeworld.vqa.questions import FRAMES
from mmrl_shapeworld.worlds.stream_clips import CLIPS, LETTERS, Movement, Stream, clip_of, frames_of
from mmrl_shapeworld.worlds.stream_environment import StreamedClips, StreamEpisode, letter_in
from mmrl_shapeworld.worlds.stream_splits import NAMES, SIZES, careless, expert, streams
from mmrl_shapeworld.worlds.stream_splits import samples as split_samples
from mmrl_shapeworld.worlds.world_canvas import UNSEEN_COLOURS

READER = MediaReader(MediaBudget())
QUESTIONS = 2497312721
STREAM = Stream(
    (
        Movement("red", "square", "left", 40, 10, 12, 6),
        Movement("blue", "square", "up", 3, 44, 11, 5),
        Movement("green", "square", "right", 0, 0, 12, 8),
    ),
    target=1,
)


def outcome_of(stream, annotator, whole=False):
    episode = StreamEpisode(stream, CLIPS if whole else 1)
    while episode.step(annotator(episode)).observation is not None:
        pass
    return episode.outcome()


def test_a_clip_moves_as_it_says():
    first, *_, last = frames_of(STREAM.movements[0])
    assert (first[10:22, 40:52] == NUMBERS["red"]).all() and (last[10:22, 22:34] == NUMBERS["red"]).all()
    assert (first == 0).sum() == (last == 0).sum() == 56 * 56 - 144
    clip = clip_of(STREAM.movements[0])
    assert clip.frames.shape == (FRAMES, 56, 56, 3) and clip.duration == 2.0
    assert tuple(clip.frames[0, 12, 44]) == tuple(clip.frames[3, 12, 26]) != tuple(clip.frames[3, 12, 44])


def test_the_question_comes_after_the_last_clip_and_what_follows_is_waited_for():
    episode = StreamEpisode(STREAM)
    steps = []
    for note in ("red square left", "nothing", "green square right"):
        step = episode.step(note)
        steps.append(step)
    assert [step.info["noted"] for step in steps] == [1, 0, 1]
    for number, step in enumerate(steps[:2], start=1):
        np.testing.assert_array_equal(step.observation.videos[0].frames, clip_of(STREAM.movements[number]).frames)
    assert steps[2].observation.text == STREAM.question and not steps[2].observation.videos
    last = episode.step("C")
    assert last.observation is None and last.info["waiting"] == 1
    outcome = episode.outcome()
    assert outcome["success"] and outcome["waiting"] == 1 and outcome["noted"] == 40
    assert outcome["latency"] == 0.01
    with pytest.raises(ValueError, match="over"):
        episode.step("C")


def test_with_everything_at_once_there_is_one_turn():
    episode = StreamEpisode(STREAM, arrived=CLIPS)
    assert episode.step("red square left, blue square up, green square right. C").observation is None
    assert episode.outcome()["success"] and episode.outcome()["waiting"] == 54
    assert episode.outcome()["latency"] == 0.54
    long = StreamEpisode(STREAM, arrived=CLIPS)
    long.step(f"{'red square left, ' * 20}C")
    assert long.outcome()["latency"] == 1.0
    cut = StreamEpisode(STREAM)
    assert cut.step(None).observation is None
    assert cut.outcome() == {
        "success": False,
        "answer": None,
        "waiting": 0,
        "latency": 1.0,
        "noted": 0,
        "ended": "cut_off",
    }


@pytest.mark.parametrize(
    ("action", "letter"),
    [
        ("C", "C"),
        ("it goes up: C.", "C"),
        ("<think>A or B</think><answer>C</answer>", "C"),
        ("A, B, C", "C"),
        ("ABC", None),
        ("C it is", None),
        ("E", None),
        ("", None),
        ("C" * 20_000, None),
    ],
)
def test_the_answer_is_the_letter_at_the_end(action, letter):
    assert letter_in(action) == letter


@given(st.lists(st.text(max_size=50), min_size=4, max_size=4))
def test_no_text_breaks_an_episode(actions):
    episode = StreamEpisode(STREAM)
    for action in actions:
        episode.step(action)
    assert episode.outcome()["ended"] == "answer"


@pytest.mark.integration
def test_the_expert_is_right_and_waits_less_when_the_notes_come_first():
    rng = np.random.default_rng(0)
    chosen = streams("stream-validation")[:200]
    for whole in (False, True):
        assert all(outcome_of(stream, expert, whole)["success"] for stream in chosen)
        share = np.mean([outcome_of(stream, careless(rng), whole)["success"] for stream in chosen])
        assert 0.65 < share < 0.85
    notes, at_once = (np.mean([outcome_of(s, expert, whole)["waiting"] for s in chosen]) for whole in (False, True))
    assert notes == 1 and at_once > 40
    target = {stream.target for stream in chosen}
    assert target == set(range(CLIPS)) and {stream.answer for stream in chosen} == set(LETTERS.values())


@pytest.mark.integration
def test_splits_share_no_stream_and_stay_the_same():
    drawn = {part: {repr(stream) for stream in streams(f"stream-{part}")} for part in SIZES}
    for part, others in drawn.items():
        assert len(others) == SIZES[part] and streams(f"stream-whole-{part}") == streams(f"stream-{part}")
        assert not any(others & drawn[other] for other in drawn if other != part)
    assert all(s.movements[s.target].colour in UNSEEN_COLOURS for s in streams("stream-ood"))
    found = "".join(stream.question for stream in streams("stream-validation"))
    assert zlib.crc32(found.encode()) == QUESTIONS
    assert len(NAMES) == 2 * len(SIZES)
    with pytest.raises(KeyError, match="stream-train"):
        streams("stream-nowhere")


@pytest.mark.slow
def test_both_ways_to_watch_have_the_same_ids_so_that_a_study_can_pair_them():
    for part in ("development", "validation", "ood"):
        assert [s.id for s in samples(f"stream-whole-{part}")] == [s.id for s in samples(f"stream-{part}")]


@pytest.mark.slow
def test_samples_survive_a_file_and_play(tmp_path):
    chosen = [*samples("stream-train")[:2], *samples("stream-whole-train")[2:4]]
    write_samples(chosen, tmp_path / "streams.jsonl")
    again = list(read_samples(tmp_path / "streams.jsonl"))
    turns = [sample.demonstration["turns"] for sample in again]
    assert [len(each) for each in turns] == [CLIPS + 1] * 2 + [1] * 2
    batch = EpisodeBatch(StreamedClips(), again, READER)
    while batch.live:
        batch.step({row: turns[row][batch.turns[row]] for row in batch.live})
    assert batch.turns == [4, 4, 1, 1] and all(outcome["ended"] == "answer" for outcome in batch.outcomes())
    first = READER.video(again[0].videos[0])
    np.testing.assert_array_equal(first.frames, clip_of(streams("stream-train")[0].movements[0]).frames)
    assert all(sample.demonstration is None for sample in split_samples("stream-validation")[:5])


@pytest.mark.parametrize(
    "change",
    [
        {"answer": None},
        {"answer": {"movements": [], "target": 0}},
        {"answer": STREAM.as_dict() | {"target": 9}},
        {"videos": ("a", "b")},
        {"prompt": STREAM.question},
    ],
)
def test_samples_that_are_no_stream_are_named(change):
    known = {"prompt": "Watch.", "videos": ("a",), "answer": STREAM.as_dict()} | change
    with pytest.raises(DataError, match="'w'"):
        StreamedClips().begin(Sample("w", **known), READER)
