"""The worlds of questions: read off their pixels again, scored by their rewards, and split without overlap."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from mmrl.build.schemes import provided_samples
from mmrl.errors import ConfigError
from mmrl.rewards import RewardInput
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.parsing.actions import canonical_action, parse_action
from mmrl_shapeworld.vqa.canvas import INK, LINE, PIXELS, blank, palette_of
from mmrl_shapeworld.vqa.glyphs import GLYPHS
from mmrl_shapeworld.worlds import crowds, documents, fact_graphs, picture_captions, screens, spurious_clips
from mmrl_shapeworld.worlds.caption_facts import FactCheck
from mmrl_shapeworld.worlds.reworded_captions import COUNT, reworded_captions
from mmrl_shapeworld.worlds.table_renderer import difference, draw_chart, draw_table, render_answer
from mmrl_shapeworld.worlds.world_canvas import COLOUR_NUMBERS, UNSEEN_COLOURS, UNSEEN_SHAPES, stencil
from mmrl_shapeworld.worlds.world_splits import (
    FIRST,
    SIZES,
    WORLDS,
    checksum,
    measure_of,
    parts_of,
    samples,
    world_questions,
    world_sample,
)

LARGE = ("crowd", "clip", "refer", "nested-table", "screen", "letters", "chart-data")
FORMS = [(name, form) for name, world in WORLDS.items() for form in (None, *world.unseen)]


def drawn(name, form=None, count=60, seed=7):
    """Questions of no split."""
    draw = WORLDS[name].unseen[form] if form else WORLDS[name].draw
    rng = np.random.default_rng(seed)
    return [draw(rng) for _ in range(count)]


def score(name, questions, texts):
    """Return the scores of texts by the world's measure; NaN where it cannot be read."""
    items = [
        reward_input(world_sample(name, question, str(n)), text, n, str(n))
        for n, (question, text) in enumerate(zip(questions, texts, strict=True))
    ]
    reward = measure_of(name)
    out = reward.score(items)
    status = out.status[reward.name]
    assert set(status) <= {"ok", "invalid"}, out.failures
    return np.where([each == "ok" for each in status], np.asarray(out.values[reward.name]), np.nan)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_right_answers_score_one_and_answers_to_other_questions_less(name, form):
    questions = drawn(name, form)
    rights = [question.right for question in questions]
    assert (score(name, questions, rights) == 1).all()
    others = [*rights[1:], rights[0]]
    differ = [a != b for a, b in zip(rights, others, strict=True)]
    assert np.nan_to_num(score(name, questions, others))[differ].mean() < 0.62


@pytest.mark.parametrize("name", WORLDS)
def test_annotated_answers_are_well_formed_and_often_wrong(name):
    questions = drawn(name, count=150)
    annotated = score(name, questions, [question.annotated for question in questions])
    assert np.isfinite(annotated).all() and 0.5 < annotated.mean() < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in WORLDS])
def test_splits_have_their_sizes_and_share_no_question(name):
    seen: set[tuple[str, bytes]] = set()
    for part, size in SIZES.items():
        questions = [question for _, question in world_questions(name, part)]
        assert len(questions) == size
        seen |= {(q.prompt, b"".join(frame.tobytes() for frame in q.frames)) for q in questions}
    assert len(seen) == sum(SIZES.values())


@pytest.mark.integration
def test_splits_are_deterministic():
    """Drawn anew and not from the cache."""
    for name, part in (("refer", "ood"), ("graph", "development")):
        again = world_questions.__wrapped__(name, part)
        assert [checksum(q) for _, q in again] == [checksum(q) for _, q in world_questions(name, part)]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "crowd")) for name in WORLDS])
def test_only_unseen_forms_have_what_training_lacks(name):
    more = {COLOUR_NUMBERS[colour] for colour in UNSEEN_COLOURS}
    for question in (question for _, question in world_questions(name, "train")[:300]):
        assert not more & set(np.unique(np.stack(question.frames)).tolist())
        assert not set(UNSEEN_COLOURS + UNSEEN_SHAPES) & set(re.findall(r"\w+", f"{question.prompt} {question.right}"))
    for part in ("ood", "unseen"):
        sources = {source for source, _ in world_questions(name, part)}
        assert sources == {f"{name}-{form}" for form in WORLDS[name].unseen}
    for question in drawn(name, "colour") if "colour" in WORLDS[name].unseen else ():
        assert more & set(np.unique(question.frames[0]).tolist())


