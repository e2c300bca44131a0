"""One candidate against its baseline, as a row of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """What was measured of one candidate at one case."""

    op: str
    case: str  # sizes, and which pass
    candidate: str
    baseline: str
    seconds: float  # of the candidate: median of CPU time, or of the GPU's own clock
    ratio: float  # baseline / candidate, the median over turns; above 1 = faster
    peak_mib: float  # of memory taken beyond what was held before
    baseline_peak_mib: float
    gate: str | None = None  # what it must reach here; None: nothing is asked of it
    passed: bool | None = None


def table(lines: list[Line]) -> list[str]:
    """Markdown."""
    rows = ["| op | case | candidate | baseline | times as fast | peak MiB (baseline) | gate |", "|-|-|-|-|-|-|-|"]
    for line in lines:
        verdict = "" if line.gate is None else f"{line.gate}: {'reached' if line.passed else '**missed**'}"
        peaks = f"{line.peak_mib:.1f} ({line.baseline_peak_mib:.1f})"
        cells = (f"`{line.op}`", line.case, line.candidate, line.baseline, f"{line.ratio:.2f}", peaks, verdict)
        rows.append(f"| {' | '.join(cells)} |")
    return rows
