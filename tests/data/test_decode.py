"""Pictures and videos are decoded whole and upright, or refused by name."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from mmrl.data import DataError, Sample, write_samples
from mmrl.data.media.bad_media import check_media_files
from mmrl.data.media.decode import load_image, load_mask, load_video, with_media_in
from mmrl.data.sources import load_source, write_source

LEFT, RIGHT = (250, 10, 10), (10, 10, 250)


@pytest.fixture
def picture() -> Image.Image:
    """Red on the left, blue on the right, wider than high."""
    image = Image.new("RGB", (64, 32), LEFT)
    image.paste(RIGHT, (32, 0, 64, 32))
    return image


def write_video(path, frames, rate=8, **options):
    with av.open(str(path), "w", **options) as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode(None))
    return path


def grey(level, size=(64, 32)):
    return Image.new("RGB", size, (level, level, level))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1"])
def test_images_of_every_mode_become_rgb(picture, tmp_path, mode):
    picture.convert(mode).save(tmp_path / "a.png")
    image = load_image(tmp_path / "a.png")
    assert (image.mode, image.size) == ("RGB", (64, 32))
    assert load_mask(tmp_path / "a.png").mode == "L"


def test_transparent_palettes_are_read_without_a_warning(picture, tmp_path):
    picture.quantize(4).save(tmp_path / "a.png", transparency=b"\xff\x80")
    assert load_image(tmp_path / "a.png").mode == "RGB"


def test_exif_orientation_is_applied_to_images(picture, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    picture.save(tmp_path / "a.jpg", exif=exif, quality=95)
    image = load_image(tmp_path / "a.jpg")
    assert image.size == (32, 64)
    assert np.abs(np.subtract(image.getpixel((16, 8)), LEFT)).max() < 12  # the left is on top now


def test_16_bit_images_are_scaled_not_clipped(tmp_path):
    depth = np.linspace(0, 65535, 32, dtype=np.uint16).reshape(4, 8)
    Image.fromarray(depth).save(tmp_path / "depth.png")
    scaled = np.asarray(load_image(tmp_path / "depth.png"))
    np.testing.assert_array_equal(scaled, np.round(depth / 257).astype(np.uint8)[..., None].repeat(3, axis=2))
    Image.fromarray(depth.astype(np.float32)).save(tmp_path / "depth.tiff")
    with pytest.raises(DataError, match=r"depth\.tiff: has 32 bits a pixel"):
        load_image(tmp_path / "depth.tiff")


def test_truncated_images_raise_with_their_name(picture, tmp_path):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    for name in ("a.png", "a.jpg", "a.webp"):
        path = tmp_path / name
        noise.save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(DataError, match=rf"{name}: cannot be read as a picture \(.+\).*\(sample 'dog-7'\)"):
            load_image(path, "dog-7")


def test_files_that_are_no_image_raise(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_text("hello")
    with pytest.raises(DataError, match=r"a\.png: cannot be read as a picture \(cannot identify image file\)"):
        load_image(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"b\.png: there is no such file"):
        load_mask(tmp_path / "b.png")
    with pytest.raises(DataError, match="cannot be read as a picture"):
        load_image(tmp_path)
    grey(0).save(tmp_path / "bomb.png")
    for allowed in (64 * 32 // 2 - 1, 64 * 32 - 1):  # Pillow's error, and its warning
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", allowed)
        with pytest.raises(DataError, match=r"bomb\.png: .*exceeds limit of \d+ pixels.*: save it with fewer pixels"):
            load_image(tmp_path / "bomb.png")


def test_videos_decode_to_every_frame_in_order(tmp_path):
    levels = [20, 90, 160, 230]
    frames = load_video(write_video(tmp_path / "a.mp4", map(grey, levels)))
    assert [frame.size for frame in frames] == [(64, 32)] * 4
    np.testing.assert_allclose([np.asarray(frame).mean() for frame in frames], levels, atol=6)


def test_video_rotation_is_applied(picture, tmp_path):
    """As phones film: the frames lie on their side, and the track's matrix turns them by 90° clockwise."""
    path = write_video(tmp_path / "a.mp4", [picture] * 2)
    one, two = (number.to_bytes(4, "big", signed=True) for number in (65536, -65536))
    none, scale = bytes(4), (1 << 30).to_bytes(4, "big")
    content, track = path.read_bytes(), path.read_bytes().index(b"tkhd")
    at = content.index(one + none * 3 + one + none * 3 + scale, track)
    turned = none + one + none + two + none + none + none * 2 + scale
    path.write_bytes(content[:at] + turned + content[at + len(turned) :])
    frame = load_video(path)[0]
    assert frame.size == (32, 64)
    assert np.abs(np.subtract(frame.getpixel((16, 8)), LEFT)).max() < 30  # the left is on top now


