"""Media may stand in the data file itself; messages never show more than a URI's beginning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.data import DataError, Sample, read_samples, write_samples
from mmrl.data.media.bad_media import check_media_files
from mmrl.data.media.decode import (
    image_size,
    load_image,
    load_mask,
    load_video,
    with_media_in,
)
from mmrl.data.media.uris import data_uri, describe_reference, is_data_uri, uri_bytes, uri_kind
from tests.data.media_files import few_colours, gif_uri, moving_square, png_uri, write_clip


@given(st.binary(max_size=200), st.sampled_from(["image/png", "image/svg+xml", "video/mp4", "application/x.y-z"]))
def test_data_uri_bytes_round_trip(content, kind):
    uri = data_uri(content, kind)
    assert is_data_uri(uri) and uri_kind(uri) == kind and uri_bytes(uri) == content


@pytest.mark.parametrize(
    "uri, bytes_, kind",
    [
        ("DATA:Image/PNG;BASE64,aGk=", b"hi", "image/png"),
        ("data:image/png;name=a.png;base64,aGk=", b"hi", "image/png"),
        ("data:;base64,aGk=", b"hi", ""),
    ],
)
def test_data_uri_headers_follow_the_standard(uri, bytes_, kind):
    assert (uri_bytes(uri), uri_kind(uri)) == (bytes_, kind)


@pytest.mark.parametrize(
    "uri, problem",
    [
        ("data:image/png,aGk=", "is no data URI in base64"),
        ("data:image/png;base64", "is no data URI in base64"),
        ("data:", "is no data URI in base64"),
        ("data:image/png;base64,aGk", "base64 is damaged"),
        ("data:image/png;base64,a*k=", "base64 is damaged"),
    ],
)
def test_invalid_base64_is_rejected(uri, problem):
    with pytest.raises(ValueError, match=problem):
        uri_bytes(uri)


def test_images_and_videos_load_from_data_uris(tmp_path):
    picture = moving_square(1)[0]
    picture.save(tmp_path / "a.png")
    uri = png_uri(picture)
    np.testing.assert_array_equal(np.asarray(load_image(uri)), np.asarray(picture))
    np.testing.assert_array_equal(np.asarray(load_mask(uri)), np.asarray(load_mask(tmp_path / "a.png")))
    assert image_size(uri) == image_size(tmp_path / "a.png") == (64, 32)
    path = write_clip(tmp_path / "a.mp4", moving_square(5))
    frames = load_video(data_uri(path.read_bytes(), "video/mp4"))
    np.testing.assert_array_equal(np.stack(frames), np.stack(load_video(path)))


def test_gif_uris_are_lossless():
    frames = few_colours(moving_square(6))
    np.testing.assert_array_equal(np.stack(load_video(gif_uri(frames))), np.stack(frames))


def test_image_size_applies_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    moving_square(1)[0].save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == load_image(tmp_path / "a.jpg").size == (32, 64)


@pytest.mark.parametrize("load", [load_image, load_video])
def test_data_uri_errors_name_sample_and_prefix(load):
    damaged = png_uri(Image.effect_noise((64, 64), 90))[:4000]
    with pytest.raises(DataError) as refused:
        load(damaged, "dog-7")
    message = str(refused.value)
    assert message.startswith("data:image/png;base64,... (4000 characters): cannot be read as a")
    assert message.endswith("(sample 'dog-7')") and len(message) < 250 and "BytesIO" not in message
    assert describe_reference("data:" + "x" * 5000) == "data:... (5005 characters)"


def test_data_uris_are_not_resolved_as_paths(tmp_path):
    picture, clip = png_uri(moving_square(1)[0]), gif_uri(few_colours(moving_square(2)))
    sample = Sample(id="a", prompt="x", images=(picture, "b.png"), videos=(clip,), conditions={"image": clip})
    found = with_media_in(sample, "/data")
    assert found.images == (picture, "/data/b.png") and found.videos == (clip,) and found.conditions == {"image": clip}
    write_samples([sample], tmp_path / "a.jsonl")
    assert read_samples(tmp_path / "a.jsonl") == [sample]
    check_media_files([Sample(id="a", prompt="x", images=(picture,), videos=(clip,))])
    with pytest.raises(DataError, match=r"^data:image/png;base64,... \(60 characters\): .*\(sample 'b'\)$"):
        check_media_files([Sample(id="b", prompt="x", images=(picture[:60],))])
