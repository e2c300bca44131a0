"""Prepared media are those that would be decoded, and what is stale or foreign is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mmrl.data import DataError, Sample
from mmrl.data.media.bad_media import exclude_bad_media
from mmrl.data.media.budget import ImageBudget, MediaBudget, VideoBudget
from mmrl.data.media.reader import INDEX, MediaCache, MediaReader, write_cache
from tests.data.media_files import few_colours, gif_uri, moving_square, png_uri, write_clip

BUDGET = MediaBudget(ImageBudget(max_pixels=1000), VideoBudget(fps=4, max_frames=6, max_pixels=900))


@pytest.fixture
def samples(tmp_path):
    moving_square(1)[0].save(tmp_path / "a.png")
    clip = str(write_clip(tmp_path / "a.mp4", moving_square(20)))
    inside = png_uri(moving_square(3)[2])
    return [
        Sample(id="one", prompt="x", images=(str(tmp_path / "a.png"), inside)),
        Sample(id="two", prompt="x", videos=(clip, gif_uri(few_colours(moving_square(5))))),
        Sample(id="three", prompt="x", videos=(clip,)),
    ]


def test_cache_equals_decoding(samples, tmp_path):
    done = write_cache(samples, tmp_path / "cache", BUDGET)
    assert (done.made, done.kept, done.problems) == (4, 0, [])
    direct = MediaReader(BUDGET)
    cached = MediaCache(tmp_path / "cache", BUDGET)
    for sample in samples:
        for reference in sample.images:
            picture = cached.image(reference)
            assert picture.mode == "RGB" and picture.size[0] * picture.size[1] <= 1000
            np.testing.assert_array_equal(np.asarray(picture), np.asarray(direct.image(reference)))
        for reference in sample.videos:
            one, other = cached.video(reference), direct.video(reference)
            np.testing.assert_array_equal(one.frames, other.frames)
            np.testing.assert_array_equal(one.timestamps, other.timestamps)
            assert one.frames.dtype == np.uint8 and one.indices == other.indices and one.size == other.size
            assert (one.fps, one.source_fps, one.source_frames) == (other.fps, other.source_fps, other.source_frames)
    assert exclude_bad_media(samples, MediaCache(tmp_path / "cache", BUDGET).check).excluded == {}


def test_cache_resumes_with_missing_media_only(samples, tmp_path):
    assert write_cache(samples[:1], tmp_path / "cache", BUDGET).made == 2
    again = write_cache(samples, tmp_path / "cache", BUDGET)
    assert (again.made, again.kept) == (2, 2)
    assert again.bytes == sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors"))


def test_changed_files_are_stale(samples, tmp_path):
    write_cache(samples, tmp_path / "cache", BUDGET)
    path = tmp_path / "a.png"
    before = path.stat()
    os.utime(path, (before.st_atime, before.st_mtime + 60))  # touched, but with the same content
    assert MediaCache(tmp_path / "cache", BUDGET).image(str(path)).size == (44, 22)
    Image.new("RGB", (64, 32)).save(path)
    with pytest.raises(DataError, match=r"a\.png: is not in the cache .* as it is now: .*prepare.* \(sample 'one'\)"):
        MediaCache(tmp_path / "cache", BUDGET).image(str(path), "one")
    kept = exclude_bad_media(samples, MediaCache(tmp_path / "cache", BUDGET).check)
    assert [sample.id for sample in kept.samples] == ["two", "three"]
    path.unlink()
    with pytest.raises(DataError, match=r"a\.png: there is no such file"):
        MediaCache(tmp_path / "cache", BUDGET).image(str(path))


def test_another_budget_raises_with_both_values(samples, tmp_path):
    write_cache(samples, tmp_path / "cache", BUDGET)
    other = replace(BUDGET, video=replace(BUDGET.video, fps=2.0, max_frames=5))
    with pytest.raises(DataError, match=r"another budget \(video.fps 4, not 2.0, video.max_frames 6, not 5\)"):
        MediaCache(tmp_path / "cache", other)
    with pytest.raises(DataError, match="holds media of another budget"):
        write_cache(samples, tmp_path / "cache", other)


def test_folders_that_are_no_cache_are_unchanged(samples, tmp_path):
    with pytest.raises(DataError, match=r"is not a cache of `mmrl data prepare`: it has no readable cache\.json"):
        MediaCache(tmp_path, BUDGET)
    with pytest.raises(DataError, match="exists and is not a cache"):
        write_cache(samples, tmp_path, BUDGET)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "a.png"]
    write_cache(samples, tmp_path / "cache", BUDGET)
    index = tmp_path / "cache" / INDEX
    index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 99}))
    with pytest.raises(DataError, match="another version of mmrl"):
        MediaCache(tmp_path / "cache", BUDGET)


def test_damaged_cache_files_raise_with_their_name(samples, tmp_path):
    write_cache(samples, tmp_path / "cache", BUDGET)
    for path in (tmp_path / "cache").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"\.safetensors: is damaged .*: delete it and run `mmrl data prepare` again"):
        MediaCache(tmp_path / "cache", BUDGET).image(samples[0].images[0])


def test_undecodable_media_are_reported_and_others_prepared(samples, tmp_path):
    (tmp_path / "bad.png").write_text("hello")
    bad = Sample(id="bad", prompt="x", images=(str(tmp_path / "bad.png"), str(tmp_path / "none.png")))
    done = write_cache([*samples, bad], tmp_path / "cache", BUDGET)
    assert done.made == 4 and len(done.problems) == 2
    assert "bad.png: cannot be read as a picture" in done.problems[0] and "(sample 'bad')" in done.problems[0]
    with pytest.raises(DataError, match=r"bad\.png: is not in the cache"):
        MediaCache(tmp_path / "cache", BUDGET).image(bad.images[0])


def test_reader_without_a_cache_applies_the_budget(samples):
    reader = MediaReader(BUDGET)
    width, height = reader.image(samples[0].images[0]).size
    assert width * height <= 1000
    clip = reader.video(samples[1].videos[0])
    assert clip.frames.shape[0] == 6 and clip.size[0] * clip.size[1] <= 900
