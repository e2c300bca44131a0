"""Extrapolation of weights from the checkpoints of a run: along a line, or by a predictor of rank-one parts (NExt).

A trajectory is a list of changes by layer, one for each checkpoint at equal distances: the weights less those before
training. NExt (arXiv:2604.11446) takes the leading rank-one part of each change, since most of what reinforcement
learning does lies there and does not move along a line, and trains a small network on how these parts moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from mmrl.errors import ConfigError

Changes = Mapping[str, Tensor]
"""The change of each layer's weight since before training, [M, N] float32, by name."""

Factors = dict[tuple[str, str], Tensor]
"""The factors of rank-one parts by layer and side, `left` or `right`."""


@dataclass(frozen=True)
class PredictorSettings:
    """The network that continues rank-one parts, and its training."""

    window: int = 3
    """The moves between checkpoints that it sees; at least one more must be there to learn from."""
    hidden: int = 32
    steps: int = 400
    lr: float = 3e-3
    seed: int = 0


def linear_extrapolation(path: Sequence[Changes], ahead: float, window: int = 1) -> dict[str, Tensor]:
    """Return the changes `ahead` checkpoints after the last, with the mean move of the last `window` of them.

    Raises:
        ConfigError: the trajectory has no more than `window` checkpoints.
    """
    _check_length(path, window)
    last, before = path[-1], path[-1 - window]
    return {name: last[name] + (ahead / window) * (last[name] - before[name]) for name in last}


def rank_one_extrapolation(path: Sequence[Changes], ahead: float, window: int = 1) -> dict[str, Tensor]:
    """Return the changes `ahead` checkpoints after the last, of which the rank-one parts alone have moved on a line.

    The two factors move on a line, each by its mean move over `window` checkpoints.
    """
    _check_length(path, window)
    factors = factor_paths(changes.items() for changes in path)
    moved = {key: series[-1] + (ahead / window) * (series[-1] - series[-1 - window]) for key, series in factors.items()}
    return dict(with_moved_parts(path[-1].items(), factors, moved))


def predicted_extrapolation(
    path: Sequence[Changes], ahead: int, settings: PredictorSettings = PredictorSettings()
) -> dict[str, Tensor]:
    """Return the changes `ahead` checkpoints after the last, whose rank-one parts a predictor has moved (NExt).

    The predictor is trained on the trajectory itself, with all coordinates of all layers as examples: from `window`
    moves to the next one. It then predicts `ahead` moves, one after another. What is not in the rank-one parts stays.

    Raises:
        ConfigError: the trajectory has too few checkpoints to see `window` moves and the next one.
    """
    factors = factor_paths(changes.items() for changes in path)
    return dict(with_moved_parts(path[-1].items(), factors, predicted_parts(factors, ahead, settings)))


def predicted_parts(factors: Factors, ahead: int, settings: PredictorSettings = PredictorSettings()) -> Factors:
    """Return the factors `ahead` checkpoints after the last, [M] and [N], from their paths, [K, M] and [K, N].

    Raises:
        ConfigError: the trajectory has too few checkpoints to see `window` moves and the next one.
    """
    _check_length(next(iter(factors.values())), settings.window + 1)
    moves = {key: series[1:] - series[:-1] for key, series in factors.items()}  # [K - 1, D] each
    scales = {key: each.square().mean().sqrt().clamp(min=1e-12) for key, each in moves.items()}
    predictor = train_predictor([moves[key] / scales[key] for key in moves], settings)
    moved = {}
    with torch.no_grad():
        for key, series in factors.items():
            seen = moves[key] / scales[key]
            for _ in range(ahead):
                seen = torch.cat([seen, predictor(seen[-settings.window :].T)[None]])
            moved[key] = series[-1] + scales[key] * seen[len(moves[key]) :].sum(0)
    return moved