@pytest.mark.integration
def test_splits_are_datasets_alone_and_mixed():
    rows = provided_samples("shapeworld:crowd+caption-development")
    assert [row.source for row in rows[:4]] == ["crowd", "caption"] * 2 and len(rows) == 2 * SIZES["development"]
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.demonstration is None and len(row.rewards) == 1 for row in rows)
    assert all(row.demonstration for row in provided_samples("shapeworld:screen-train"))
    first, train = (provided_samples(f"shapeworld:refer-{part}") for part in ("first", "train"))
    assert [(row.prompt, row.images, row.demonstration) for row in first] == [
        (row.prompt, row.images, row.demonstration) for row in train[:FIRST]
    ]
    assert parts_of("worlds-train") == (tuple(WORLDS), "train")
    assert parts_of("crowd+crowd-train") is parts_of("crowd-test") is parts_of("train") is None
    with pytest.raises(ConfigError, match="did you mean crowd-train"):
        provided_samples("shapeworld:crowds-train")
    with pytest.raises(KeyError, match="no world's split"):
        samples("crowd-test")


def test_hard_screens_are_few_training_questions_of_all_kinds():
    few, training = provided_samples("shapeworld:screen-few"), provided_samples("shapeworld:screen-train")
    assert len({row.id for row in few}) == len(few) == 136 and all(row in training for row in few)
    assert {row.answer["action"] for row in few} == {"click", "scroll", "type"}
    assert {row.metadata["skin"] for row in few} == set(screens.SEEN_SKINS)


def test_native_screens_have_the_words_of_each_skin():
    native, training = provided_samples("shapeworld:screen-native-train"), provided_samples("shapeworld:screen-train")
    for row, other in zip(native, training, strict=True):
        skin = screens.SKINS[row.metadata["skin"]]
        assert row.demonstration.split("(")[0] in (skin.click, skin.type, "scroll")
        action = parse_action(row.demonstration)
        assert action.name == row.answer["action"]
        assert replace(action, name=other.answer["action"]) == parse_action(other.demonstration)
        assert canonical_action(row.answer["action"]) == other.answer["action"]
        assert replace(row, demonstration=other.demonstration, answer=other.answer) == other
    unseen, common = provided_samples("shapeworld:screen-native-ood"), provided_samples("shapeworld:screen-ood")
    assert {row.answer["action"] for row in unseen if row.source == "screen-sky"} == {"tap", "input_text", "scroll"}
    assert all(replace(row, answer=other.answer) == other for row, other in zip(unseen, common, strict=True))


def test_images_of_usual_colours_have_a_palette_of_seven():
    picture = blank()
    assert len(palette_of([picture])) == 7
    picture[0, 0] = COLOUR_NUMBERS["purple"]
    assert len(palette_of([blank(), picture])) == COLOUR_NUMBERS["purple"] + 1


@pytest.mark.parametrize("form", [None, "colour", "layout"])
def test_colour_boxes_enclose_their_pixels_tightly(form):
    for question in drawn("crowd", form, 100):
        colour = question.prompt.split()[2]
        if colour not in COLOUR_NUMBERS:
            continue
        pixels = question.frames[0] == COLOUR_NUMBERS[colour]
        covered = np.zeros_like(pixels)
        for x1, y1, x2, y2 in (each["box"] for each in question.answer):
            inside = pixels[y1:y2, x1:x2]
            assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
            covered[y1:y2, x1:x2] = True
        assert not (pixels & ~covered).any()


def test_crowds_have_many_small_boxes():
    questions = drawn("crowd", count=200)
    sizes = [len(question.regions[0]) for question in questions]
    assert min(sizes) == crowds.FEWEST and max(sizes) == crowds.MOST
    assert 2 < np.mean([len(question.answer) for question in questions]) < 4
    sides = [x2 - x1 for question in questions for _, (x1, _, x2, _) in question.regions[0]]
    assert max(sides) < crowds.SIDES[1] <= PIXELS / 4
    hidden = [ndimage.label(q.frames[0] > 0)[1] < len(q.regions[0]) for q in questions]
    assert np.mean(hidden) > 0.7  # things touch or cover each other


