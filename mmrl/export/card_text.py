"""Text that the README of a run and the card of an exported model share: one line for each fact about a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.config.train import TrainConfig

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def method_text(config: TrainConfig) -> str:
    """Return the algorithm, the trained part and the seed."""
    return f"{config.algorithm.name}, {config.policy.train} training, seed {config.seed}"


def paper_text(config: TrainConfig) -> str:
    """Return a sentence about the algorithm, with links to its papers."""
    summary = " ".join((inspect.getdoc(type(config.algorithm)) or "").partition("\n\n")[0].split())
    return _PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", summary)


def rewards_text(config: TrainConfig, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return the rewards with their weights; without any, the rewards of the samples that were evaluated.

    Args:
        config: The run's configuration.
        evaluations: The run's evaluation metrics, a row for each evaluation.
    """
    if config.rewards:
        return ", ".join(
            f"{r.name} (weight {r.weight:g})" if r.at_least is None else f"{r.name} (at least {r.at_least:g})"
            for r in config.rewards
        )
    prefix = "evaluation/"
    scored = {name.removeprefix(prefix) for row in evaluations for name in row if name.startswith(prefix)}
    names = sorted(scored - {"total", "diversity", *config.evaluation.rewards})
    return f"each sample's own; scored: {', '.join(names)}" if names else "each sample's own"


def data_text(config: TrainConfig, path: str | None = None) -> str:
    """Return the data's path, or another text for it, and the number of samples in an iteration."""
    path = path or config.data.path
    if config.algorithm.experience != "rollouts":
        return f"`{path}`, {config.data.groups} samples an iteration"
    return f"`{path}`, {config.data.groups} prompts × {config.data.group_size} samples an iteration"


def one_cell(text: str) -> str:
    """Return a text on one line that stays inside a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
