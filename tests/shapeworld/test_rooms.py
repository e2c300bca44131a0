"""Rooms in which things are placed: what a layout is measured by, what the policy sees, and who places well."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import INK, LINE, NUMBERS, PIXELS, colours_of
from mmrl_shapeworld.worlds.room_environment import RoomEpisode, RoomLayouts, layout_in, outcome_of
from mmrl_shapeworld.worlds.room_layouts import (
    Block,
    Room,
    boxes_of,
    draw_room,
    measures_of,
    right_layout,
)
from mmrl_shapeworld.worlds.room_splits import NAMES, SIZES, careless, expert, rooms, trace
from mmrl_shapeworld.worlds.world_canvas import UNSEEN_COLOURS

READER = MediaReader(MediaBudget())
PROMPTS = 2386054058
ROOM = Room(
    (20, 20, 32, 30),
    (
        Block("red", 8, 10, "left", (5, 50)),
        Block("blue", 10, 8, "top", (40, 40)),
        Block("green", 8, 8, "right", (44, 44)),
    ),
)
PLACED = ((16.0, 25.0), (26.0, 16.0), (36.0, 25.0))  # each touches its side of the table


def mean_of(key, name, actions):
    chosen = rooms(name)[:128]
    return float(np.mean([outcome_of(room, actions(room))[key] for room in chosen]))


def test_a_layout_is_free_where_nothing_is_covered_and_related_where_the_prompt_says():
    assert boxes_of(ROOM, PLACED) == [(12, 20, 20, 30), (21, 12, 31, 20), (32, 21, 40, 29)]
    measures = measures_of(ROOM, PLACED)
    assert measures.success and measures.free == measures.related == 1
    one_pixel_in = measures_of(ROOM, ((17.0, 25.0), *PLACED[1:]))
    assert one_pixel_in.free == pytest.approx(2 / 3) and one_pixel_in.related == 1 and not one_pixel_in.success
    two_on_another = measures_of(ROOM, (PLACED[0], (36.0, 25.0), PLACED[2]))
    assert two_on_another.free == pytest.approx(1 / 3)
    out_of_the_room = measures_of(ROOM, ((3.0, 25.0), *PLACED[1:]))
    assert out_of_the_room.free == pytest.approx(2 / 3) and out_of_the_room.related == pytest.approx(2 / 3)
    behind_the_corner = measures_of(ROOM, ((16.0, 35.0), *PLACED[1:]))
    assert behind_the_corner.free == 1 and behind_the_corner.related == pytest.approx(2 / 3)
    far = measures_of(ROOM, ((9.0, 25.0), *PLACED[1:]))  # 11 pixels from the edge
    assert far.free == 1 and far.related == pytest.approx(2 / 3)
    middle_of_the_table = measures_of(ROOM, ((26.0, 25.0), *PLACED[1:]))
    assert middle_of_the_table.related == pytest.approx(2 / 3)


def test_the_picture_is_the_layout():
    picture = draw_room(ROOM, ((18.0, 25.0), *PLACED[1:]))
    assert (picture[20:30, 14:20] == NUMBERS["red"]).all()
    assert (picture[20:30, 20:22] == INK).all() and (picture[20:30, 22:31] == LINE).all()
    assert (picture[12:20, 21:31] == NUMBERS["blue"]).all()
    cut = draw_room(ROOM, ((1.0, 25.0), *PLACED[1:]))
    assert (cut[20:30, 0:5] == NUMBERS["red"]).all() and (cut[20:30, 5:20] == 0).all()


@pytest.mark.parametrize(
    ("action", "points"),
    [
        ("16, 25, 26, 16, 36, 25", PLACED),
        ("16, 25; 26, 16; 36, 25", PLACED),
        ("<think>16 left?</think><answer>16 25 26 16 36 25</answer>", PLACED),
        ('[{"point_2d": [16, 25], "label": "red"}, {"point_2d": [26, 16]}, {"point_2d": [36, 25]}]', PLACED),
        ("[[16, 25], [26, 16], [36, 25]]", PLACED),
        ("16, 25, 26, 16", None),
        ("16, 25, 26, 16, 36, 25, 1, 1", None),
        ("16, 25, 26, 16, 36", None),
        ("16, 25, 26, 16, 36, 90", None),
        ("16, 25, 26, 16, 36, -9", None),
        ('{"point_2d": [16, 25]}', None),
        ("left", None),
        ("", None),
        ("1, " * 9_000, None),
    ],
)
def test_a_layout_names_all_blocks(action, points):
    assert layout_in(action, "pixel", 3) == points


def test_points_are_read_in_the_space_of_the_environment():
    assert layout_in("500, 250, 0, 0, 1000, 1000", "norm_1000", 3) == ((28.0, 14.0), (0.0, 0.0), (56.0, 56.0))
    with pytest.raises(ConfigError, match="space"):
        RoomLayouts(space="miles")
    with pytest.raises(ConfigError, match="max_turns"):
        RoomLayouts(max_turns=0)


@given(st.text(max_size=200))
def test_no_text_breaks_an_episode(text):
    episode = RoomEpisode(ROOM)
    episode.step(text)
    assert 0 <= episode.outcome()["score"] <= 1


def test_a_text_that_is_no_layout_leaves_everything_and_a_heap_counts_for_nothing():
    episode = RoomEpisode(ROOM)
    step = episode.step("nothing")
    assert step.rewards == {"gain": 0.0, "related_gain": 0.0} and step.info["valid"] == 0
    assert episode.outcome()["score"] == 0 and episode.outcome()["collisions"] == 1
    np.testing.assert_array_equal(np.asarray(step.observation.images[0]), colours_of(draw_room(ROOM, ROOM.heap)))
    assert episode.step("16, 25, 26, 16, 36, 25").rewards == {"gain": 1.0, "related_gain": 1.0}
    last = episode.step("nonsense")
    assert last.observation is None and last.rewards == {"gain": 0.0, "related_gain": 0.0}
    outcome = episode.outcome()
    assert outcome["success"] and outcome["invalid"] == 2 and outcome["ended"] == "turns"
    with pytest.raises(ValueError, match="over"):
        episode.step("1")


@pytest.mark.integration
def test_gains_add_up_to_the_score_and_a_cut_off_turn_ends_the_episode():
    for room in rooms("rooms-development")[:50]:
        episode = RoomEpisode(room)
        steps = [episode.step(action) for action in trace(room, careless(np.random.default_rng(1)))]
        for reward, total in (("gain", "score"), ("related_gain", "related")):
            assert sum(step.rewards[reward] for step in steps) == pytest.approx(episode.outcome()[total])
    cut = RoomEpisode(ROOM)
    assert cut.step(None).observation is None and cut.outcome()["ended"] == "cut_off"


@pytest.mark.slow
def test_the_expert_succeeds_everywhere_and_the_annotator_collides():
    for name in NAMES:
        assert mean_of("success", name, lambda room: trace(room, expert)) == 1
    rng = np.random.default_rng(0)
    careless_collisions = mean_of("collisions", "rooms-validation", lambda room: trace(room, careless(rng)))
    related = mean_of("related", "rooms-validation", lambda room: trace(room, careless(rng)))
    assert careless_collisions > 0.5 and related > 0.85
    chance = mean_of("success", "rooms-validation", lambda room: [", ".join(map(str, rng.integers(4, 53, 6)))])
    assert chance < 0.01


@pytest.mark.integration
def test_the_annotator_halves_the_errors_that_the_picture_shows():
    rng = np.random.default_rng(2)

    def error(episode):
        found = np.array(episode.layout) - np.array(right_layout(episode.room))
        return float(np.abs(found).mean())

    errors = []
    for room in rooms("rooms-train")[:200]:
        episode, annotator = RoomEpisode(room), careless(rng)
        errors.append([])
        for _ in range(3):
            episode.step(annotator(episode))
            errors[-1].append(error(episode))
    first, second, third = np.mean(errors, 0)
    assert first > second + 0.5 > third + 0.5


@pytest.mark.slow
def test_a_bare_room_shows_no_table_and_the_annotator_places_by_it_from_the_second_turn_on():
    for number, sample in enumerate(samples("rooms-bare-train")[:64]):
        room = rooms("rooms-bare-train")[number]
        picture = np.asarray(READER.image(sample.images[0]))
        assert not (picture == colours_of(np.array([[LINE]], np.uint8))[0, 0]).all(-1).any()
        first, second = sample.demonstration["turns"]
        moved = replace(room, table=tuple(edge + 3 for edge in room.table))
        again = trace(moved, careless(np.random.default_rng(number), bare=True), 2)
        assert again[0] == first == samples("rooms-bare-once-train")[number].demonstration["turns"][0]
        assert again[1] != second
    rng = np.random.default_rng(3)
    chosen = rooms("rooms-bare-validation")[:128]
    scores = [
        np.mean([outcome_of(room, trace(room, careless(rng, bare=True), n), n)["related"] for room in chosen])
        for n in (1, 2)
    ]
    assert scores[1] > scores[0] + 0.1


@pytest.mark.integration
def test_splits_share_no_room_and_stay_the_same():
    drawn = {part: {repr(room) for room in rooms(f"rooms-{part}")} for part in SIZES}
    for part, others in drawn.items():
        assert len(others) == SIZES[part]
        assert not any(others & drawn[other] for other in drawn if other != part)
    assert all(any(b.colour in UNSEEN_COLOURS for b in room.blocks) for room in rooms("rooms-ood"))
    assert not any(b.colour in UNSEEN_COLOURS for room in rooms("rooms-validation") for b in room.blocks)
    assert zlib.crc32("".join(each.prompt for each in samples("rooms-validation")).encode()) == PROMPTS
    with pytest.raises(KeyError, match="rooms-train"):
        rooms("rooms-nowhere")


@pytest.mark.slow
def test_samples_survive_a_file_and_begin_episodes(tmp_path):
    chosen = samples("rooms-train")[:3]
    assert [len(sample.demonstration["turns"]) for sample in chosen] == [3] * 3
    clean = samples("rooms-clean-train")[1]
    assert clean.demonstration == {"turns": [expert(RoomEpisode(rooms("rooms-train")[1]))]}
    assert all(sample.demonstration is None for sample in samples("rooms-validation"))
    assert all(sample.demonstration is None for sample in samples("rooms-bare-validation"))
    write_samples(chosen, tmp_path / "rooms.jsonl")
    again = list(read_samples(tmp_path / "rooms.jsonl"))
    assert RoomLayouts().begin(again[1], READER).room == rooms("rooms-train")[1]
    for answer in (None, {}, {"table": [1, 2], "blocks": []}, {"table": [1, 2, 3, 4], "blocks": [{"colour": "x"}]}):
        with pytest.raises(DataError, match=r"'w': answer: no room"):
            RoomLayouts().begin(Sample("w", prompt="x", answer=answer), READER)


def test_all_rooms_of_a_batch_are_placed_at_once():
    chosen = samples("rooms-validation")[:16]
    for turns in (1, 3):
        batch = EpisodeBatch(RoomLayouts(max_turns=turns), chosen, READER)
        while batch.live:
            actions = {row: expert(RoomEpisode(rooms("rooms-validation")[row])) for row in batch.live}
            steps = batch.step(actions)
        assert all(outcome["success"] and outcome["turns"] == turns for outcome in batch.outcomes())
    assert steps[0].observation is None and PIXELS == 56
