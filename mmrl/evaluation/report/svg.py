"""Line charts as inline SVG: no script, no outside request, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 380, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 22  # room for the axes
MOST_DOTS = 20  # longer series are lines without dots
COLOURS = 8  # in the style sheet
HEADING = 20  # above a panel
SHADES = ("#2a78c2", "#c2571a", "#2c8a57", "#8d4fb0", "#b8930c", "#c03a5b", "#4b6a88", "#7a7a7a")
STYLE = (
    "text{font:10px sans-serif;fill:#777}.title{font-weight:bold;font-size:12px}.rule{stroke:#8884}"
    ".line{fill:none;stroke-width:1.6}.faint{opacity:.35}.dashed{stroke-dasharray:4 3}"
) + "".join(f".line.c{n}{{stroke:{shade}}}.dot.c{n}{{fill:{shade}}}" for n, shade in enumerate(SHADES))
"""The style of an SVG file, legible on white and on black; pages have their own style sheet."""

Placing = Callable[[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """A line of a chart. Values that are not finite leave a gap."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    colour: int = 0  # index into the style sheet's colours
    faint: bool = False  # raw values behind a smoothed line, without an entry in the legend
    dashed: bool = False


def line_chart(title: str, series: Sequence[Series], note: str = "", flag: float | None = None) -> str:
    """Return a `<figure>` with title, chart and legend; an empty string if no series has a value.

    `flag` is a step to mark; the note explains it.
    """
    if not (drawn := _plot(title, series, flag=flag)):
        return ""
    legend = "".join(
        f'<span class="key c{s.colour % COLOURS}{" dashed" if s.dashed else ""}">{escape(s.name)}</span>'
        for s in series
        if not s.faint and len([t for t in series if not t.faint]) > 1
    )
    note = f"<p>{escape(note)}</p>" if note else ""
    caption = f"<figcaption><h3>{escape(title)}</h3>{note}</figcaption>"
    return f'<figure class="chart">{caption}{drawn}<div class="legend">{legend}</div></figure>'


def panels(charts: Sequence[tuple[str, Sequence[Series]]], columns: int = 2, one_scale: bool = True) -> str:
    """Return an SVG file with charts side by side, all with the same axes unless `one_scale` is false, and legends."""
    points = [xy for _, series in charts for one in series for xy in _known(one)] if one_scale else []
    most = max((len(series) for _, series in charts), default=0)
    height = HEADING + HEIGHT + 12 * -(-most // 2) + 12
    rows, parts = -(-len(charts) // columns), []
    for number, (title, series) in enumerate(charts):
        left, top = WIDTH * (number % columns), height * (number // columns)
        drawn = _plot(title, series, points).replace("<svg ", f'<svg y="{HEADING}" width="{WIDTH}" height="{HEIGHT}" ')
        parts.append(f'<svg x="{left}" y="{top}" width="{WIDTH}" height="{height}">')
        parts.append(f'<text class="title" x="{LEFT}" y="14">{escape(title)}</text>{drawn}')
        for place, one in enumerate(series):
            across, down = LEFT + (place % 2) * (WIDTH - LEFT) // 2, HEADING + HEIGHT + 12 * (place // 2) + 8
            parts.append(f'<circle class="dot c{one.colour % COLOURS}" cx="{across}" cy="{down - 3}" r="3"/>')
            parts.append(f'<text x="{across + 8}" y="{down}">{escape(one.name)}</text>')
        parts.append("</svg>")
    size = f'viewBox="0 0 {WIDTH * min(columns, len(charts))} {height * rows}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>{"".join(parts)}</svg>\n'


def _plot(
    title: str, series: Sequence[Series], around: Sequence[tuple[float, float]] = (), flag: float | None = None
) -> str:
    """Return an `<svg>` whose axes cover the series, and the points `around`; empty without a value."""
    points = [xy for one in series for xy in _known(one)]
    if not points:
        return ""
    points = [*points, *around]
    low_x, high_x = _range([x for x, _ in points])
    y_ticks = ticks(*_range([y for _, y in points]))
    lines, place = axes((low_x, high_x), y_ticks)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">', *lines]
    if flag is not None and low_x <= flag <= high_x:
        across, top = place(flag, y_ticks[-1])
        parts.append(f'<line class="flag" x1="{across}" x2="{across}" y1="{top}" y2="{HEIGHT - BOTTOM}"/>')
    for one in series:
        parts += _line(one, place)
    return "".join([*parts, "</svg>"])


def axes(x_range: tuple[float, float], y_ticks: Sequence[float]) -> tuple[list[str], Placing]:
    """Return the elements of both axes, and the function from a point to its place in the `<svg>`."""
    (low_x, high_x), (low_y, high_y) = x_range, (y_ticks[0], y_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        up = (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return round(LEFT + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = []
    for y in y_ticks:
        height = place(low_x, y)[1]
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height}" y2="{height}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{height + 3.5}" text-anchor="end">{_number(y)}</text>')
    for x in ticks(low_x, high_x, whole=True):
        parts.append(
            f'<text x="{place(x, low_y)[0]}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(x)}</text>'
        )
    return parts, place


def smoothed(values: Sequence[float], span: float | None = None) -> list[float]:
    """Return the exponential moving average over about `span` values (default: a tenth), unbiased at the start."""
    keep = 1 - 1 / max(1.0, len(values) / 10 if span is None else span)
    total, weight, result = 0.0, 0.0, []
    for value in values:
        if math.isfinite(value):
            total, weight = keep * total + value, keep * weight + 1
        result.append(total / weight if weight and math.isfinite(value) else math.nan)
    return result


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Return about `count` round numbers that cover low to high; if `whole`, whole numbers within them."""
    rough = (high - low) / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
        return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [n * step for n in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def _line(series: Series, place: Placing) -> list[str]:
    kind = f"line c{series.colour % COLOURS}{' faint' if series.faint else ''}{' dashed' if series.dashed else ''}"
    parts, stretch = [], []
    known = _known(series)
    for x, y in [*zip(series.steps, series.values, strict=True), (0.0, math.nan)]:
        if math.isfinite(y):
            stretch.append(place(x, y))
        elif stretch:
            path = " ".join(f"{across},{down}" for across, down in stretch)
            parts.append(f'<polyline class="{kind}" points="{path}"/>')
            stretch = []
    if not series.faint and len(known) <= MOST_DOTS:
        for x, y in known:
            across, down = place(x, y)
            hint = f"<title>{escape(f'{series.name}, step {_number(x)}: {y:.4g}')}</title>"
            parts.append(
                f'<circle class="dot c{series.colour % COLOURS}" cx="{across}" cy="{down}" r="3">{hint}</circle>'
            )
    return parts


def _known(series: Series) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(series.steps, series.values, strict=True) if math.isfinite(y)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and highest value, widened if they are nearly equal."""
    low, high = min(values), max(values)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-250):
        return (low - abs(low) * 0.1, high + abs(high) * 0.1) if low else (0.0, 1.0)
    return low, high


def _number(value: float) -> str:
    if value == 0:
        return "0"
    text = f"{value:.6g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
    return text.replace("e-0", "e-").replace("e+0", "e+")
