"""Pictures made to break a reward: each gets a score or a status, none that is not perfect scores perfect, and the
perfect one beside it always does."""

import io
import math
import tracemalloc

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file

from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.images.detector import Detection
from mmrl.rewards.images.geneval import GenEval
from mmrl_shapeworld.scenes import Scene, Thing, draw
from tests.rewards.images.shape_detector import PaletteColours, ShapeDetector
from tests.rewards.test_image_input import claiming, encoded

FEW = settings(max_examples=25, deadline=None)
SCENE = Scene((Thing("red", "circle", 0.3, 0.5, 0.3), Thing("blue", "square", 0.75, 0.5, 0.3)))
PERFECT = draw(SCENE, 48)
INCLUDE = [
    {"class": "circle", "count": 1, "color": "red"},
    {"class": "square", "count": 1, "color": "blue", "position": ["right of", 0]},
]
EXCLUDE = [{"class": "triangle", "count": 1}]
MODES = [
    "1",
    "L",
    "LA",
    "La",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "RGBa",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "I;16",
    "F",
]


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    """{name: (reward, what is perfect)}; the order of a batch never matters to them but to `diversity`."""
    torch.manual_seed(0)
    alex = torchvision.models.alexnet(weights=None).features.state_dict()
    file = str(tmp_path_factory.mktemp("alex") / "alexnet.safetensors")
    save_file({f"features.{key}": value for key, value in alex.items()}, file)
    return {
        "geneval": (GenEval(ShapeDetector(), PaletteColours()), 1.0),
        "ssim": (load("ssim", resize=True), 1.0),
        "ms_ssim": (load("ms_ssim", scales=2, resize=True), 1.0),
        "lpips": (load("lpips", network=file, resize=True, device="cpu"), 0.0),
        "artefacts": (load("artefacts"), 1.0),
        "compressibility": (load("compressibility"), None),
        "diversity": (load("diversity"), None),
    }


def ask(image, group=0):
    references = {"include": INCLUDE, "exclude": EXCLUDE, "image": PERFECT, "text": "HELLO"}
    return RewardInput(id="a", group=group, prompt="", image=image, references=references)


def opened(data):
    return Image.open(io.BytesIO(data))


def check(rewards, pictures):
    """Score hostile pictures with a perfect one in their middle."""
    middle = len(pictures) // 2
    batch = [ask(picture) for picture in [*pictures[:middle], PERFECT, *pictures[middle:]]]
    for name, (reward, perfect) in rewards.items():
        output = reward.score(batch)
        assert len(output.values[name]) == len(output.status[name]) == len(output.detail) == len(batch)
        low, high = reward.range
        for row, (value, status) in enumerate(zip(output.values[name].tolist(), output.status[name], strict=True)):
            if status in (Status.ERROR, Status.TIMEOUT):
                assert math.isnan(value) and output.failures[row][name].kind != "error", output.detail[row]
            elif status is Status.INVALID:
                assert value == reward.spec.worst and output.detail[row][name]
            else:
                assert low <= value <= high
            if perfect is None or row == middle or status is not Status.OK:
                continue
            if name in ("geneval", "ssim", "ms_ssim", "lpips"):
                assert value != perfect or same(batch[row].image)
        assert output.status[name][middle] is Status.OK or (name == "diversity" and not usable(output, name))
        if perfect is not None:
            assert output.values[name][middle] == perfect


def same(picture):
    """Return True if an image equals the perfect one after resizing."""
    resized = picture.convert("RGB").resize(PERFECT.size, Image.Resampling.BICUBIC)
    return picture.convert("RGB").tobytes() == PERFECT.tobytes() or resized.tobytes() == PERFECT.tobytes()


def usable(output, name):
    return [status for status in output.status[name] if status is Status.OK]


@st.composite
def made(draw_from):
    """Pictures of any mode and many sizes, of one colour or noise."""
    mode = draw_from(st.sampled_from(MODES))
    side = st.sampled_from([0, 1, 2, 3, 7, 10, 11, 16, 31, 48, 64, 200])
    size = draw_from(st.one_of(st.tuples(side, side), st.sampled_from([(1, 500), (500, 1), (3, 600), (2000, 10)])))
    picture = Image.new(mode, size)
    if mode in ("L", "RGB", "RGBA", "CMYK") and draw_from(st.booleans()):
        rng = np.random.default_rng(draw_from(st.integers(0, 99)))
        channels = len(picture.getbands())
        picture = Image.frombytes(mode, size, rng.bytes(size[0] * size[1] * channels))
    return picture


