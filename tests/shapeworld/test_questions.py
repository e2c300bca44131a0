"""The questions of ShapeWorld: each is answerable from its pixels, and the rewards accept the right answers."""

from __future__ import annotations

import io
import json
from collections import Counter

import av
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from mmrl.data.media.uris import uri_bytes
from mmrl.rewards import load
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import splits as all_splits
from mmrl_shapeworld.scenes import BACKGROUND, SHAPES, Scene, Thing, draw, pixel_boxes
from mmrl_shapeworld.vqa import question_splits
from mmrl_shapeworld.vqa.canvas import LINE, NUMBERS, PIXELS, blank, colours_of, gif_uri, paint, png_uri, scatter
from mmrl_shapeworld.vqa.glyphs import GLYPHS, HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.question_splits import REWARDS, as_sample
from mmrl_shapeworld.vqa.questions import FRAMES, MOVES, QUESTIONS, SCALE

TASKS = tuple(QUESTIONS)


@pytest.fixture(scope="module")
def question_sets():
    """60 questions of each task, of no split."""
    return {task: [ask(np.random.default_rng((7, n))) for n in range(60)] for task, ask in QUESTIONS.items()}


@pytest.fixture(scope="module")
def drawn():
    """All three splits as data."""
    return {split: all_splits.samples(split) for split in question_splits.SPLITS}


def score(task, question, text):
    """Return the score of a text by the reward of its task; None for a malformed text."""
    choice = REWARDS[task]
    sample = as_sample(task, question, "0")
    out = load(choice.name, **choice.args).score([reward_input(sample, text, 0, "0")])
    (status,) = out.status[choice.name]
    assert status in ("ok", "invalid"), out.failures
    return float(out.values[choice.name][0]) if status == "ok" else None


@pytest.mark.parametrize("task", TASKS)
def test_right_answers_score_one_and_others_less(question_sets, task):
    rights = [score(task, question, question.right) for question in question_sets[task]]
    assert rights == [1.0] * len(rights)
    pairs = zip(question_sets[task], question_sets[task][1:], strict=False)
    wrong = [score(task, question, other.right) or 0.0 for question, other in pairs if question.right != other.right]
    assert max(wrong) < 1 and np.mean(wrong) < 0.4
    assert score(task, question_sets[task][0], "I see nothing in here.") in (None, 0.0)


@pytest.mark.parametrize("task", TASKS)
def test_annotated_answers_are_well_formed_and_often_wrong(question_sets, task):
    """Careless, not hopeless: what the warm start learns leaves something to correct."""
    scores = [score(task, question, question.annotated) for question in question_sets[task]]
    assert None not in scores
    assert 0.4 < np.mean(scores) < 0.85


def test_biased_annotations_have_a_wrong_most_frequent_answer():
    """So that greedy decoding has room as well: who learns from annotators forgets to carry."""
    rng = np.random.default_rng(0)
    drawn = [QUESTIONS["math"](rng) for _ in range(4000)]
    answers = Counter(question.annotated for question in drawn if question.prompt == "What is 8 + 6?")
    assert answers.most_common(1)[0][0] == "4" and answers["14"] > 0.2 * answers.total()


def test_annotated_boxes_are_too_large(question_sets):
    areas = []
    for question in question_sets["grounding"]:
        x1, y1, x2, y2 = json.loads(question.annotated)[0]["bbox_2d"]
        left, top, right, bottom = question.answer
        assert 0 <= x1 < x2 <= PIXELS and 0 <= y1 < y2 <= PIXELS
        areas.append((x2 - x1) * (y2 - y1) / ((right - left) * (bottom - top)))
    assert 1.2 < np.median(areas) < 1.7


@pytest.mark.parametrize("task", [task for task in TASKS if task != "math"])
def test_boxes_hold_the_named_things(question_sets, task):
    """Each box is full to all four edges with one colour, and what lies outside of all boxes is bare."""
    for question in question_sets[task]:
        for picture, region in zip(question.frames, question.regions, strict=True):
            bare = picture.copy()
            for name, (x1, y1, x2, y2) in region:
                colour = NUMBERS.get(name.split()[0])
                inside = picture[y1:y2, x1:x2] == colour if colour else picture[y1:y2, x1:x2] > 0
                assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
                bare[y1:y2, x1:x2] = 0
            assert set(np.unique(bare)) <= {0, LINE}


