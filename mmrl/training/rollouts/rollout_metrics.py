"""Metrics of an iteration's rewards and answers: means by reward and source, failures, lengths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmrl.algorithms.groups import group_spread
from mmrl.rewards.core.reward_io import TOTAL, RewardOutput
from mmrl.rewards.core.suite import Scorer


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
    flat = group_spread(torch.from_numpy(total), group_index).numpy() == 0
    groups, origin = group_index.numpy(), np.array(sources)
    metrics["zero_variance_share"] = _share_of_groups(flat, groups)
    for source in sorted(set(sources)):
        rows = origin == source  # of whole groups: their answers are to one sample
        metrics[f"reward_by_source/{source}"] = _mean(total[rows])
        metrics[f"valid_share_by_source/{source}"] = float(np.isfinite(total[rows]).mean())
        metrics[f"zero_variance_share_by_source/{source}"] = _share_of_groups(flat[rows], groups[rows])
    return metrics | ({} if lengths is None else length_metrics(lengths, sources))


def length_metrics(lengths: Sequence[int], sources: Sequence[str]) -> dict[str, float]:
    """Return the number of tokens of all answers, and their mean over answers, also by source."""
    by_source = {
        f"length_by_source/{source}": float(
            np.mean([n for n, each in zip(lengths, sources, strict=True) if each == source])
        )
        for source in sorted(set(sources))
    }
    return {"tokens": float(sum(lengths)), "length": float(np.mean(lengths))} | by_source


def _share_of_groups(flat: NDArray[np.bool_], groups: NDArray[np.int64]) -> float:
    """Return the share of the groups whose rows are `flat`."""
    return len(np.unique(groups[flat])) / len(np.unique(groups))


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean()) if scored.size else float("nan")