@pytest.mark.integration
@FEW
@given(st.lists(made(), min_size=1, max_size=3))
def test_images_of_any_mode_and_size(rewards, pictures):
    check(rewards, pictures)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:Truncated File Read")  # Pillow's own, of a TIFF whose directory is cut off
@FEW
@given(
    st.sampled_from(["PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"]), st.floats(0, 1), st.integers(0, 255), st.booleans()
)
def test_truncated_and_damaged_files(rewards, kind, place, value, cut):
    noise = Image.frombytes("RGB", (48, 48), np.random.default_rng(0).bytes(48 * 48 * 3))
    data = bytearray(encoded(noise, kind))
    at = int(place * (len(data) - 1))
    data = data[:at] if cut else data[:at] + bytes([value]) + data[at + 1 :]
    try:
        picture = opened(bytes(data))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Warning):
        return  # opening it raises, or warns, which raises in tests
    check(rewards, [picture])


def test_decompression_bombs_are_rejected_undecoded(rewards, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    real, claims = encoded(Image.new("1", (12_000, 12_000))), claiming(60_000, 56_000)
    assert max(len(real), len(claims)) < 40_000
    tracemalloc.start()
    check(rewards, [opened(real), opened(claims)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**27
    for name in ("geneval", "ssim", "lpips", "artefacts"):
        reward, _ = rewards[name]
        assert reward.score([ask(opened(real)), ask(opened(claims))]).status[name] == [Status.INVALID] * 2


def test_strips_and_animations_are_invalid(rewards):
    frames = [PERFECT, Image.new("RGB", (48, 48))]
    moving = [
        opened(encoded(PERFECT, kind, save_all=True, append_images=frames[1:])) for kind in ("GIF", "TIFF", "PNG")
    ]
    strips = [Image.new("RGB", size) for size in ((1, 10_000), (100_000, 3))]
    check(rewards, moving + strips)
    for name in ("geneval", "ssim", "ms_ssim", "lpips", "artefacts"):
        assert rewards[name][0].score([ask(p) for p in moving + strips]).status[name] == [Status.INVALID] * 5


@pytest.mark.parametrize("thing", ["a.png", b"\x89PNG", 3, np.zeros((4, 4, 3), np.uint8), [PERFECT], {"path": "x"}])
def test_values_that_are_no_image_are_errors(rewards, thing):
    for name, (reward, _) in rewards.items():
        output = reward.score([ask(thing), ask(PERFECT, group=1), ask(PERFECT, group=1)])
        assert output.status[name] == [Status.ERROR, Status.OK, Status.OK]
        assert output.failures[0][name].kind == "wrong_type"
    absent = rewards["ssim"][0].score([ask(None), ask(PERFECT)])
    assert [absent.status["ssim"], absent.failures[0]["ssim"].kind] == [[Status.ERROR, Status.OK], "missing"]


@pytest.mark.integration
@FEW
@given(st.integers(0, 47), st.integers(0, 47), st.integers(0, 2), st.sampled_from([1, 2, 128]))
def test_one_channel_of_one_pixel_makes_images_differ(rewards, row, column, channel, bit):
    array = np.array(PERFECT)
    array[row, column, channel] ^= bit
    for name in ("ssim", "ms_ssim", "lpips"):
        reward, perfect = rewards[name]
        near, same_one = reward.score([ask(Image.fromarray(array)), ask(PERFECT)]).values[name].tolist()
        assert same_one == perfect != near


def test_single_pixels_do_not_score_as_their_reference(rewards):
    mean = PERFECT.resize((1, 1), Image.Resampling.BOX)
    for name in ("ssim", "ms_ssim", "lpips"):
        reward, perfect = rewards[name]
        tiny, whole = reward.score([ask(mean), ask(PERFECT)]).values[name].tolist()
        assert whole == perfect
        assert abs(tiny - perfect) > 0.05


@FEW
@given(st.lists(st.sampled_from(range(6)), min_size=1, max_size=4, unique=True))
def test_scenes_differing_from_the_prompt_are_not_perfect(rewards, changes):
    """Each change alone makes the scene wrong, and no two undo one another."""
    circle, square = SCENE.things
    things = [circle, square]
    if 0 in changes:
        things[0] = Thing("green", "circle", circle.x, circle.y, 0.3)
    if 1 in changes:
        things[1] = Thing("yellow", "square", square.x, square.y, 0.3)
    if 2 in changes:
        things.append(Thing("red", "triangle", 0.3, 0.14, 0.22))
    if 3 in changes:
        things[1] = Thing(things[1].colour, "square", 0.3, 0.14, 0.22)
        things[:] = [thing for thing in things if thing.shape != "triangle"]
    if 4 in changes:
        things = [thing for thing in things if thing.shape != "square"]
    if 5 in changes:
        things = []
    wrong, right = rewards["geneval"][0].score([ask(draw(Scene(tuple(things)), 48)), ask(PERFECT)]).values["geneval"]
    assert (wrong, right) == (0, 1)


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@FEW
@given(
    st.lists(st.tuples(st.sampled_from(["circle", "square", "dog"]), numbers, st.tuples(*[numbers] * 4)), max_size=30)
)
def test_implausible_detections_never_break_geneval(detections):
    class Raving(ShapeDetector):
        def detect(self, image, classes):
            return [Detection(label, score, box) for label, score, box in detections]

    class Grey:
        def colours(self, image, found):
            return ["white"] * len(found)

    for overlap in (1.0, 0.5):
        output = GenEval(Raving(), Grey(), max_overlap=overlap).score([ask(PERFECT)])
        value, [status] = output.values["geneval"][0], output.status["geneval"]
        assert (status is Status.OK and value == 0) or status is Status.ERROR
        assert status is Status.OK or math.isnan(value)


def test_ten_thousand_detections_are_scored_in_time():
    class Many(ShapeDetector):
        def detect(self, image, classes):
            return [Detection("circle", 0.9, (i % 99.0, i % 77.0, i % 99.0 + 5, i % 77.0 + 5)) for i in range(10_000)]

    include = [{"class": "circle", "count": 16}, {"class": "square", "count": 1}]
    item = RewardInput("a", 0, "", image=PERFECT, references={"include": include})
    output = GenEval(Many(), None).score([item])
    assert output.values["geneval/graded"][0] == 0.5


@FEW
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["class", "count", "color", "position"]),
            st.one_of(
                st.none(), st.text(max_size=8), st.integers(-2, 10**9), st.floats(),
                st.lists(st.integers(-1, 3), max_size=3),
                st.sampled_from(["circle", "red", ["left of", 0], ["above", "0"], ["below", 7]]),
            ),
        ),
        max_size=4,
    )
)  # fmt: skip
def test_references_of_any_form(include):
    reward = GenEval(ShapeDetector(), PaletteColours())
    item = RewardInput("a", 0, "", image=PERFECT, references={"include": include, "exclude": include[:1]})
    output = reward.score([item, ask(PERFECT)])
    assert output.status["geneval"][0] in (Status.OK, Status.ERROR)
    if output.status["geneval"][0] is Status.ERROR:
        assert output.failures[0]["geneval"].kind == "reference"
    assert output.values["geneval"][1] == 1