class MovePredictor(nn.Module):
    """The last move plus what a network of one hidden layer makes of a window of moves.

    Untrained it adds nothing, so that it continues on a line.
    """

    def __init__(self, window: int, hidden: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(window, hidden), nn.Linear(hidden, 1, bias=False)
        nn.init.zeros_(self.outer.weight)

    def forward(self, moves: Tensor) -> Tensor:  # [D, window], the newest last -> [D]
        change: Tensor = self.outer(torch.tanh(self.inner(moves)))[:, 0]
        return moves[:, -1] + change


def train_predictor(moves: Sequence[Tensor], settings: PredictorSettings) -> MovePredictor:  # [K, D] each
    """Return a predictor of the next move, by the squared error over all windows of all coordinates."""
    windows = [series.unfold(0, settings.window + 1, 1).flatten(0, 1) for series in moves]  # [windows * D, window + 1]
    examples = torch.cat(windows)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        predictor = MovePredictor(settings.window, settings.hidden)
    optimizer = torch.optim.Adam(predictor.parameters(), lr=settings.lr)
    with torch.enable_grad():
        for _ in range(settings.steps):
            optimizer.zero_grad()
            error = (predictor(examples[:, :-1]) - examples[:, -1]).square().mean()
            error.backward()
            optimizer.step()
    return predictor


def factor_paths(path: Iterable[Iterable[tuple[str, Tensor]]], rank: int | None = None) -> Factors:
    """Return the factors of each layer's leading rank-one part at each checkpoint, `(name, side)` to [K, M] or [K, N].

    The outer product of the sides `left` and `right` is that part, and both have the same norm. Of the two signs, it is
    the one with which the left factor is nearer to that of the checkpoint before. One change is in memory at a time.

    Args:
        path: For each checkpoint, the changes by name.
        rank: A rank that no change exceeds, such as that of a LoRA, with which large matrices take little time; None:
            any rank.
    """
    found: dict[tuple[str, str], list[Tensor]] = {}
    for changes in path:
        for name, change in changes:
            left, right = _leading_part(change.float(), rank)
            lefts, rights = found.setdefault((name, "left"), []), found.setdefault((name, "right"), [])
            sign = -1.0 if lefts and torch.dot(left, lefts[-1]) < 0 else 1.0
            lefts.append(sign * left)
            rights.append(sign * right)
    return {key: torch.stack(series) for key, series in found.items()}


def with_moved_parts(
    last: Iterable[tuple[str, Tensor]], factors: Factors, moved: Factors
) -> Iterator[tuple[str, Tensor]]:
    """Yield the last changes, one at a time, with their rank-one parts replaced."""
    for name, change in last:
        part = torch.outer(factors[name, "left"][-1], factors[name, "right"][-1])
        yield name, change - part + torch.outer(moved[name, "left"], moved[name, "right"])


def adapted_layers(*models: nn.Module) -> dict[str, LoraLayer]:
    """Return the layers with a LoRA, by the number of their model and their path in it."""
    return {
        f"{number}.{path}": layer
        for number, model in enumerate(models)
        for path, layer in model.named_modules()
        if isinstance(layer, LoraLayer)
    }


@torch.no_grad()
def adapter_change(layer: LoraLayer) -> Tensor:
    """Return what the active adapters add to a layer's weight, [M, N] float32, with kernels of convolutions flat."""
    changes = [layer.get_delta_weight(adapter).float() for adapter in layer.active_adapters]
    return torch.stack(changes).sum(0).flatten(1)


def adapter_changes(*models: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each adapted layer's name and its change, one at a time."""
    for name, layer in adapted_layers(*models).items():
        yield name, adapter_change(layer)


def _leading_part(change: Tensor, rank: int | None) -> tuple[Tensor, Tensor]:  # [M, N] -> [M], [N]
    """Return the factors of the leading rank-one part, both with the same norm."""
    if rank is None or rank >= min(change.shape):
        u, sizes, vh = torch.linalg.svd(change, full_matrices=False)
        v = vh.T
    else:  # a random projection loses nothing where it has as many dimensions as the change has
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            u, sizes, v = torch.svd_lowrank(change, rank)
    root = sizes[0].sqrt()
    return root * u[:, 0], root * v[:, 0]


def _check_length(path: Sized, window: int) -> None:
    if len(path) <= window:
        raise ConfigError(
            f"a trajectory of {len(path)} checkpoints does not show {window} moves: keep more of them "
            "(training.keep_every), or take a smaller window"
        )
