"""Pictures are checked before they are decoded, and converted to RGB in one way from every mode."""

import io
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards.core.image_input import MAX_PIXELS, answer_image, reference_image
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed

RGB = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)


def encoded(picture, kind="PNG", **settings):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **settings)
    return buffer.getvalue()


def claiming(width, height):
    """A PNG whose header claims a size that its data has not."""

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    data = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_rgb_images_are_unchanged():
    picture = Image.fromarray(RGB)
    assert answer_image(picture) is picture


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB"])
def test_images_of_every_8_bit_mode_become_rgb(mode):
    seen = answer_image(Image.new(mode, (3, 2)))
    assert (seen.mode, seen.size) == ("RGB", (3, 2))


def test_transparent_pixels_become_white():
    hidden = Image.fromarray(np.dstack([RGB, np.zeros((24, 20), np.uint8)]))
    assert np.all(np.asarray(answer_image(hidden)) == 255)
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 51))
    assert np.all(np.asarray(answer_image(half)) == 204)
    palette = Image.fromarray(RGB).quantize(4)
    palette.info["transparency"] = bytes(4)
    assert np.all(np.asarray(answer_image(palette)) == 255)


def test_16_bit_images_are_scaled_and_32_bit_ones_rejected():
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    seen = np.asarray(answer_image(Image.fromarray(ramp)))
    assert np.array_equal(seen[..., 0].ravel(), np.arange(256))
    for mode in ("I", "F"):
        with pytest.raises(InvalidAnswer, match=f"mode is {mode}: 32 bits"):
            answer_image(Image.new(mode, (3, 2)))


@pytest.mark.parametrize("size", [(0, 0), (0, 5), (5, 0)])
def test_images_without_pixels_are_invalid(size):
    with pytest.raises(InvalidAnswer, match=f"{size[0]} x {size[1]} pixels"):
        answer_image(Image.new("RGB", size))


def test_strips_are_invalid_and_single_pixels_are_valid():
    with pytest.raises(InvalidAnswer, match="1 x 201 pixels; one side may be 200 times"):
        answer_image(Image.new("RGB", (1, 201)))
    assert answer_image(Image.new("RGB", (1, 200))).size == (1, 200)
    assert answer_image(Image.new("RGB", (1, 1))).size == (1, 1)


def test_decompression_bombs_are_rejected_undecoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as some programs do
    bomb = Image.open(io.BytesIO(claiming(60_000, 56_000)))
    monkeypatch.setattr(bomb, "load", lambda: pytest.fail("it was decoded"))
    with pytest.raises(InvalidAnswer, match=f"60000 x 56000 pixels; at most {MAX_PIXELS}"):
        answer_image(bomb)
    real = encoded(Image.new("1", (8000, 8000)))
    assert len(real) < 20_000
    with pytest.raises(InvalidAnswer, match="8000 x 8000"):
        answer_image(Image.open(io.BytesIO(real)))


def test_8k_images_are_accepted():
    assert answer_image(Image.open(io.BytesIO(encoded(Image.new("1", (7680, 4320)))))).size == (7680, 4320)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP"])
def test_truncated_files_are_invalid_on_every_attempt(kind):
    data = encoded(Image.fromarray(RGB.repeat(4, 0).repeat(4, 1)), kind)
    picture = Image.open(io.BytesIO(data[: len(data) * 2 // 3]))
    for _ in range(2):
        with pytest.raises(ScoringFailed, match="cannot be read") as caught:
            answer_image(picture)
        assert caught.value.kind == "unreadable"


def test_animations_are_invalid():
    frames = [Image.fromarray(RGB), Image.fromarray(255 - RGB)]
    for kind in ("GIF", "TIFF", "PNG"):
        moving = Image.open(io.BytesIO(encoded(frames[0], kind, save_all=True, append_images=frames[1:])))
        with pytest.raises(InvalidAnswer, match="several frames"):
            answer_image(moving)


def test_lazy_images_are_decoded_once_across_threads():
    """Pillow's own `load` is not made for that: threads read one file at the same time."""
    big = np.random.default_rng(1).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    for _ in range(5):
        picture = Image.open(io.BytesIO(encoded(Image.fromarray(big))))
        seen, start = [], threading.Barrier(8)

        def look(picture=picture, seen=seen, start=start):
            start.wait()
            seen.append(np.array_equal(np.asarray(answer_image(picture)), big))

        threads = [threading.Thread(target=look) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [True] * 8


def test_exif_orientation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.open(io.BytesIO(encoded(Image.fromarray(RGB), "PNG", exif=exif)))
    assert np.array_equal(np.asarray(answer_image(lying)), np.rot90(RGB, -1))


@pytest.mark.parametrize("thing", [None, "a.png", b"", RGB, [Image.new("RGB", (2, 2))]])
def test_values_that_are_no_image_are_scorer_failures(thing):
    with pytest.raises(ScoringFailed, match="expected a PIL image") as caught:
        answer_image(thing)
    assert caught.value.kind == "wrong_type"


def test_references_are_read_like_answers(tmp_path):
    for name, picture in {
        "rgb": Image.fromarray(RGB),
        "alpha": Image.fromarray(np.dstack([RGB, RGB[..., 0]])),
        "grey": Image.fromarray(RGB[..., 0]),
        "deep": Image.fromarray(RGB[..., 0].astype(np.uint16) * 250),
        "palette": Image.fromarray(RGB).quantize(16),
    }.items():
        path = tmp_path / f"{name}.png"
        picture.save(path)
        expected = np.asarray(answer_image(picture))
        assert np.array_equal(np.asarray(reference_image(str(path))), expected), name
        assert np.array_equal(np.asarray(reference_image(path)), expected), name
        assert np.array_equal(np.asarray(reference_image(picture)), expected), name


def test_invalid_references_are_scorer_failures(tmp_path):
    (tmp_path / "bomb.png").write_bytes(encoded(Image.new("1", (8000, 8000))))
    (tmp_path / "claims.png").write_bytes(claiming(60_000, 56_000))
    (tmp_path / "cut.png").write_bytes(encoded(Image.fromarray(RGB))[:300])
    (tmp_path / "text.png").write_text("no picture")
    places = [*(str(path) for path in sorted(tmp_path.iterdir())), str(tmp_path / "absent.png"), str(tmp_path), "\0"]
    for wrong in [*places, Image.new("RGB", (0, 3)), Image.new("F", (3, 3))]:
        with pytest.raises(ScoringFailed, match=r"references\['source'\]") as caught:
            reference_image(wrong, "source")
        assert caught.value.kind == "reference"
    with pytest.raises(ScoringFailed, match="expected a path, a data URI or a PIL image"):
        reference_image(3)
