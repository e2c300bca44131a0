"""A run's rewards as one SVG file of its own, for a model card."""

from __future__ import annotations

from mmrl.evaluation.charts import kind_of
from mmrl.evaluation.records import NO_REWARDS, RunRecord
from mmrl.evaluation.summary import order_names
from mmrl.evaluation.svg import Series, panels, smoothed


def curves_svg(record: RunRecord) -> str:
    """Each reward while training (smoothed) beside the same ones as evaluated, held-out ones dashed; empty without."""
    charts = []
    for title, kind, prefix in (("while training", "train", "reward/"), ("evaluated", "evaluation", "evaluation/")):
        hidden = (NO_REWARDS | {"diversity"}) - ({"total"} if record.shows_total else set())
        found = [name.removeprefix(prefix) for name in record.names(kind, prefix)]
        series = []
        for colour, name in enumerate(_ordered(record, [name for name in found if name not in hidden])):
            curve = record.curve(kind, prefix + name)
            values = smoothed(curve.values) if kind == "train" else list(curve.values)
            held_out = kind_of(record, name) == "held out"
            label = f"{name} (held out)" if held_out else name
            series.append(Series(label, curve.steps, values, colour, dashed=held_out))
        if any(series):
            charts.append((f"Rewards {title}, by iteration", series))
    return panels(charts) if charts else ""


def _ordered(record: RunRecord, names: list[str]) -> list[str]:
    return order_names(names, list(record.trained), record.watched)
