"""Pages with badges: the search for look-alikes, the record that is found, and its letter."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmrl.data.media.budget import ImageBudget, MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.splits import samples
from mmrl_shapeworld.vqa.canvas import PALETTE, PIXELS
from mmrl_shapeworld.vqa.questions import box_answer
from mmrl_shapeworld.worlds.badge_pages import (
    BADGES,
    NAMES,
    SIZES,
    badge_pages,
    badge_picture,
    patterns,
    record_picture,
)
from mmrl_shapeworld.worlds.badge_search import BadgeSearch, badge_index, pixel_vectors
from mmrl_shapeworld.worlds.zoom_pages import PAGE

READER = MediaReader(MediaBudget(ImageBudget(0, PIXELS**2)))
PAGES, SAMPLES = badge_pages("badges-validation"), samples("badges-validation")


def box_of(page, number=0):
    return box_answer(tuple(edge // 4 for edge in page.boxes[number]))


def outcome(actions, number=0, **arguments):
    episode = BadgeSearch(**arguments).begin(SAMPLES[number], READER)
    for action in actions:
        if episode.step(action).observation is None:
            break
    return episode.outcome()


def test_the_box_of_the_badge_finds_its_record_and_the_letter_is_the_answer():
    episode = BadgeSearch().begin(SAMPLES[0], READER)
    step = episode.step(box_of(PAGES[0]))
    assert step.info == {"hit": 1.0} and step.rewards == {}
    expected = record_picture(PAGES[0].badges[0][0], SAMPLES[0].answer)
    assert np.array_equal(np.asarray(step.observation.images[0]), np.asarray(expected))
    assert episode.step(SAMPLES[0].answer).observation is None
    found = episode.outcome()
    assert found == {"answer": SAMPLES[0].answer, "success": True, "hit": True, "searched": True, "ended": "answer"}
    with pytest.raises(ValueError, match="over"):
        episode.step("K")


def test_another_badge_is_no_hit():
    assert outcome([box_of(PAGES[0], 1), "K"])["hit"] is False
    assert outcome([box_of(PAGES[0], 1), "K"])["searched"] is True


@pytest.mark.parametrize(("action", "ended"), [("K", "no_box"), (None, "cut_off"), ("[1, 2]", "no_box")])
def test_a_first_turn_without_a_box_ends_the_episode(action, ended):
    assert outcome([action]) == {"answer": None, "success": False, "hit": False, "searched": False, "ended": ended}


def test_whole_pages_are_found_where_one_badge_fills_them_and_not_in_crowds():
    """The search itself is sound: what fails is a query with four badges."""
    hits = {"badges-single": [], "badges-crowded": []}
    for number, (page, sample) in enumerate(zip(PAGES[:64], SAMPLES[:64], strict=True)):
        hits[sample.source].append(outcome([box_of(page)], number, queries="whole")["hit"])
    assert len(hits["badges-single"]) == 16
    assert np.mean(hits["badges-single"]) > 0.9 > 0.1 > np.mean(hits["badges-crowded"])


def test_scales_make_up_for_loose_boxes():
    def hits(**arguments):
        loose = [
            tuple(max(0, min(PIXELS, e // 4 + (-3, -3, 3, 3)[n])) for n, e in enumerate(p.boxes[0])) for p in PAGES
        ]
        return np.mean([outcome([box_answer(loose[n])], n, **arguments)["hit"] for n in range(48)])

    assert hits() > hits(scales=[1.0]) + 0.3


@pytest.mark.integration
def test_demonstrated_boxes_find_most_badges_at_several_scales_and_fewer_at_one():
    train = samples("badges-train")[:96]

    def hits(environment):
        found = []
        for sample in train:
            episode = environment.begin(sample, READER)
            episode.step(sample.demonstration["turns"][0])
            found.append(episode.outcome()["hit"])
        return np.mean(found)

    assert hits(BadgeSearch()) > 0.6 > 0.5 > hits(BadgeSearch(scales=[1.0]))
    assert all(sample.demonstration is None for sample in SAMPLES)


def test_badges_differ_and_are_found_as_themselves_at_any_size():
    assert len(set(patterns())) == len(patterns())
    pictures = [Image.fromarray(PALETTE[badge_picture(badge, 61)]) for badge in BADGES]
    found = (pixel_vectors(pictures) @ badge_index().vectors.T).argmax(1)
    assert (found == np.arange(len(BADGES))).all()


def test_letters_are_those_of_the_page_and_every_letter_occurs():
    letters = [PAGES[0].letter(number) for number in range(len(BADGES))]
    assert letters[PAGES[0].wanted] == SAMPLES[0].answer and len(set(letters)) == 10
    assert letters != [PAGES[1].letter(number) for number in range(len(BADGES))]


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_their_sizes_and_share_no_page(name):
    pages = badge_pages(name)
    assert len(pages) == SIZES[name.rpartition("-")[2]]
    assert [len(page.badges) for page in pages[:8]] == [4, 4, 4, 1] * 2
    others = {(page.badges, page.boxes) for other in NAMES if other != name for page in badge_pages(other)}
    assert not others & {(page.badges, page.boxes) for page in pages}
    assert all(0 <= edge <= PAGE for page in pages for box in page.boxes for edge in box)


def test_wrong_arguments_and_samples_are_named():
    with pytest.raises(ConfigError, match="queries is 'parts'"):
        BadgeSearch(queries="parts")
    with pytest.raises(ConfigError, match="scales are \\[\\]"):
        BadgeSearch(scales=[])
    with pytest.raises(DataError, match="badges-train"):
        BadgeSearch().begin(Sample("x", prompt="Hello."), READER)
    with pytest.raises(KeyError, match="badges-train"):
        badge_pages("badges-ood")
