"""`mmrl data check` ends in 1 if any line is bad; `mmrl data prepare` writes what training reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config.loading.load import parse_config
from mmrl.data import Sample, write_samples
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaCache, MediaReader
from tests.data.media_files import moving_square, write_clip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moving_square(1)[0].save("a.png")
    write_clip(Path("a.mp4"), moving_square(16))
    samples = [
        Sample(id="a", prompt="how many?", images=("a.png",), answer=1, task="counting"),
        Sample(id="b", prompt="where to?", videos=("a.mp4",), answer="right", task="video-qa", source="clips"),
    ]
    write_samples(samples, "good.jsonl")
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["data", *arguments], catch_exceptions=False)


def test_data_check_exits_0_with_a_table(folder):
    done = run("check", "good.jsonl")
    assert done.exit_code == 0, done.output
    assert "clips" in done.output and "counting" in done.output and "good.jsonl:" not in done.output


def test_data_check_prints_each_problem_with_file_and_line(folder):
    good = Path("good.jsonl").read_text()
    Path("bad.jsonl").write_text(good + "{\n" + json.dumps({"prompt": "x", "images": ["none.png"]}) + "\n")
    done = run("check", "bad.jsonl")
    assert done.exit_code == 1
    lines = [line for line in done.output.splitlines() if line.startswith("bad.jsonl:")]
    assert [line.split(":")[1] for line in lines] == ["3", "4"] and "none.png: there is no such file" in lines[1]
    assert run("check", "bad.jsonl", "--no-media").output.count("bad.jsonl:") == 1
    Path("empty.jsonl").write_text("\n")
    done = run("check", "empty.jsonl")
    assert done.exit_code == 1 and "empty.jsonl: holds no samples" in done.output
    assert run("check", "none.jsonl").exit_code == 1


def test_data_check_applies_the_named_task_to_lines_without_one(folder):
    write_samples([Sample(id="a", prompt="x", images=("a.png",), answer="many")], "bare.jsonl")
    assert run("check", "bare.jsonl").exit_code == 0
    assert run("check", "bare.jsonl", "--task", "counting").exit_code == 1


@pytest.mark.parametrize("command", ["filter", "select", "pairs", "demonstrate", "angles"])
def test_a_folder_in_the_place_of_the_file_is_refused_before_any_answer(folder, command):
    result = run(command, "shapes-reasoning", "data.path=good.jsonl", "--out", str(folder))
    assert result.exit_code == 2 and "Invalid value for '--out'" in result.output


@pytest.mark.parametrize("command", ["filter", "select", "pairs", "demonstrate", "angles"])
def test_a_file_that_cannot_be_written_is_refused_before_any_answer(folder, command):
    result = run(command, "shapes-reasoning", "data.path=good.jsonl", "--out", "good.jsonl/kept.jsonl")
    assert result.exit_code == 2 and "good.jsonl is a file" in " ".join(result.output.split())


def test_pairs_and_prompts_are_not_written_to_one_file(folder):
    words = ("shapes-reasoning", "data.path=good.jsonl", "--out", "kept.jsonl", "--online", "./kept.jsonl")
    result = run("pairs", *words)
    assert result.exit_code == 2 and "--online" in result.output


@pytest.mark.integration
def test_prepared_media_are_read_by_training(folder):
    changes = ["media.video.fps=8", "media.video.max_frames=4", "media.video.max_pixels=900"]
    done = run("prepare", "good.jsonl", "--out", "cache", *changes)
    assert done.exit_code == 0, done.output
    assert "cache: 2 media prepared, 0 were there, 0 cannot be decoded" in done.output
    assert f"Train with media.cache=cache {' '.join(changes)}" in done.output
    bare = "{name: a, policy: {kind: vlm, model: m}, data: {path: d}}"
    media = parse_config(bare, "test", [*changes, "media.cache=cache"]).media
    reader = MediaCache(media.cache, MediaBudget.of(media))
    direct = MediaReader(MediaBudget.of(media)).video("a.mp4")
    assert direct.frames.shape == (4, 21, 42, 3)
    np.testing.assert_array_equal(reader.video("a.mp4").frames, direct.frames)
    assert "0 media prepared, 2 were there" in run("prepare", "good.jsonl", "--out", "cache", *changes).output
    assert "holds media of another budget" in run("prepare", "good.jsonl", "--out", "cache").output


def test_prepare_uses_the_budget_of_a_recipe(folder):
    Path("my.yaml").write_text(
        "name: mine\npolicy: {kind: vlm, model: m}\ndata: {path: d}\nmedia: {image: {max_pixels: 900}}\n"
    )
    assert run("prepare", "good.jsonl", "--out", "cache", "--recipe", "my.yaml").exit_code == 0
    written = json.loads(Path("cache/cache.json").read_text())["budget"]
    assert written["image"]["max_pixels"] == 900 and written["video"]["fps"] == 2.0


def test_prepare_exits_1_on_bad_media_unless_excluded(folder):
    Path("text.png").write_text("hello")
    write_samples([Sample(id="a", prompt="x", images=("text.png", "a.png"))], "bad.jsonl")
    done = run("prepare", "bad.jsonl", "--out", "cache")
    assert done.exit_code == 1 and "text.png: cannot be read as a picture" in done.output
    assert "1 media prepared, 0 were there, 1 cannot be decoded" in done.output
    assert run("prepare", "bad.jsonl", "--out", "cache", "media.on_error=exclude").exit_code == 0


def test_prepare_accepts_media_keys_only(folder):
    done = run("prepare", "good.jsonl", "--out", "cache", "data.groups=3")
    assert done.exit_code == 2 and "only keys of media can be set here" in done.output


def test_data_direct_writes_directions_into_prompts_and_weights(folder):
    done = run(
        "direct", "good.jsonl", "-r", "numeric", "-r", "length=2", "-a", "length.limit=9", "--out", "directed.jsonl"
    )
    assert done.exit_code == 0, done.output
    assert "2 samples in 7 directions of numeric and length" in done.output
    for line in Path("directed.jsonl").read_text().splitlines():
        sample = json.loads(line)
        right, short = (reward["weight"] for reward in sample["rewards"])
        assert right**2 + (short / 2) ** 2 == pytest.approx(1.0) and sample["rewards"][1]["args"] == {"limit": 9}
        assert sample["prompt"].startswith(f"Weights of numeric, length: {100 * right:.0f}, {50 * short:.0f}.")


def test_data_direct_writes_a_file_that_finds_the_media_from_any_folder(folder):
    done = run("direct", "good.jsonl", "-r", "numeric", "-r", "length", "-a", "length.limit=9", "--out", "far/d.jsonl")
    assert done.exit_code == 0, done.output
    checked = run("check", "far/d.jsonl")
    assert "there is no such file" not in checked.output and "not tried on 0" not in checked.output
