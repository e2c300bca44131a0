"""Losses of a decoder of image tokens: true pictures repeated, and the best pictures of each group made to look true.

RankE (arXiv:2605.21195; syjmelody/RankE autoregressive/post_train/trainer.py and autoregressive/models/vqrl_models.py),
whose adversarial part is VQGAN's (arXiv:2012.09841).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mmrl.algorithms.groups import group_sum
from mmrl.checks import check_dtypes, check_shapes


def best_of_groups(
    totals: Tensor,  # [B] float rewards; NaN = could not be scored
    group_index: Tensor,  # [B] int
    best: int,
    temperature: float,
) -> tuple[Tensor, Tensor]:  # [K] int64 rows, [K] float weights with mean 1
    """Return the rows of the `best` highest rewards of each group, and their weights.

    The weights of a group are the softmax of reward / temperature over its chosen rows; all of them are divided by
    their mean. Of equal rewards the first row is chosen. Groups come in the order of their ids, and rows within them
    from the best down.

    >>> best_of_groups(torch.tensor([0.0, 2.0, 2.0, torch.nan]), torch.tensor([0, 0, 0, 1]), 2, 1.0)
    (tensor([1, 2]), tensor([1., 1.]))

    Raises:
        ValueError: `best` or the temperature is not above 0.
    """
    check_shapes("B", {}, totals=totals, group_index=group_index)
    check_dtypes("float", totals=totals)
    check_dtypes("int", group_index=group_index)
    if best < 1 or temperature <= 0:
        raise ValueError(f"expected best >= 1 and a temperature > 0, got {best} and {temperature}")
    chosen = []
    for group in sorted(set(group_index.tolist())):
        rows = ((group_index == group) & totals.isfinite()).nonzero()[:, 0]
        chosen.append(rows[totals[rows].argsort(descending=True, stable=True)[:best]])
    rows = torch.cat(chosen) if chosen else group_index.new_zeros(0)
    if not len(rows):
        return rows, totals[rows]
    scaled, groups = totals[rows] / temperature, group_index[rows]
    largest = torch.stack([scaled[groups == group].max() for group in groups])
    powers = (scaled - largest).exp()
    weights = powers / group_sum(powers, groups)
    return rows, weights / weights.mean()


def discriminator_loss(
    true: Tensor,  # [B, 1, h, w] logits of true pictures
    made: Tensor,  # [B', 1, h, w] logits of pictures that a decoder made
) -> Tensor:  # [], >= 0
    """The hinge loss: half of mean max(0, 1 - true) + mean max(0, 1 + made).

    >>> discriminator_loss(torch.full((1, 1, 1, 1), 2.0), torch.full((1, 1, 1, 1), -0.5))
    tensor(0.2500)
    """
    check_dtypes("float", true=true, made=made)
    return 0.5 * ((1 - true).clamp(min=0).mean() + (1 + made).clamp(min=0).mean())


def realism_loss(
    logits: Tensor,  # [B, 1, h, w] of pictures that a decoder made, with gradients
    weights: Tensor | None = None,  # [B]; None: all 1
) -> Tensor:  # []
    """Minus the mean of the discriminator's logits, each picture with its weight.

    >>> realism_loss(torch.tensor([1.0, 3.0]).view(2, 1, 1, 1), torch.tensor([1.5, 0.5]))
    tensor(-1.5000)
    """
    check_dtypes("float", logits=logits)
    if weights is None:
        return -logits.mean()
    check_shapes("B", {"B": len(logits)}, weights=weights)
    return -(logits * weights.view(-1, 1, 1, 1)).mean()


def gradient_balance(
    first: Tensor,  # [] a loss
    second: Tensor,  # [] another loss on the same parameters
    parameter: Tensor,  # that both are compared by: the last layer of a decoder
) -> Tensor:  # [], in [0, 1e4], without a graph
    """The factor on `second` by which its gradient is as long as that of `first`: |g1| / (|g2| + 1e-4) (VQGAN).

    >>> x = torch.tensor([1.0], requires_grad=True)
    >>> gradient_balance(6 * x.sum(), 2 * x.sum(), x)
    tensor(2.9999)
    """
    lengths = [torch.autograd.grad(loss, parameter, retain_graph=True)[0].norm() for loss in (first, second)]
    balance: Tensor = lengths[0] / (lengths[1] + 1e-4)
    return balance.clamp(0.0, 1e4).detach()
