"""The summary that a terminal displays at the end of a run."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image
from rich.console import Console

from mmrl.evaluation.final_summary import before_after, final_summary, picture_text, write_grid


def printed(renderable) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_terminal_images_keep_their_colours():
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:16] = (220, 45, 45)
    pixels[16:] = (50, 85, 220)
    text = picture_text(Image.fromarray(pixels), width=8)
    lines = text.split("\n")
    assert [len(line.plain) for line in lines] == [8] * 4
    styles = [lines[row].spans[0].style for row in (0, 3)]
    assert [style.color.name for style in styles] == ["#dc2d2d", "#3255dc"]


def test_terminal_images_are_aligned_with_their_captions():
    image = Image.new("RGB", (32, 32), "red")
    output = printed(before_after([image] * 7, [image] * 7, [f"caption {n}" for n in range(7)]))
    assert all(f"caption {n}" in output for n in range(7))
    assert output.count("▀" * 16) == 7 * 2 * 8


def test_final_summary_shows_curve_images_numbers_and_paths(make_run):
    run = make_run(steps=(0, 5, 10), iterations=10)
    assert write_grid(run, 12) == run / "before_after.png"
    output = printed(final_summary(run, colours=True, width=140))
    for expected in (
        "reward while training",
        "the same prompts and noise",
        "report.html",
        "python -m webbrowser file://",
    ):
        assert expected in output
    assert "▀" * 16 in output
    assert "▀" not in printed(final_summary(run, colours=False, width=140))


def test_final_summary_without_evaluations(make_run):
    run = make_run(steps=(), iterations=3)
    assert write_grid(run, 12) is None
    assert "report.html" in printed(final_summary(run, colours=True, width=140))