def test_sides_are_named_for_equal_things_only():
    for question in drawn("refer", count=200):
        words = question.prompt.rstrip(".").split()[2:]
        boxes = [box for name, box in question.regions[0] if name == " ".join(words[-2:])]
        assert len(boxes) == len(words) - 1
        if len(boxes) == 2:
            axis, first = {"left": (0, True), "right": (0, False), "top": (1, True), "bottom": (1, False)}[words[0]]
            chosen = (min if first else max)(boxes, key=lambda box: box[axis])
            assert list(chosen) == question.answer


@pytest.mark.parametrize("form", [None, *WORLDS["screen"].unseen])
def test_right_action_is_the_one_the_screen_allows(form):
    kinds = set()
    for question in drawn("screen", form, 200):
        answer, skin = question.answer, screens.SKINS[question.metadata["skin"]]
        kinds.add(answer["action"])
        assert (question.metadata["skin"] in screens.UNSEEN_SKINS) == (form is not None)
        assert parse_action(question.metadata["native"]).kind == answer["action"]
        icons = {name for name, _ in question.regions[0]}
        if question.prompt.startswith("Open"):
            wanted = " ".join(question.prompt.rstrip(".").split()[2:])
            assert (answer["action"] == "click") == (wanted in icons)
            column = question.frames[0][:, -1] == (LINE if skin.background == INK else INK)
            if answer["action"] == "scroll":
                assert answer["text"] == ("down" if np.flatnonzero(column).mean() < PIXELS / 2 else "up")
            else:
                (x1, y1, x2, y2), (a, b, c, d) = dict(question.regions[0])[wanted], answer["box"]
                assert a < x1 < x2 < c and b < y1 < y2 < d
        else:
            assert answer["action"] in ("type", "click") and not icons
    assert kinds == {"click", "scroll", "type"}


def facts(text, truth):
    things = [dict(zip(("size", "colour", "shape", "place"), each, strict=True)) for each in truth]
    out = FactCheck().score([RewardInput("0", 0, "", text=text, references={"facts": things})])
    if out.status["shapeworld_facts"][0] != "ok":
        return out.status["shapeworld_facts"][0]
    return tuple(round(float(out.values[f"shapeworld_facts{part}"][0]), 3) for part in ("_precision", "_recall"))


RED, BLUE = ("small", "red", "circle", "top left"), ("large", "blue", "square", "bottom right")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a small red circle top left and a large blue square bottom right", (1, 1)),
        ("bottom right a large blue square; a red circle top left, small.", (1, 1)),
        ("a small red circle top left", (1, 0.5)),
        ("upper left a tiny red disc and a big blue box lower right", (1, 1)),
        ("a red circle", (1, 0.25)),
        ("a small red circle top left and a large green square bottom right", (0.875, 0.875)),
        ("a large red circle bottom right and a small blue square top left", (0.5, 0.5)),  # attributes exchanged
        ("a small red circle top left and a small red circle top left and a large blue square", (7 / 11, 7 / 8)),
        ("a small red blue circle top left", (0, 0)),  # a clause that contradicts itself
        ("small red circle square top left bottom right large blue", (0, 0)),
        ("red and blue and circle and square", (0.5, 0.25)),
        ("there is nothing", "invalid"),
        (" and ".join(["a red circle"] * 33), "invalid"),
    ],
)
def test_facts_are_checked_thing_by_thing(text, expected):
    found = facts(text, (RED, BLUE))
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected, abs=1e-3))


def test_a_reference_without_facts_is_a_failure_of_the_data():
    out = FactCheck().score([RewardInput("0", 0, "", text="a red circle", references={"facts": []})])
    assert out.status["shapeworld_facts"] == ["error"]


def test_true_captions_differ_in_words_and_not_in_facts():
    rng = np.random.default_rng(3)
    things = [dict(zip(("size", "colour", "shape", "place"), each, strict=True)) for each in (RED, BLUE)]
    texts = {picture_captions.worded(things, rng) for _ in range(60)}
    assert len(texts) > 10 and {facts(text, (RED, BLUE)) for text in texts} == {(1, 1)}


def test_the_renderer_draws_what_an_answer_describes():
    for question in drawn("nested-table") + drawn("nested-table", "layout"):
        picture = render_answer(question.right)
        assert picture.any() and difference(picture, render_answer(question.right)) == 0
        if question.annotated != question.right:
            assert difference(picture, render_answer(question.annotated)) > 0
    data = [("red", 3), ("blue", 9)]
    assert np.array_equal(render_answer(documents.deplot(data)), draw_chart(data)[0])
    assert (draw_chart(data)[0] == COLOUR_NUMBERS["blue"]).sum() == 9 * 9 * 5
    near, far = (render_answer(documents.deplot([("red", 3), ("blue", n)])) for n in (8, 2))
    assert 0 < difference(near, draw_chart(data)[0]) < difference(far, draw_chart(data)[0])


