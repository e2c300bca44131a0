"""Metrics of an iteration's rewards and answers: means by reward and source, failures, lengths, group diversity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from mmrl.algorithms import zero_variance_share
from mmrl.rewards.core.reward_io import TOTAL, RewardOutput
from mmrl.rewards.core.routing import Scorer

SIDE = 16
"""The size in pixels to which images are reduced before they are compared: cheap, and insensitive to noise."""


def reward_metrics(
    output: RewardOutput,  # of R rows
    suite: Scorer,
    sources: Sequence[str],  # R
    group_index: Tensor,  # [R] int
    lengths: Sequence[int] | None = None,  # R, in tokens
) -> dict[str, float]:
    """Return means by reward, counts of statuses other than ok, and the share of groups without variance.

    The mean total, the share of valid rows and the share of groups without variance are repeated by source.
    """
    metrics = {f"reward/{name}": _mean(values) for name, values in output.values.items()}
    total = output.values[TOTAL]
    metrics["reward/total_std"] = float(np.nanstd(total)) if np.isfinite(total).any() else float("nan")
    for name, by_status in suite.counts(output).items():
        for status, count in by_status.items():
            if status != "ok":
                metrics[f"status/{name}/{status}"] = float(count)
    for name, by_kind in suite.failures(output).items():
        for kind, count in by_kind.items():
            metrics[f"failure/{name}/{kind}"] = float(count)
    metrics["zero_variance_share"] = zero_variance_share(torch.from_numpy(total), group_index)
    for source in sorted(set(sources)):
        rows = np.array([each == source for each in sources])
        metrics[f"reward_by_source/{source}"] = _mean(total[rows])
        metrics[f"valid_share_by_source/{source}"] = float(np.isfinite(total[rows]).mean())
        metrics[f"zero_variance_share_by_source/{source}"] = zero_variance_share(
            torch.from_numpy(total[rows]), group_index[torch.from_numpy(rows)]
        )
    return metrics | ({} if lengths is None else length_metrics(lengths, sources))


def length_metrics(lengths: Sequence[int], sources: Sequence[str]) -> dict[str, float]:
    """Return the mean length of answers in tokens, over all of them and by source."""
    by_source = {
        f"length_by_source/{source}": float(
            np.mean([n for n, each in zip(lengths, sources, strict=True) if each == source])
        )
        for source in sorted(set(sources))
    }
    return {"length": float(np.mean(lengths))} | by_source


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean()) if scored.size else float("nan")


def group_diversity(
    media: Sequence[Any],  # R images (PIL), videos (lists of PIL) or texts
    groups: Sequence[int],  # R, the group of each
) -> float | None:
    """Return the mean diversity of the answers of a group, in [0, 1]; None where no group has two of one kind.

    It shows a collapse that rewards do not. Texts: the share of distinct ones. Images and the middle frames of videos:
    the root mean square over pairs of the difference of RGB values, at 16 x 16 pixels.
    """
    by_group: dict[int, list[Any]] = {}
    for answer, group in zip(media, groups, strict=True):
        by_group.setdefault(group, []).append(answer)
    found = [value for answers in by_group.values() if (value := _diversity(answers)) is not None]
    return float(np.mean(found)) if found else None


def _diversity(answers: Sequence[Any]) -> float | None:
    if len(answers) < 2:
        return None
    if all(isinstance(answer, str) for answer in answers):
        return len(set(answers)) / len(answers)
    pixels = [reduced for answer in answers if (reduced := _pixels(answer)) is not None]
    if len(pixels) < len(answers):
        return None
    # The mean over ordered pairs of |a - b|^2 is twice the variance with ddof 1.
    return float(np.sqrt(2 * np.stack(pixels).var(axis=0, ddof=1, dtype=np.float64).mean()))


def _pixels(media: Any) -> NDArray[np.float32] | None:
    """Return the reduced image, or middle frame, as [768] in [0, 1]; None for other media."""
    if isinstance(media, Sequence) and media and isinstance(media[0], Image.Image):
        media = media[len(media) // 2]
    if not isinstance(media, Image.Image):
        return None
    reduced = media.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(reduced, np.float32).ravel() / np.float32(255)
