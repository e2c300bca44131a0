"""Frames are chosen, decoded alike by both decoders, and never made up."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
from PIL import Image

from mmrl.data import DataError
from mmrl.data.media.budget import VideoBudget
from mmrl.data.media.decode import load_video
from mmrl.data.media.uris import data_uri
from mmrl.data.media.video import default_decoder, read_video
from tests.data.media_files import few_colours, gif_uri, moving_square, write_clip

DECODERS = ["pyav", pytest.param("decord", marks=pytest.mark.skipif(sys.platform != "linux", reason="has no wheel"))]
BUDGET = VideoBudget(fps=2, max_frames=5)


@pytest.fixture
def fresh_choice():
    default_decoder.cache_clear()
    yield
    default_decoder.cache_clear()


@pytest.mark.parametrize(
    "name, codec, rate",
    [("a.mp4", "mpeg4", 8), ("a.mp4", "libx264", 30), ("a.mkv", "libx264", 25), ("a.webm", "libvpx-vp9", 12)],
)
def test_decord_and_pyav_give_equal_frames(tmp_path, name, codec, rate):
    pytest.importorskip("decord", reason="has wheels for Linux x86-64 alone")
    path = write_clip(tmp_path / name, moving_square(20), codec, rate)
    for budget in (BUDGET, VideoBudget(fps=30, max_frames=20, max_pixels=500)):
        one, other = (read_video(path, budget, decoder=decoder) for decoder in ("decord", "pyav"))
        np.testing.assert_array_equal(one.frames, other.frames)
        np.testing.assert_array_equal(one.timestamps, other.timestamps)
        assert (one.indices, one.fps, one.source_fps, one.source_frames) == (
            (other.indices, other.fps, other.source_fps, other.source_frames)
        )


@pytest.mark.parametrize("decoder", DECODERS)
def test_sampled_frames_are_frames_of_the_whole_video(tmp_path, decoder):
    path = write_clip(tmp_path / "a.mp4", moving_square(20))
    video = read_video(path, BUDGET, decoder=decoder)
    everything = load_video(path)
    np.testing.assert_array_equal(video.frames, np.stack([everything[index] for index in video.indices]))
    assert video.indices == (0, 5, 10, 14, 19)[: len(video.indices)] and video.source_frames == 20
    np.testing.assert_allclose(video.timestamps, np.array(video.indices) / 8, atol=1e-3)
    assert video.duration == 2.5 and video.fps == len(video.indices) / 2.5 and video.size == (64, 32)


@pytest.mark.parametrize("decoder", DECODERS)
def test_long_videos_have_smaller_frames(tmp_path, decoder):
    path = write_clip(tmp_path / "a.mp4", moving_square(20))
    small = read_video(path, VideoBudget(fps=8, max_frames=16, total_pixels=16 * 512), decoder=decoder)
    assert small.frames.shape == (16, 16, 32, 3)


def test_gifs_are_always_decoded_by_pyav():
    frames = few_colours(moving_square(6))
    video = read_video(gif_uri(frames), VideoBudget(fps=50))
    np.testing.assert_array_equal(video.frames, np.stack(frames))
    np.testing.assert_allclose(video.timestamps, 0.12 * np.arange(6), atol=0.011)  # a GIF counts hundredths


def test_data_uri_videos_equal_files(tmp_path):
    path = write_clip(tmp_path / "a.mp4", moving_square(9))
    inside = read_video(data_uri(path.read_bytes(), "video/mp4"), BUDGET)
    np.testing.assert_array_equal(inside.frames, read_video(path, BUDGET).frames)


@pytest.fixture(scope="module", params=[("a.mp4", "libx264"), ("a.mkv", "libx264"), ("a.webm", "libvpx-vp9")])
def noise(request, tmp_path_factory):
    """A video that cannot be compressed: half of the file is half of the frames."""
    name, codec = request.param
    frames = np.random.default_rng(0).integers(0, 255, (16, 32, 64, 3), dtype=np.uint8)
    return write_clip(tmp_path_factory.mktemp("noise") / name, [Image.fromarray(frame) for frame in frames], codec)


@pytest.mark.parametrize("decoder", ["auto", *DECODERS])
def test_truncated_videos_raise_with_their_name(noise, decoder):
    content, cut = noise.read_bytes(), noise.with_name(f"cut-{noise.name}")
    cut.write_bytes(content[: len(content) * 6 // 10])
    assert read_video(noise, BUDGET, decoder=decoder).source_frames == 16
    with pytest.raises(DataError, match=rf"{cut.name}: .*\(sample 'cat-1'\)"):
        read_video(cut, BUDGET, "cat-1", decoder=decoder)


@pytest.mark.parametrize("decoder", ["auto", *DECODERS])
def test_files_that_are_no_video_raise_with_their_name(tmp_path, decoder):
    (tmp_path / "text.mp4").write_text("hello")
    with pytest.raises(DataError, match=r"text\.mp4: .*\(sample 's'\)"):
        read_video(tmp_path / "text.mp4", BUDGET, "s", decoder=decoder)
    with pytest.raises(DataError, match=r"none\.mp4: there is no such file"):
        read_video(tmp_path / "none.mp4", BUDGET, decoder=decoder)
    with pytest.raises(ValueError, match="decoder is 'opencv'; it is one of auto, decord, pyav"):
        read_video(tmp_path / "text.mp4", BUDGET, decoder="opencv")


def test_pyav_is_the_fallback_without_decord_and_logs_once(tmp_path, monkeypatch, caplog, fresh_choice):
    monkeypatch.setitem(sys.modules, "decord", None)  # as if it were not installed
    path = write_clip(tmp_path / "a.mp4", moving_square(4))
    with caplog.at_level(logging.INFO, "mmrl.data.media.video"):
        for _ in range(2):
            assert read_video(path, BUDGET).source_frames == 4
    messages = [record.message for record in caplog.records]
    assert len(messages) == 1 and messages[0].startswith("videos are decoded by PyAV")
    assert default_decoder() == "pyav"


def test_decord_is_preferred_if_installed(caplog, fresh_choice):
    pytest.importorskip("decord", reason="has wheels for Linux x86-64 alone")
    with caplog.at_level(logging.INFO, "mmrl.data.media.video"):
        assert default_decoder() == "decord"
    assert "videos are decoded by decord" in caplog.text