@FEW
@given(st.one_of(st.none(), st.text(max_size=30), st.binary(max_size=9), st.integers(), st.just(".")))
def test_invalid_reference_images_are_scorer_failures(rewards, reference):
    for name in ("ssim", "ms_ssim", "lpips"):
        item = RewardInput("a", 0, "", image=PERFECT, references={"image": reference})
        output = rewards[name][0].score([item, ask(PERFECT)])
        assert output.status[name] == [Status.ERROR, Status.OK]
        assert output.failures[0][name].kind in ("missing", "wrong_type", "reference")
        assert output.values[name][1] == rewards[name][1]


@pytest.mark.integration
def test_illegible_texts_in_images():
    pytest.importorskip("rapidocr_onnxruntime", reason="the extra [ocr]")
    reward = load("rendered_text")
    perfect = Image.new("RGB", (160, 100), "white")
    ImageDraw.Draw(perfect).text((20, 30), "HELLO", "black", ImageFont.load_default(30))
    noise = Image.frombytes("RGB", (99, 70), np.random.default_rng(0).bytes(99 * 70 * 3))
    hostile = [Image.new("RGB", size, "red") for size in ((1, 1), (2, 300), (2000, 10), (7, 7))]
    hostile += [
        noise,
        noise.convert("CMYK"),
        Image.new("RGB", (0, 5)),
        Image.new("F", (9, 9)),
        Image.new("RGB", (1, 5000)),
    ]
    hostile += [
        opened(encoded(perfect)[:400]),
        opened(claiming(9000, 9000)),
        Image.eval(perfect, lambda v: v // 255 * 3),
    ]
    output = reward.score([ask(picture) for picture in [perfect, *hostile]])
    assert output.values["rendered_text"][0] == 1
    invalid = [Status.INVALID] * 3
    assert output.status["rendered_text"] == [*[Status.OK] * 7, *invalid, Status.ERROR, Status.INVALID, Status.OK]
    scored = output.values["rendered_text"][1:7].tolist()
    assert scored == [0] * 6
