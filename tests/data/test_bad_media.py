"""Bad media are found by decoding, reported by file and sample, and their samples left out: never swapped."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmrl.data import DataError, Sample
from mmrl.data.media.bad_media import check_media_files, decode, exclude_bad_media, find_bad_media
from mmrl.data.media.sample_media import media_of
from tests.data.media_files import few_colours, gif_uri, moving_square, png_uri, write_clip


@pytest.fixture
def files(tmp_path):
    """A good picture and clip, and the same cut off."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.png")
    write_clip(tmp_path / "good.mkv", [Image.fromarray(noise)] * 8, "libx264")
    for name in ("good.png", "good.mkv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name.replace("good", "cut")).write_bytes(content[: len(content) // 2])
    return {path.name: str(path) for path in tmp_path.iterdir()}


@pytest.fixture
def samples(files):
    good, cut, clip, cut_clip = (files[name] for name in ("good.png", "cut.png", "good.mkv", "cut.mkv"))
    return [
        Sample(id="a", prompt="x", images=(good,), videos=(clip,)),
        Sample(id="b", prompt="x", images=(good, cut)),
        Sample(id="c", prompt="x"),
        Sample(id="d", prompt="x", images=(cut,), videos=(cut_clip, cut_clip)),
        Sample(id="e", prompt="x", conditions={"control_image": [good, cut], "strength": 1}),
        Sample(id="f", prompt="x", mask=cut),
    ]


def test_bad_media_are_found_per_sample(samples, files):
    found = find_bad_media(samples, decode)
    assert list(found) == ["b", "d", "e", "f"]
    assert [len(problems) for problems in found.values()] == [1, 2, 1, 1]
    for sample, problems in found.items():
        assert all(problem.endswith(f"(sample '{sample}')") for problem in problems)
    assert found["d"][0].startswith(files["cut.png"]) and found["d"][1].startswith(files["cut.mkv"])


def test_exclude_drops_bad_samples_and_keeps_the_order(samples):
    kept = exclude_bad_media(samples)
    assert kept.samples == (samples[0], samples[2]) and list(kept.excluded) == ["b", "d", "e", "f"]
    lines = kept.report().splitlines()
    assert lines[0] == "4 of 6 samples are left out:" and len(lines) == 6
    assert exclude_bad_media([samples[0]]).report() == ""


def test_exclude_raises_if_no_sample_is_left(samples):
    with pytest.raises(DataError, match=r"no sample is left: all 2 have bad media, the first .*cut\.png"):
        exclude_bad_media([samples[1], samples[3]])


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pictures_that_are_too_large_to_decode_are_found_before_training(files, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 3000)
    with pytest.raises(DataError, match=r"good\.png: has 4,096 pixels, .* save it with fewer pixels, .*'a'"):
        check_media_files([Sample(id="a", prompt="x", images=(files["good.png"],))])


def test_shared_files_are_decoded_once(files):
    looked = []

    def look(medium, reference, sample_id):
        looked.append((medium, reference))

    many = [Sample(id=str(n), prompt="x", images=(files["good.png"],)) for n in range(5)]
    assert find_bad_media(many, look) == {} and looked == [("image", files["good.png"])]


def test_media_kind_follows_the_key_not_the_suffix():
    gif, png = gif_uri(few_colours(moving_square(2))), png_uri(moving_square(1)[0])
    sample = Sample(id="a", images=(gif,), videos=(gif,), conditions={"image": png, "mask_image": gif, "n": 3})
    assert list(media_of(sample)) == [("image", gif), ("video", gif), ("image", png), ("video", gif)]