def test_detection_answers_list_all_things_from_left_to_right(question_sets):
    for question in question_sets["detection"]:
        found = [(thing["label"], tuple(thing["box"])) for thing in question.answer]
        assert tuple(found) == question.regions[0]
        assert [box for _, box in found] == sorted(box for _, box in found)


def test_located_thing_has_a_unique_name(question_sets):
    for question in question_sets["grounding"]:
        name = question.prompt.removeprefix("Locate the ").removesuffix(".")
        assert [list(box) for region, box in question.regions[0] if region == name] == [question.answer]


def test_counting_answers_equal_the_drawn_things(question_sets):
    for question in question_sets["counting"]:
        word = question.prompt.split()[2].rstrip("s?")
        assert sum(word in name.split() for name, _ in question.regions[0]) == question.answer
        apart = ndimage.label(question.frames[0], structure=np.ones((3, 3)))[1]
        assert apart == len(question.regions[0])  # they can be told apart
    assert {question.answer for question in question_sets["counting"]} == {1, 2, 3, 4, 5}


def test_letters_are_legible_from_pixels(question_sets):
    """An independent reader: the letter whose dots agree at each place."""
    for question in question_sets["ocr"]:
        read = []
        for _, (x1, y1, x2, y2) in question.regions[0]:
            dots = question.frames[0][y1:y2:SCALE, x1:x2:SCALE] > 0
            read.append(max(LETTERS, key=lambda letter, dots=dots: (GLYPHS[letter] == dots).mean()))
        assert "".join(read) == question.answer


def test_letters_differ_from_each_other():
    assert len({GLYPHS[letter].tobytes() for letter in LETTERS}) == len(LETTERS) == 10
    assert written("AK", 2).shape == (2 * HEIGHT, 2 * (2 * WIDTH + 1))


def test_bar_heights_equal_their_values(question_sets):
    for question in question_sets["chart"]:
        heights = {name: int((question.frames[0] == number).any(1).sum()) for name, number in NUMBERS.items()}
        if question.prompt.startswith("How tall"):
            assert heights[question.prompt.split()[4]] == 5 * question.answer
        else:
            choose = max if "tallest" in question.prompt else min
            assert choose(heights, key=heights.get) == question.answer


def test_odd_thing_differs_from_equal_others(question_sets):
    for question in question_sets["puzzle"]:
        names = [name for name, _ in question.regions[0]]
        assert len(set(names)) == 2 and names.count(names["ABCD".index(question.answer)]) == 1
        (x1, y1, _, _), choices = question.regions[0]["ABCD".index(question.answer)][1], question.metadata["choices"]
        place = f"{'bottom' if y1 >= PIXELS // 2 else 'top'} {'right' if x1 >= PIXELS // 2 else 'left'}"
        assert choices["ABCD".index(question.answer)] == place


def test_named_thing_moves_in_the_stated_direction(question_sets):
    for question in question_sets["video-qa"]:
        name = question.prompt.removeprefix("Which way does the ").partition(" move?")[0]
        track = np.array([box for region in question.regions for each, box in region if each == name])
        way = MOVES[question.metadata["choices"]["ABCD".index(question.answer)]]
        assert len(track) == FRAMES
        assert (np.sign(np.diff(track, axis=0)) == np.array(way * 2)).all()


def test_sums_and_differences_are_right(question_sets):
    for question in question_sets["math"]:
        a, sign, b = question.prompt.removeprefix("What is ").rstrip("?").split()
        assert question.answer == (int(a) + int(b) if sign == "+" else int(a) - int(b)) >= 0
        assert question.frames == ()


def test_painted_things_equal_those_of_scenes():
    for shape in SHAPES:
        picture = blank()
        box = paint(picture, ("blue", shape), left=7, top=20, side=15)
        scene = Scene((Thing("blue", shape, (7 + 7.5) / PIXELS, (20 + 7.5) / PIXELS, 15 / PIXELS),))
        assert np.array_equal(colours_of(picture), np.asarray(draw(scene, PIXELS)))
        assert box == tuple(pixel_boxes(scene, PIXELS)[0])


