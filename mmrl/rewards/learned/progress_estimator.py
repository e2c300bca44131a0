"""`ProgressEstimator`: what each turn of an episode contributes to its outcome (SPA-RL, arXiv:2505.20732).

It is learnt from episodes and their outcomes alone: the contributions of the turns of an episode are to sum to its
outcome, by least squares. A recurrent network reads the turns in order, so the contribution of a turn says by how much
it changed what is to be expected, and none of it needs a label.

A turn is described by hashed words of the action and of what the environment answered, and by how both relate to the
prompt and to the turns before (`turn_features`), so that no word of a task has to be known.

progress.json          sizes, and what the estimator was measured on
progress.safetensors   the parameters
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mmrl.atomic_io import replace_text
from mmrl.rewards.core.reward_errors import RewardError

SETTINGS, PARAMETERS = "progress.json", "progress.safetensors"
FORMAT = 1
RELATIONS = 6
"""Numbers that describe how a turn relates to the prompt and to the turns before."""
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class PlayedTurn:
    """An action, and what the environment answered; "" where the episode was over."""

    action: str
    answer: str


@dataclass(frozen=True)
class PlayedEpisode:
    """A prompt, the turns that followed, and what they came to, in [0, 1]."""

    prompt: str
    turns: tuple[PlayedTurn, ...]
    outcome: float = 0.0


@dataclass(frozen=True)
class EstimatorShape:
    """The sizes of an estimator."""

    buckets: int = 32
    """Buckets of hashed words, as many for actions as for answers."""
    hidden: int = 32
    """The width of the recurrent state."""


class ProgressEstimator(nn.Module):
    """A recurrent network from the turns of episodes to their contributions."""

    def __init__(self, shape: EstimatorShape) -> None:
        super().__init__()
        self.shape = shape
        self.reader = nn.GRU(2 * shape.buckets + RELATIONS, shape.hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(shape.hidden, shape.hidden), nn.ReLU(), nn.Linear(shape.hidden, 1))

    def forward(
        self,
        features: Tensor,  # [B, K, F] float32
        present: Tensor,  # [B, K] bool; the turns of an episode are the first ones
    ) -> Tensor:  # [B, K]; 0 where there is no turn
        """Return the contribution of each turn, which depends on it and on those before."""
        states = self.reader(features)[0]
        contributions: Tensor = self.head(states).squeeze(-1)
        return contributions.where(present, 0.0)

    @torch.no_grad()
    def contributions(self, episode: PlayedEpisode) -> list[float]:
        """Return the contribution of each turn of one episode; their sum estimates its outcome."""
        if not episode.turns:
            return []
        features, present = batch_of([episode], self.shape.buckets)
        return [float(each) for each in self(features, present)[0]]


def turn_features(episode: PlayedEpisode, buckets: int) -> NDArray[np.float32]:  # [K, 2 * buckets + RELATIONS]
    """Return the description of each turn of an episode.

    Behind the counts of hashed words come: the share of the answer's words that the prompt has, whether it has all of
    them, the same share for the action, whether the action was made before, whether the answer was read before, and
    whether the environment answered at all.
    """
    known = set(_WORD.findall(episode.prompt))
    rows = np.zeros((len(episode.turns), 2 * buckets + RELATIONS), np.float32)
    actions, answers = set[str](), set[str]()
    for row, turn in zip(rows, episode.turns, strict=True):
        written, read = _WORD.findall(turn.action), _WORD.findall(turn.answer)
        for place, words in ((0, written), (buckets, read)):
            for word in words:
                row[place + zlib.crc32(word.encode()) % buckets] += 1
        shares = [sum(word in known for word in words) / max(len(words), 1) for words in (read, written)]
        row[2 * buckets :] = (
            shares[0],
            float(bool(read) and shares[0] == 1),
            shares[1],
            float(turn.action in actions),
            float(turn.answer in answers),
            float(bool(turn.answer)),
        )
        actions.add(turn.action)
        answers.add(turn.answer)
    return rows


def batch_of(
    episodes: Sequence[PlayedEpisode], buckets: int
) -> tuple[Tensor, Tensor]:  # [B, K, F] float32, [B, K] bool
    """Return the features of several episodes, padded behind, and which turns each has."""
    rows = [torch.from_numpy(turn_features(episode, buckets)) for episode in episodes]
    lengths = torch.tensor([len(each) for each in rows])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.arange(int(lengths.max())) < lengths[:, None]


def fit_progress(
    episodes: Sequence[PlayedEpisode],
    shape: EstimatorShape,
    steps: int = 600,
    lr: float = 5e-3,
    seed: int = 0,
) -> ProgressEstimator:
    """Return an estimator whose contributions sum to the outcomes of episodes, by least squares.

    Raises:
        RewardError: there are no episodes, or all came to the same.
    """
    outcomes = torch.tensor([episode.outcome for episode in episodes])
    if len(episodes) < 2 or float(outcomes.std()) == 0:
        raise RewardError(f"progress: {len(episodes)} episodes, whose outcomes do not differ, say nothing of progress")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        estimator = ProgressEstimator(shape)
    features, present = batch_of(episodes, shape.buckets)
    optimizer = torch.optim.AdamW(estimator.parameters(), lr=lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(episodes), (256,), generator=generator)
        loss = nn.functional.mse_loss(estimator(features[rows], present[rows]).sum(1), outcomes[rows])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return estimator.eval()


@torch.no_grad()
def explained_variance(estimator: ProgressEstimator, episodes: Sequence[PlayedEpisode]) -> float:
    """Return the share of the variance of outcomes that the sums of contributions explain, at most 1."""
    outcomes = torch.tensor([episode.outcome for episode in episodes])
    sums = estimator(*batch_of(episodes, estimator.shape.buckets)).sum(1)
    return 1 - float(((sums - outcomes) ** 2).mean() / outcomes.var(correction=0).clamp(min=1e-9))


def write_estimator(folder: Path, estimator: ProgressEstimator, measured: dict[str, float]) -> None:
    """Write the folder of an estimator; its settings come last, so that a folder with settings is whole."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in estimator.state_dict().items()}, folder / PARAMETERS)
    document = {"format": FORMAT, "shape": asdict(estimator.shape), "measured": measured}
    replace_text(folder / SETTINGS, json.dumps(document, indent=1) + "\n")


def read_estimator(folder: Path) -> ProgressEstimator:
    """Return the estimator of a folder.

    Raises:
        RewardError: the folder is not one of an estimator, or is damaged. The message names the file.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        document = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise RewardError(f"{folder / SETTINGS}: format {document['format']!r}, expected {FORMAT}")
        estimator = ProgressEstimator(EstimatorShape(**document["shape"]))
        estimator.load_state_dict(load_file(folder / PARAMETERS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as err:
        raise RewardError(f"{folder}: no estimator of progress, as `mmrl data progress` writes it: {err}") from err
    return estimator.eval()
