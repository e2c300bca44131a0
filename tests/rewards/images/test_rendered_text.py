"""Text that was drawn is read and scores high, other text low; edits are counted as rapidfuzz counts them."""

import random
import string
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from rapidfuzz.distance import Levenshtein

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.images.rendered_text import normalized_text, quoted_texts, target_text, text_similarity

pytest.importorskip("rapidocr_onnxruntime", reason="the extra [ocr]: no wheels for Python 3.13 and later")


@pytest.fixture(scope="module")
def reward():
    return load("rendered_text")


def drawn(text, size=(256, 128), points=30, colour="black", ground="white"):
    picture = Image.new("RGB", size, ground)
    ImageDraw.Draw(picture).multiline_text(
        (size[0] / 2, size[1] / 2), text, colour, ImageFont.load_default(points), anchor="mm", align="center"
    )
    return picture


def ask(image, text=None, prompt=""):
    return RewardInput(id="a", group=0, prompt=prompt, image=image, references={} if text is None else {"text": text})


def words(rng, number):
    return ["".join(rng.choices(string.ascii_uppercase, k=rng.randint(4, 9))) for _ in range(number)]


@pytest.mark.integration
def test_rendered_text_scores_high_and_other_text_low(reward):
    rng = random.Random(0)
    right, wrong = words(rng, 16), words(rng, 200)
    pictures = [drawn(text, size=(200, 120), points=28) for text in right]
    values = reward.score([ask(p, text) for p, text in zip(pictures, right, strict=True)]).values["rendered_text"]
    assert values.mean() > 0.97 and values.min() >= 0.7 and (values == 1).mean() > 0.8
    others = [text_similarity(text, other) for text in right for other in wrong]
    assert np.mean(others) < 0.2 and max(others) < 0.7
    assert reward.score([ask(pictures[0], wrong[0])]).values["rendered_text"] == pytest.approx(others[0], abs=0.2)


@pytest.mark.parametrize("text, settings", [
    ("Hello World", {}),
    ("OPEN\n24 HOURS", {}),
    ("grand opening", {"colour": "white", "ground": "navy"}),
    ("Sale 50%", {"size": (512, 512), "points": 60}),
    ("small print", {"size": (300, 300), "points": 14}),
    ("a long strip of text", {"size": (900, 40), "points": 24}),
    ("tower", {"size": (120, 900)}),
])  # fmt: skip
def test_images_of_every_mode_are_read(reward, text, settings):
    output = reward.score([ask(drawn(text, **settings), text)])
    assert output.values["rendered_text"] == [1], reward.read(drawn(text, **settings))


@pytest.mark.integration
def test_target_text_is_quoted_in_the_prompt(reward):
    picture = drawn("Hello")
    prompts = ['A sign that says "hello"', "Ein Schild „Hello“", "a sign that says “Bye”", "a sign without words"]
    output = reward.score([ask(picture, prompt=prompt) for prompt in prompts])
    assert output.values["rendered_text"][:2].tolist() == [1, 1]
    assert output.values["rendered_text"][2] < 0.5
    assert output.status["rendered_text"][3] is Status.ERROR
    assert output.failures[3]["rendered_text"].kind == "missing"


def test_images_without_text_score_0_with_status_ok(reward):
    noise = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    output = reward.score(
        [ask(image, "hello") for image in (Image.new("RGB", (64, 64), "red"), Image.fromarray(noise))]
    )
    assert output.status["rendered_text"] == [Status.OK] * 2
    assert output.values["rendered_text"].tolist() == [0, 0]


@pytest.mark.integration
def test_images_with_every_answer_are_not_perfect(reward):
    stuffed = drawn("HELLO\nWORLD\nOPEN", size=(256, 256))
    assert reward.score([ask(stuffed, "OPEN")]).values["rendered_text"] < 0.5
    assert reward.score([ask(drawn("OPEN"), "OPEN")]).values["rendered_text"] == [1]
    assert reward.score([ask(stuffed, "hello world open")]).values["rendered_text"] == [1]


def test_transparent_text_is_not_read(reward):
    hidden = drawn("HELLO").convert("RGBA")
    hidden.putalpha(0)
    assert reward.score([ask(hidden, "HELLO")]).values["rendered_text"] == [0]


@pytest.mark.slow
def test_concurrent_threads_read_equal_texts(reward):
    rng = random.Random(1)
    items = [ask(drawn(text, size=(180, 80), points=24), text) for text in words(rng, 5)]
    alone = reward.score(items).values["rendered_text"].tolist()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda item: float(reward.score([item]).values["rendered_text"][0]), items))
    assert together == alone


def test_text_similarity_equals_the_formula_of_the_paper():
    """max(0, 1 - edits / length of the target text)."""
    rng = random.Random(0)
    for _ in range(1000):
        expected = "".join(rng.choices("abCD 1!é", k=rng.randint(1, 12))) + "x"
        read = "".join(rng.choices("abCD 1!é", k=rng.randint(0, 12)))
        if rng.random() < 0.5:
            place = rng.randrange(len(expected))
            read = expected[:place] + rng.choice(["", "a", "zz"]) + expected[place + 1 :]
        plain = [text.replace(" ", "").casefold() for text in (expected, read)]
        distance = Levenshtein.distance(*plain)
        assert text_similarity(read, expected) == pytest.approx(max(0.0, 1 - distance / len(plain[0])))
        assert (text_similarity(read, expected) == 1) == (plain[0] == plain[1])


def test_long_texts_that_differ_in_one_letter_are_not_perfect():
    expected = "a" * 10_000
    assert np.float32(text_similarity(expected, expected)) == 1
    assert np.float32(text_similarity(expected[:-1] + "b", expected)) < 1


def test_comparison_folds_case_space_and_unicode_forms():
    assert normalized_text(" Stra\u00dfe\n\u00a0\uff21 ") == "strassea"
    assert quoted_texts('say "one" and "two", “three” and "open') == ["one", "two", "three"]
    assert quoted_texts('"" " " \'no\' it\'s') == []
    assert target_text(ask(None, None, 'two signs: "left" and "right"')) == "left right"
    assert target_text(ask(None, "given", '"quoted"')) == "given"


@pytest.mark.parametrize("text", ["", "  ", 3, ["a"], "a" * 10_001])
def test_missing_target_texts_are_scorer_failures(reward, text):
    output = reward.score([ask(Image.new("RGB", (32, 32)), text)])
    assert output.failures[0]["rendered_text"].kind == "reference"


def test_invalid_settings_are_rejected():
    for settings, says in (({"threads": 0}, "threads is 0"), ({"least_confidence": 2}, "least_confidence is 2")):
        with pytest.raises(RewardError, match=says):
            load("rendered_text", **settings)


@pytest.mark.integration
def test_higher_confidence_thresholds_drop_more_text():
    text = drawn("hello", size=(128, 64), points=12, colour=(235, 235, 235))
    unsure, sure = (load("rendered_text", least_confidence=least) for least in (0.0, 1.0))
    assert normalized_text(sure.read(drawn("HELLO"))) == "" or normalized_text(sure.read(text)) == ""
    assert normalized_text(unsure.read(drawn("HELLO"))) == "hello"
