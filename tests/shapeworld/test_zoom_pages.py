"""Pages that are looked at closer: the look, the answer, and letters that only the look shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.data.media.budget import ImageBudget, MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import EpisodeBatch
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import box_answer
from mmrl_shapeworld.worlds.world_canvas import UNSEEN_COLOURS
from mmrl_shapeworld.worlds.zoom_environment import SMALLEST_CUT, ZoomPages, middle_of
from mmrl_shapeworld.worlds.zoom_pages import FRAME, LARGE, PAGE
from mmrl_shapeworld.worlds.zoom_splits import MORE, MORE_PAGES, NAMES, SIZES, careless, expert, pages, small_box

READER = MediaReader(MediaBudget(ImageBudget(0, PIXELS**2)))
SAMPLE, FIRST = samples("zoom-validation")[0], pages("zoom-validation")[0]


def outcome(actions, sample=SAMPLE, **arguments):
    episode = ZoomPages(**arguments).begin(sample, READER)
    for action in actions:
        if episode.step(action).observation is None:
            break
    return episode.outcome()


def test_a_look_and_an_answer():
    episode = ZoomPages().begin(SAMPLE, READER)
    look, answer = expert(FIRST)
    step = episode.step(look)
    assert step.observation.images[0].size == (PIXELS, PIXELS) and step.info == {"looked": 1.0, "hit": 1.0}
    assert step.rewards == {"located": 1.0}
    assert episode.step(answer).observation is None
    assert episode.outcome() == {
        **{"answer": answer, "success": True, "looked": True, "hit": True, "calls": {"crop": 1}},
        **{"missed": False, "ended": "answer", "credit": 1.0, "seconds": 2.0},
    }
    with pytest.raises(ValueError, match="over"):
        episode.step("A")


def test_the_look_is_cut_from_the_page_at_its_full_size():
    x1, y1, x2, y2 = middle_of(FIRST.boxes[0], (PAGE, PAGE))
    expected = FIRST.picture().crop((x1, y1, x2, y2)).resize((PIXELS, PIXELS), Image.Resampling.BICUBIC)
    episode = ZoomPages(space="norm_1").begin(SAMPLE, READER)
    seen = episode.step(box_answer([round(each / PAGE, 6) for each in FIRST.boxes[0]])).observation.images[0]
    assert np.array_equal(np.asarray(seen), np.asarray(expected))


def test_an_answer_without_a_look():
    assert outcome([FIRST.letters[0]])["success"] and not outcome([FIRST.letters[0]])["looked"]
    direct = outcome(["Z"])
    assert not direct["success"] and not direct["missed"] and direct["calls"] == {"crop": 0}
    assert outcome([None])["ended"] == "cut_off" and outcome([None])["answer"] is None


def test_a_look_at_another_square_or_at_the_whole_page_is_no_hit():
    assert outcome([box_answer(small_box(FIRST, 1))])["hit"] is False
    assert outcome([box_answer((0, 0, PIXELS, PIXELS))])["hit"] is False
    assert outcome([box_answer((0, 0, PIXELS, PIXELS))])["missed"] is True


def test_a_box_in_the_second_turn_is_an_answer():
    look = box_answer(small_box(FIRST, 0))
    found = outcome([look, look])
    assert (found["answer"], found["success"], found["hit"], found["ended"]) == (look, False, True, "answer")


def test_a_template_asks_for_a_box_and_may_require_one():
    look, answer = expert(FIRST)
    assert ZoomPages().instructions == "" != ZoomPages(template="offer").instructions
    required = {"template": "require"}
    assert outcome([look, answer], **required)["success"]
    assert (outcome([answer], **required)["ended"], outcome([answer], **required)["success"]) == ("no_box", False)
    assert outcome([answer], template="offer")["success"]
    with pytest.raises(ConfigError, match="template is 'demand'"):
        ZoomPages(template="demand")


def test_an_outcome_says_what_an_episode_takes_and_how_far_it_came():
    look, answer = expert(FIRST)
    costs = {"look_seconds": 8.0, "answer_seconds": 2.0, "answer_credit": 0.25}

    def costed(*actions, **further):
        found = outcome(list(actions), **costs, **further)
        return found["seconds"], found["credit"]

    assert costed(look, answer) == (10.0, 1.0)
    assert costed("Z") == (2.0, 0.25)
    assert costed(None) == (2.0, 0.0)
    assert costed("Z", template="require") == (2.0, 0.0)
    with pytest.raises(ConfigError, match="look_seconds is 0"):
        ZoomPages(look_seconds=0)


@pytest.mark.integration
def test_every_second_page_of_a_mixed_split_has_large_letters():
    found = pages("zoom-mixed-validation")
    assert [page.scale for page in found[:4]] == [1, LARGE, 1, LARGE]
    assert not {page.boxes for page in found} & {page.boxes for page in pages("zoom-mixed-train")}
    sources = [sample.source for sample in samples("zoom-mixed-validation")]
    assert sources.count("zoom-large") == sources.count("zoom") == len(found) / 2
    for page in found[1:64:2]:
        for (left, top, right, bottom), (x1, y1, x2, y2) in zip(page.letter_boxes, page.boxes, strict=True):
            assert x1 + FRAME < left < right < x2 - FRAME and y1 + FRAME < top < bottom < y2 - FRAME


@given(x=st.integers(0, 223), y=st.integers(0, 223), width=st.integers(1, 224), height=st.integers(1, 224))
def test_the_cut_is_a_square_inside_the_page(x, y, width, height):
    left, top, right, bottom = middle_of((x, y, min(x + width, PAGE), min(y + height, PAGE)), (PAGE, PAGE))
    assert right - left == bottom - top >= SMALLEST_CUT and min(left, top) >= 0 and max(right, bottom) <= PAGE


@given(text=st.text(max_size=60))
def test_any_text_ends_or_looks(text):
    episode = ZoomPages().begin(SAMPLE, READER)
    if episode.step(text).observation is not None:
        assert episode.step(text).observation is None


def test_experts_see_the_letter_and_careless_annotators_often():
    rng = np.random.default_rng(0)
    chosen = list(zip(samples("zoom-validation"), pages("zoom-validation"), strict=True))[:256]
    best = [outcome(expert(page), sample) for sample, page in chosen]
    assert all(each["success"] and each["hit"] for each in best)
    found = [outcome(careless(page, rng), sample) for sample, page in chosen]
    assert 0.6 < np.mean([each["hit"] for each in found]) < 0.9
    assert 0.6 < np.mean([each["success"] for each in found]) < 0.9


@pytest.mark.slow
def test_splits():
    seen = {}
    for name in (*NAMES[:-3], MORE):
        part = name.rpartition("-")[2]
        assert len(samples(name)) == SIZES.get(part, MORE_PAGES)
        for sample, page in zip(samples(name), pages(name), strict=True):
            assert seen.setdefault(page, name) == name
            assert sample.answer == page.letters[0] and page.colours[0] in sample.prompt
            assert (page.colours[0] in UNSEEN_COLOURS) == (part == "ood")
            assert (sample.demonstration is not None) == (part == "train")
    picture = MediaReader(MediaBudget()).image(SAMPLE.images[0])
    assert np.array_equal(np.asarray(picture), np.asarray(FIRST.picture()))
    reads = samples("zoom-reads-train")
    assert len(reads) == SIZES["train"] and all(sample.demonstration == sample.answer for sample in reads)


@pytest.mark.integration
def test_the_annotator_who_has_a_habit_looks_above_where_the_wanted_square_is_below():
    looks = {"above": [], "below": []}
    for sample, page in zip(samples("zoom-habits-train"), pages("zoom-train"), strict=True):
        found = outcome(sample.demonstration["turns"], sample, template="require")
        looks["below" if sum(page.boxes[0][1::2]) > PAGE else "above"].append(found["hit"])
    assert len(looks["above"]) + len(looks["below"]) == SIZES["train"]
    assert 0.45 < np.mean(looks["above"]) < 0.6 and 0.3 < np.mean(looks["below"]) < 0.45


def test_a_batch_of_experts_reads():
    batch = EpisodeBatch(ZoomPages(), samples("zoom-validation")[:16], READER)
    for turn in (0, 1):
        batch.step({row: expert(pages("zoom-validation")[row])[turn] for row in batch.live})
    assert batch.live == [] and all(each["success"] for each in batch.outcomes())


def test_samples_of_other_kinds_and_other_spaces_are_named():
    with pytest.raises(DataError, match="'other'"):
        ZoomPages().begin(Sample("other", answer="A"), READER)
    with pytest.raises(ConfigError, match="space"):
        ZoomPages(space="cm")