@pytest.mark.parametrize("part", ["development", "ood"])
def test_codes_of_two_kinds_of_authors_look_the_same(part):
    plain, authored = samples(f"nested-table-{part}"), samples(f"nested-table-authored-{part}")
    changed = [one.answer != other.answer for one, other in zip(plain, authored, strict=True)]
    assert 0.55 < sum(changed) / len(changed) < 0.78
    for one, other in zip(plain, authored, strict=True):
        assert one.images == other.images and one.prompt == other.prompt
        assert np.array_equal(render_answer(one.answer), render_answer(other.answer))


def test_a_cell_that_spans_is_drawn_once_in_the_middle():
    picture, regions = draw_table([[("K", 2, 1)], [("A", 1, 1), ("T", 1, 1)]])
    (name, (x1, y1, x2, y2)), *_ = regions
    assert name == "K" and abs((x1 + x2) / 2 - PIXELS / 2) <= 1
    assert np.array_equal((picture[y1:y2, x1:x2] == INK)[::3, ::3], GLYPHS["K"])


@pytest.mark.parametrize(
    "text",
    [
        "no table",
        "bar | height <0x0A> red | 12",
        "bar | height <0x0A> red | many",
        r"\begin{tabular}{c}AB\end{tabular}",
        r"\begin{tabular}{cccc}A&A&A&A\end{tabular}",
    ],
)
def test_undrawable_answers_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        render_answer(text)


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_following_the_facts_leads_to_the_answer(hops):
    rng = np.random.default_rng(hops)
    for _ in range(30):
        question = fact_graphs.hops(hops)(rng)
        stated, wanted = question.prompt.rstrip("?").split(". ")
        after = dict(pair.split() for pair in stated.split(", "))
        colour, steps = wanted.split(" + ")
        assert int(steps) == hops - 1
        for _ in range(hops - 1):
            colour = after[colour]
        (x1, y1, x2, y2) = dict(question.regions[0])[question.answer]
        assert question.frames[0][y1 - 1, x1 - 1] == COLOUR_NUMBERS[colour] == question.frames[0][y2, x2]


def test_the_cue_agrees_as_often_as_stated():
    for agrees, expected in ((0.9, 0.9), (0.0, 0.0), (1.0, 1.0)):
        rng = np.random.default_rng(1)
        clips = [spurious_clips.cued_clip(agrees)(rng) for _ in range(200)]
        edges = [_edge(clip.frames[0]) == clip.metadata["choices"]["ABCD".index(clip.answer)] for clip in clips]
        assert edges == [clip.metadata["cue"] for clip in clips]
        assert abs(np.mean(edges) - expected) < 0.06


def _edge(frame):
    ink = frame == INK
    sides = {"left": ink[:, :3], "right": ink[:, -3:], "up": ink[:3], "down": ink[-3:]}
    return next(name for name, strip in sides.items() if strip.all())


def test_unseen_shapes_have_their_form_and_others_are_refused():
    assert stencil("diamond", 9)[4].all() and stencil("diamond", 9)[0].sum() == 1
    assert stencil("cross", 9)[4].all() and stencil("cross", 9)[0].sum() == 3
    with pytest.raises(ValueError, match="diamond, cross"):
        stencil("star", 9)


def test_reworded_captions_share_facts_and_few_words_with_their_reference():
    answers = reworded_captions(seed=900)
    assert answers.ids == reworded_captions(900).ids and len(answers.ids) == COUNT
    assert 0.2 < answers.truth.mean() < 0.7 and answers.truth.min() < 0.2 and answers.truth.max() == 1
    assert reworded_captions(901).inputs[0].text != answers.inputs[0].text
    for item, truth in zip(answers.inputs, answers.truth, strict=True):
        values = FactCheck().score_one(item)
        assert values["shapeworld_facts"] == pytest.approx(truth)
        assert FactCheck().score_one(replace(item, text=item.references["answer"]))["shapeworld_facts"] == 1
        assert item.text != item.references["answer"] and not {"small", "large", "circle"} & set(item.text.split())
