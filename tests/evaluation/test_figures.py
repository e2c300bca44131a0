"""Charts, contact sheets and curves for terminals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.evaluation import EvaluationError, before_after_grid, curve_text
from mmrl.evaluation.report.svg import Series, line_chart, smoothed, ticks


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.sampled_from([1e-6, 0.1, 1, 1e6]))
def test_ticks_are_few_round_and_cover_the_values(low, span, unit):
    low, span = low * unit, span * unit
    found = ticks(low, low + span)
    step = found[1] - found[0]
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-6 * step and found[-1] >= low + span - 1e-6 * step
    leading = float(f"{step:.3e}".partition("e")[0])
    assert leading in (1, 2, 5)


def test_integer_ticks_are_steps_within_the_run():
    assert ticks(0, 3, whole=True) == [0, 1, 2, 3]
    assert ticks(1, 40, whole=True) == [10, 20, 30, 40]


def test_charts_have_gaps_at_unknown_values():
    chart = line_chart("a <b>", [Series("s", [0, 1, 2, 3], [0.0, 1.0, math.nan, 1.0])])
    assert chart.count("<polyline") == 2 and chart.count("<circle") == 3 and "a &lt;b&gt;" in chart
    assert 'cx="46.0" cy="168.0"' in chart and "s, step 3: 1<" in chart  # lower left corner
    assert "nan" not in chart
    assert line_chart("nothing", [Series("s", [0], [math.nan])]) == "" == line_chart("nothing", [])
    for value in (0.0, 5.0, -1e-9, 1e9):
        assert "nan" not in line_chart("one point", [Series("s", [7], [value])])
        assert "nan" not in line_chart("flat", [Series("s", [0, 1], [value, math.nextafter(value, math.inf)])])


def test_smoothing_keeps_constants_and_gaps_without_initial_bias():
    assert smoothed([2.0] * 5, span=3) == pytest.approx([2.0] * 5)
    assert smoothed([1.0, 3.0], span=2) == pytest.approx([1.0, 7 / 3])
    result = smoothed([1.0, math.nan, 3.0], span=2)
    assert math.isnan(result[1]) and result[2] == pytest.approx(7 / 3)
    noisy = np.random.default_rng(0).normal(size=400)
    assert np.std(smoothed(noisy.tolist())) < 0.5 * noisy.std()


def test_contact_sheets_hold_every_image_with_square_pixels():
    before = [Image.new("RGB", (32, 32), (200, 0, i)) for i in range(5)]
    after = [Image.new("RGB", (32, 32), (0, 200, i)) for i in range(5)]
    sheet = before_after_grid(before, after, ["a red circle above a blue square " * k for k in range(1, 6)])
    colours = {colour for _, colour in sheet.getcolors(100_000)}
    assert {(200, 0, i) for i in range(5)} | {(0, 200, i) for i in range(5)} <= colours
    counts = {colour: n for n, colour in sheet.getcolors(100_000)}
    assert counts[(200, 0, 3)] == 128 * 128  # enlarged four times, without in-between colours
    assert max(sheet.size) < 2000


@pytest.mark.integration
def test_contact_sheets_of_mixed_sizes():
    sheet = before_after_grid([Image.new("RGB", (1024, 512))], [Image.new("L", (10, 20))], ["x" * 500])
    assert sheet.width < 700 and sheet.height < 400
    with pytest.raises(EvaluationError, match="got 1 pictures before, 0 after and 0 captions"):
        before_after_grid([Image.new("L", (1, 1))], [], [])


def test_terminal_curve():
    assert curve_text([0, 1, 2, 3], height=2).splitlines() == ["3 ┤  ▃█", "0 ┤▁▆██"]
    assert curve_text([1, math.nan, 2], height=1) == "2 ┤▁ █"
    assert curve_text([math.nan]) == curve_text([]) == "(no values)"
    long = curve_text(list(range(1000)), width=60, height=5).splitlines()
    assert len(long) == 5 and max(map(len, long)) <= 60 + 8 and long[-1].endswith("█" * 10)
    assert "▁" in curve_text([5.0, 5.0])