def test_truncated_videos_raise(tmp_path):
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 255, (32, 64, 3), dtype=np.uint8)) for _ in range(24)]
    whole = write_video(tmp_path / "a.mp4", noise, options={"movflags": "faststart"})  # its index comes first
    assert len(load_video(whole)) == 24
    for name, share in (("half.mp4", 0.5), ("header.mp4", 0.02)):
        (tmp_path / name).write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
        with pytest.raises(DataError, match=rf"{name}: .*\(sample 'cat-1'\)"):
            load_video(tmp_path / name, "cat-1")
    with pytest.raises(DataError, match="there is no such file"):
        load_video(tmp_path / "none.mp4")
    (tmp_path / "text.mp4").write_text("hello")
    with pytest.raises(DataError, match="cannot be read as a video"):
        load_video(tmp_path / "text.mp4")


def test_unreadable_files_are_found_before_training(tmp_path):
    grey(9).save(tmp_path / "good.png")
    (tmp_path / "text.png").write_text("hello")
    good, text = str(tmp_path / "good.png"), str(tmp_path / "text.png")
    check_media_files([Sample(id="a", prompt="x", images=(good,), conditions={"image": good, "strength": 0.5})])
    broken = [Sample(id=f"s{n}", prompt="x", conditions={"control_image": [good, text]}) for n in range(6)]
    broken.append(Sample(id="v", prompt="x", images=(good,), videos=(str(tmp_path / "none.mp4"),), mask=str(tmp_path)))
    with pytest.raises(DataError) as refused:
        check_media_files(broken)
    lines = str(refused.value).splitlines()
    assert len(lines) == 6 and lines[-1] == "and 3 more"
    assert lines[0].startswith(f"{text}: cannot be read as a picture") and lines[0].endswith("(sample 's0')")
    with pytest.raises(DataError, match=r"none\.mp4: there is no such file \(sample 'v'\)\n.*is a folder"):
        check_media_files(broken[-1:])


def test_paths_are_relative_to_the_data_file(tmp_path):
    sample = Sample(id="a", prompt="x", images=("pets/a.png", "/b.png"), videos=("c.mp4",), mask="m.png")
    found = with_media_in(sample, "/data")
    assert found.images == ("/data/pets/a.png", "/b.png") and found.videos == ("/data/c.mp4",)
    assert found.mask == "/data/m.png" and with_media_in(Sample(id="a", prompt="x"), "/data").mask is None


@pytest.mark.parametrize(
    "source, out",
    [("own/a.jsonl", "kept/deep/b.jsonl"), ("own/a.jsonl", "own/b.jsonl"), ("a.jsonl", "link/b.jsonl")],
)
def test_written_samples_name_the_media_that_the_data_have(source, out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere" / "far").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "far")
    folder = (tmp_path / source).parent
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (4, 4)).save(folder / "p.png")
    absolute, uri = str(tmp_path / "q.png"), "data:image/png;base64,AAAA"
    sample = Sample(
        id="a",
        prompt="x",
        images=("p.png", absolute, uri),
        mask="p.png",
        videos=("p.png",),
        conditions={"image": "p.png", "strength": 0.5},
        chosen={"image": "p.png"},
        rejected="p.png",
        metadata={"steps": [{"screen": "p.png"}], "note": "p.png"},
    )
    write_samples([sample], source)
    write_source(load_source(source), out)
    (found,) = load_source(out)
    assert found.images[1:] == (absolute, uri) and found.rejected == found.metadata["note"] == "p.png"
    named = [found.images[0], found.mask, *found.videos, found.conditions["image"], found.chosen["image"]]
    for path in (*named, found.metadata["steps"][0]["screen"]):
        assert Path(path).samefile(folder / "p.png")
