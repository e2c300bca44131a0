"""What model cards say of a run in a line each: of a run folder's own card, and of an exported model's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.config.train import TrainConfig

_PAPER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def rewards_text(config: TrainConfig, rows: Sequence[Mapping[str, Any]]) -> str:
    """Those of the configuration; where it names none, what the samples asked for, as far as it was evaluated.

    `rows` are the lines of metrics of the evaluations.
    """
    if config.rewards:
        return ", ".join(
            f"{r.name} (weight {r.weight:g})" if r.at_least is None else f"{r.name} (at least {r.at_least:g})"
            for r in config.rewards
        )
    seen = {name.removeprefix("evaluation/") for row in rows for name in row if name.startswith("evaluation/")}
    names = sorted(seen - {"total", "diversity", *config.evaluation.rewards})
    return f"each sample's own; scored: {', '.join(names)}" if names else "each sample's own"


def data_text(config: TrainConfig) -> str:
    """Where the samples come from, and how many an iteration takes."""
    if config.algorithm.experience != "rollouts":
        return f"`{config.data.path}`, {config.data.groups} samples an iteration"
    return f"`{config.data.path}`, {config.data.groups} prompts × {config.data.group_size} samples an iteration"


def method_text(config: TrainConfig) -> str:
    """The algorithm, what was trained, and the seed."""
    return f"{config.algorithm.name}, {config.policy.train} training, seed {config.seed}"


def paper_text(config: TrainConfig) -> str:
    """What the algorithm is, in a sentence with links to its papers."""
    said = " ".join((inspect.getdoc(type(config.algorithm)) or "").partition("\n\n")[0].split())
    return _PAPER.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", said)


def one_cell(text: str) -> str:
    """A name of somebody's data on one line, and in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
