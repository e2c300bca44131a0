"""The rule checker against the renderer, and against the tricks that a policy finds."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter

from mmrl_shapeworld.captions import KINDS, Caption, Clause, sample_caption, sample_scene
from mmrl_shapeworld.checker import judge, read
from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, Scene, Thing, draw

RED_CIRCLE = Caption((Clause(1, "red", "circle"),))


def picture_of(*things, pixels=32):
    return draw(Scene(tuple(things)), pixels)


LARGER = [pytest.param(64, 200, marks=pytest.mark.slow), pytest.param(128, 100, marks=pytest.mark.slow)]


@pytest.mark.integration
@pytest.mark.parametrize("pixels, count", [(32, 500), *LARGER])  # the size that is trained on, and larger
def test_rendered_scenes_are_strictly_correct_for_their_caption_only(pixels, count):
    rng = np.random.default_rng(pixels)
    right, wrong, wrongs = 0, 0, 0
    for _ in range(count):
        caption = sample_caption(rng, KINDS)
        scene = sample_scene(caption, rng)
        picture = draw(scene, pixels)
        right += judge(picture, caption).strict
        other = sample_caption(rng, KINDS)
        if not other.holds_for(scene):
            wrongs += 1
            wrong += judge(picture, other).strict
    assert right / count >= 0.99
    assert wrong / wrongs <= 0.01


def near_misses(caption, rng):
    """Captions that differ in one word."""
    first = caption.clauses[0]
    colour = rng.choice([c for c in COLOURS if c != first.colour])
    shape = rng.choice([s for s in ("circle", "square", "triangle") if s != first.shape])
    for changed in (
        Clause(first.count, str(colour), first.shape, first.size),
        Clause(first.count, first.colour, str(shape), first.size),
        Clause(first.count % 4 + 1, first.colour, first.shape, None),
    ):
        yield Caption((changed, *caption.clauses[1:]), caption.relation if changed.count == 1 else None)
    if caption.relation:
        opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
        yield Caption(caption.clauses, opposite[caption.relation])


@pytest.mark.integration
def test_captions_wrong_in_one_word_score_lower():
    rng = np.random.default_rng(5)
    wrong, wrongs = 0, 0
    for _ in range(200):
        caption = sample_caption(rng, KINDS)
        scene = sample_scene(caption, rng)
        picture = draw(scene, 32)
        full = judge(picture, caption).score
        for other in near_misses(caption, rng):
            if not other.holds_for(scene):
                verdict = judge(picture, other)
                wrongs += 1
                wrong += verdict.strict
                assert verdict.score < full
    assert wrong / wrongs <= 0.01


def test_detected_things_are_the_drawn_ones():
    reading = read(picture_of(Thing("red", "circle", 0.3, 0.3, 0.3), Thing("blue", "triangle", 0.7, 0.7, 0.4)))
    assert {(t.colour, t.shape) for t in reading.things} == {("red", "circle"), ("blue", "triangle")}
    assert reading.dirt == 0


def test_partial_credit_is_ordered():
    """Nothing < the right colour alone < the right thing and one too many < the right thing."""
    scores = [
        judge(picture, RED_CIRCLE).score
        for picture in (
            picture_of(),
            picture_of(Thing("red", "square", 0.5, 0.5, 0.4)),
            picture_of(Thing("red", "circle", 0.25, 0.25, 0.35), Thing("blue", "square", 0.7, 0.7, 0.35)),
            picture_of(Thing("red", "circle", 0.5, 0.5, 0.4)),
        )
    ]
    assert scores == sorted(scores) and len(set(scores)) == 4
    assert scores[0] == 0.0 and scores[-1] == 1.0


def tricks():
    """Ways of pleasing a lax checker; none is a red circle."""
    base = np.asarray(picture_of(Thing("red", "circle", 0.5, 0.5, 0.4)))
    two_tone = base.copy()
    two_tone[16:, :][(base[16:, :] == COLOURS["red"]).all(-1)] = COLOURS["blue"]
    yield "two-tone", two_tone
    slivers = base.copy()
    slivers[2:30:4, 2:4] = COLOURS["red"]
    yield "slivers below the size of a thing", slivers
    noise = np.random.default_rng(0).integers(0, 256, base.shape, dtype=np.uint8)
    yield "noise", noise
    smudge = base.copy()
    smudge[(base == COLOURS["red"]).all(-1)] = (150, 60, 140)
    yield "an off-palette smudge", smudge
    haloed = base.copy()
    haloed[1:8, 1:31] = (150, 150, 150)
    yield "a grey bar beside", haloed
    yield "all red", np.full_like(base, COLOURS["red"])
    yield "blank", np.full_like(base, BACKGROUND)


@pytest.mark.parametrize("name, pixels", list(tricks()))
def test_adversarial_images_are_not_strict_and_lose_score(name, pixels):
    verdict = judge(Image.fromarray(pixels), RED_CIRCLE)
    assert not verdict.strict
    assert verdict.score < 0.85


def test_stray_pixels_never_raise_the_score():
    base = np.asarray(picture_of(Thing("red", "circle", 0.5, 0.6, 0.4)))
    scores = []
    for columns in range(0, 30, 3):
        dirty = base.copy()
        dirty[1:6, 1 : 1 + columns] = (120, 120, 120)
        scores.append(judge(Image.fromarray(dirty), RED_CIRCLE).score)
    assert scores == sorted(scores, reverse=True) and scores[-1] < scores[0] - 0.3


def test_antialiased_edges_do_not_lower_the_score():
    """A decoder blurs edges a little; the ink stays on the palette inside."""
    soft = picture_of(Thing("red", "circle", 0.5, 0.5, 0.5), pixels=64).filter(ImageFilter.GaussianBlur(0.6))
    assert judge(soft, RED_CIRCLE).strict
