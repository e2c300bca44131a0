"""`ModelHandle` and `PainterHandle`: the models of a run as rewards see them (`RewardContext.models`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmrl.config.sampling import AnySamplingConfig
from mmrl.data.sample import Sample
from mmrl.policy import StepOutputs
from mmrl.rewards.core.denoising import Denoised
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rollout import Rollout
from mmrl.rollout_request import TargetText, batch_requests
from mmrl.seeds import fold_in
from mmrl.training.named_model import NamedModel

ROWS = 128
"""Texts that a model scores in one call, unless the run says otherwise."""


class ModelHandle:
    """A model as rewards see it: it scores and writes in calls of some rows, one call at a time in the whole run."""

    def __init__(self, model: NamedModel, lock: threading.Lock, rows: int) -> None:
        self._model, self._lock, self._rows = model, lock, rows

    def log_probs(self, texts: Sequence[TextQuery]) -> list[NDArray[np.float32]]:
        """Return [T] for each text, the log-probability of each of its tokens and of its end."""
        return self._by_token(texts, lambda rollout: rollout.log_probs)

    def entropies(self, texts: Sequence[TextQuery]) -> list[NDArray[np.float32]]:
        """Return [T] for each text, the entropy that each of its tokens, and its end, is drawn with, in nats."""
        return self._by_token(texts, self._entropies)

    def _entropies(self, rollout: Rollout) -> Tensor:  # [B, T]
        found = torch.zeros_like(rollout.log_probs)

        def visit(now: StepOutputs) -> None:
            if now.entropy is None:
                raise ValueError("the replay of a model that writes texts returned no entropies")
            found[:, list(now.step_indices)] = now.entropy

        self._model.replay(rollout, range(found.shape[1]), visit)
        return found

    def _by_token(self, texts: Sequence[TextQuery], values: Callable[[Rollout], Tensor]) -> list[NDArray[np.float32]]:
        """Return [T] for each text, what `values` returns for the tokens of rollouts of all texts."""
        places: dict[tuple[str, str, str], int] = {}
        distinct: list[TextQuery] = []
        for each in sorted(texts, key=lambda each: each.sample.id):  # the answers to a prompt share it in a call
            if (key := (each.sample.id, each.prefix, each.text)) not in places:
                places[key] = len(distinct)
                distinct.append(each)
        found: list[NDArray[np.float32]] = []
        for start in range(0, len(distinct), self._rows):
            targets = [
                TargetText(each.sample, each.text, group, prefix=each.prefix)
                for group, each in enumerate(distinct[start : start + self._rows])
            ]
            with self._lock:
                rollout = self._model.score_targets(targets)
                rows = zip(values(rollout).cpu(), rollout.mask.cpu(), strict=True)
            found += [row[mask].numpy() for row, mask in rows]
        _release(self._model, self._lock)
        return [found[places[each.sample.id, each.prefix, each.text]] for each in texts]

    def answers(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        """Return `draws` answers to each sample."""
        found: list[list[str]] = [[] for _ in samples]
        for number, requests in enumerate(batch_requests(samples, draws, self._rows)):
            with self._lock:
                rollout = self._model.answers(requests, fold_in(seed, number))
            for row, group in enumerate(rollout.group_index.tolist()):
                found[group].append(str(rollout.media[row]))
        _release(self._model, self._lock)
        return found


class PainterHandle:
    """A model that draws, as rewards see it: in calls of some rows, one call at a time in the whole run."""

    def __init__(self, model: NamedModel, lock: threading.Lock, rows: int, sampling: AnySamplingConfig) -> None:
        """`sampling` is that of pictures which are not learnt from."""
        self._model, self._lock, self._rows, self._sampling = model, lock, rows, sampling

    def pictures(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[Any]]:
        """Return `draws` pictures for each sample; those of one prompt, without conditions, share theirs."""
        places: dict[str, int] = {}
        distinct: list[Sample] = []
        for each in samples:
            if (key := _drawn_key(each)) not in places:
                places[key] = len(distinct)
                distinct.append(each)
        found: list[list[Any]] = [[] for _ in distinct]
        for number, requests in enumerate(batch_requests(distinct, draws, self._rows, sampling=self._sampling)):
            with self._lock:
                rollout = self._model.draw(requests, fold_in(seed, number))
            for row, group in enumerate(rollout.group_index.tolist()):
                found[group].append(rollout.media[row])
        _release(self._model, self._lock)
        return [found[places[_drawn_key(each)]] for each in samples]

    def denoise(
        self, samples: Sequence[Sample], media: Sequence[Any], places: Sequence[float], seed: int
    ) -> list[list[Denoised]]:
        """Return, for each picture or video of a sample, what the model predicts at each noise level."""
        found: list[list[Denoised]] = []
        for call in batch_requests(samples, 1, self._rows):
            rows = [request.group for request in call]
            with self._lock:
                found += self._model.denoise([samples[row] for row in rows], [media[row] for row in rows], places, seed)
        _release(self._model, self._lock)
        return found


def _release(model: NamedModel, lock: threading.Lock) -> None:
    """Free the device's copy of offloaded weights: the policy may sample next."""
    with lock:
        model.release()


def _drawn_key(sample: Sample) -> str:
    """Return what two samples share if they are drawn alike."""
    return f"id {sample.id}" if sample.conditions else f"prompt {sample.prompt}"
