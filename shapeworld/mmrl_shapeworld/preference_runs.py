"""Experiments for studies of reward models: each trains heads on judged pictures and judges further ones.

A seed draws the training pairs and the heads; the pairs that are judged are always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.config.reward_model import LabelConfig, RaterConfig, RewardTrainingConfig
from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.rewards.learned.head_training import (
    JudgedPairs,
    axis_logits,
    context_of,
    rows_of_raters,
    train_pair_head,
    train_rater_head,
    vote_on_labels,
)
from mmrl.rewards.learned.judge_inputs import picture_features
from mmrl.rewards.learned.score_head import HeadShape
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.statistics.calibration import expected_calibration_error
from mmrl_shapeworld import preferences
from mmrl_shapeworld.shipped_models import CLIP

HIDDEN = 128


def label_noise(
    seed: int, on: str, pairs: int, steps: int, vote: Mapping[str, Any] | None = None
) -> dict[str, Sequence[float]]:
    """Train a head on pairs of which three of ten are labelled wrongly.

    Args:
        seed: of the pairs that are drawn, and of the head.
        on: the set that is judged: development, validation or ood.
        pairs: training pairs.
        steps: updates of the head.
        vote: keys of `labels.vote`; None: labels are taken as they are.

    Returns:
        `accuracy`: 1 for each judged pair whose better picture has the higher score. `calibration`: the expected
        calibration error, the same number for each pair.
    """
    everything = pairs_of("preferences-flipped")
    rows = torch.randperm(len(everything), generator=torch.Generator().manual_seed(seed))[:pairs]
    data, judged = everything.select(rows), pairs_of(f"preferences-{on}")
    shape, settings = HeadShape(features=data.chosen.shape[1], hidden=HIDDEN), RewardTrainingConfig(steps=steps)
    labels = None
    if vote is not None:
        labels, _ = vote_on_labels(data, shape, settings, LabelConfig.model_validate({"vote": dict(vote)}), seed)
    head = train_pair_head(data, shape, settings, seed, labels)
    with torch.no_grad():
        return _measured(axis_logits(head, judged)[:, 0])


def rater_tastes(seed: int, on: str, latent: int, steps: int = 800) -> dict[str, Sequence[float]]:
    """Train a head on the judgements of raters with two opposite tastes, and judge for raters that it never met.

    Of each of them it sees eight pairs; the other sixteen are judged. `latent` = 0 takes all raters for one.

    Returns:
        `accuracy`: 1 for each judged pair whose better picture has the higher score. `calibration`: see `label_noise`.
    """
    data, judged = pairs_of("raters-train"), pairs_of(f"raters-{on}")
    settings, config = RewardTrainingConfig(steps=steps), RaterConfig(latent=latent or 1)
    shape = HeadShape(features=data.chosen.shape[1], hidden=HIDDEN, latent=latent)
    assert judged.raters is not None
    of_raters = rows_of_raters(judged.raters)
    rest = judged.select(torch.cat([rows[config.context :] for rows in of_raters]))
    if not latent:
        head, own = train_pair_head(data, shape, settings, seed), None
    else:
        head, encoder = train_rater_head(data, shape, settings, config, seed)
        places = torch.stack([rows[: config.context] for rows in of_raters])
        with torch.no_grad():
            inferred = encoder(*context_of(judged, places))[0]
        own = torch.cat([
            inferred[number].expand(len(rows) - config.context, -1) for number, rows in enumerate(of_raters)
        ])  # fmt: skip
    with torch.no_grad():
        return _measured(axis_logits(head, rest, own)[:, 0])


@cache
def pairs_of(split: str) -> JudgedPairs:
    """Return a set of preferences as features of the tiny CLIP that ships."""
    encoder = load_encoder("learned", str(CLIP))
    found = preferences.samples(split)
    names = sorted({str(each.rater) for each in found})
    raters = torch.tensor([names.index(str(each.rater)) for each in found]) if len(names) > 1 else None
    return JudgedPairs(
        _features(encoder, found, "chosen"), _features(encoder, found, "rejected"), torch.ones(len(found), 1), raters
    )


def _features(encoder: Any, samples: Sequence[Sample], side: str) -> Tensor:
    pictures = [load_image(getattr(sample, side), sample.id) for sample in samples]
    return picture_features(encoder, pictures, [sample.prompt for sample in samples])


def _measured(logits: Tensor) -> dict[str, Sequence[float]]:
    """Return the measures of pairs [P] whose chosen answer is the better one, from its log-odds."""
    right = (logits > 0).numpy()
    certainty = np.maximum(logits.sigmoid().double().numpy(), (-logits).sigmoid().double().numpy())
    calibration = expected_calibration_error(certainty, right)
    return {"accuracy": right.astype(float).tolist(), "calibration": [calibration] * len(right)}