def test_scattered_squares_do_not_touch():
    rng = np.random.default_rng(1)
    for _ in range(50):
        sides = rng.integers(8, 14, 6).tolist()
        taken = np.zeros((PIXELS, PIXELS), int)
        for (left, top), side in zip(scatter(sides, rng), sides, strict=True):
            taken[top - 1 : top + side + 1, left - 1 : left + side + 1] += 1
        assert taken.max() == 1


def test_images_round_trip_through_uris(question_sets):
    for task in ("chart", "ocr", "detection"):
        (picture,) = question_sets[task][0].frames
        with Image.open(io.BytesIO(uri_bytes(png_uri(picture)))) as opened:
            assert opened.format == "PNG"
            assert np.array_equal(np.asarray(opened.convert("RGB")), colours_of(picture))
    assert tuple(colours_of(blank())[0, 0]) == BACKGROUND


def test_clips_are_decoded_by_pillow_and_pyav(question_sets):
    """Frame by frame, at two a second: neither library may join or drop any."""
    for question in question_sets["video-qa"][:20]:
        content = uri_bytes(gif_uri(question.frames))
        with Image.open(io.BytesIO(content)) as clip:
            assert clip.n_frames == FRAMES
            for number, frame in enumerate(question.frames):
                clip.seek(number)
                assert np.array_equal(np.asarray(clip.convert("RGB")), colours_of(frame))
        with av.open(io.BytesIO(content)) as container:
            decoded = list(container.decode(video=0))
        assert [frame.time for frame in decoded] == [0.0, 0.5, 1.0, 1.5]
        for frame, expected in zip(decoded, question.frames, strict=True):
            assert np.array_equal(frame.to_ndarray(format="rgb24"), colours_of(expected))


def test_a_split_of_some_tasks_has_their_questions_alone():
    whole = all_splits.samples("vlm-development")
    assert all_splits.samples("vlm-detection-development") == [each for each in whole if each.task == "detection"]
    assert all_splits.samples("vlm-video-qa+math-development") == [
        each for each in whole if each.task in ("video-qa", "math")
    ]
    new = all_splits.samples("vlm-new-development")
    assert all_splits.samples("vlm-new-temporal-grounding+gui-development") == [
        each for each in new if each.task in ("temporal-grounding", "gui")
    ]
    for name in (
        "vlm-new-detection-train",
        "vlm-new-gui+gui-train",
        "vlm-detection-test",
        "vlm-detection+detection-train",
        "vlm-gui-train",
        "vlm--train",
        "detection-train",
    ):
        with pytest.raises(KeyError, match="no split"):
            all_splits.samples(name)


@pytest.mark.integration
def test_splits_have_the_stated_sizes_and_alternate_tasks(drawn):
    sizes = {"vlm-train": 600, "vlm-development": 256, "vlm-validation": 512}
    for split, rows in drawn.items():
        assert Counter(sample.task for sample in rows) == dict.fromkeys(TASKS, sizes[split])
        assert [sample.source for sample in rows[:16]] == list(TASKS) * 2
        assert all(len(sample.rewards) == 1 for sample in rows)
    assert len({sample.id for rows in drawn.values() for sample in rows}) == 8 * sum(sizes.values())
    with pytest.raises(KeyError, match=r"did you mean .*vlm-train"):
        all_splits.samples("vlm-test")


@pytest.mark.integration
def test_splits_are_deterministic(drawn):
    """The first rows, drawn again and not from the cache."""
    for split, (seed, _) in question_splits.SPLITS.items():
        for number, (task, ask) in enumerate(QUESTIONS.items()):
            rng = np.random.default_rng((seed, number))
            for row in range(5):
                again = as_sample(task, ask(rng), f"{split}-{row:04d}-{task}", demonstrated=split == "vlm-train")
                assert drawn[split][8 * row + number] == again


@pytest.mark.integration
def test_splits_share_no_image(drawn):
    seen: dict[tuple[str, ...], str] = {}
    for split, rows in drawn.items():
        for media in (sample.images + sample.videos for sample in rows if sample.task != "math"):
            assert len(media) == 1 and seen.setdefault(media, split) == split


@pytest.mark.integration
def test_only_training_splits_have_right_answers(drawn):
    for split, rows in drawn.items():
        assert {sample.demonstration is not None for sample in rows} == {split == "vlm-train"}
