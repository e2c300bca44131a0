"""Auxiliary questions about every patch, dropped after the warm start.

A short answer says little about a picture. From each square that the language model is given, a linear layer must also
tell what its four patches show, where the edges of that lie, and how many things share its colour and its shape. The
vision tower learns several times faster so, and comparisons of things, which no answer alone taught, are learnt at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl_shapeworld import vlm_model
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.questions import NAMES, Question, Region

GRID = PIXELS // vlm_model.PATCH
MOST = 8
"""Things that share a colour or a shape are counted up to here."""


class Hints(nn.Module):
    """The contents of each patch, and the box around them: of a pair of frames, in the first and in the second."""

    def __init__(self, width: int, names: Sequence[str] = NAMES) -> None:
        super().__init__()
        self.names = names
        self.parts = (len(names) + 1, MOST + 1, MOST + 1, 8)  # things of the colour and of the shape, two boxes
        self.tell = nn.Linear(width, vlm_model.MERGE**2 * sum(self.parts))

    def forward(
        self,
        squares: Tensor,  # [N · 16, width] of pictures, or of pairs of frames
        kinds: Tensor,  # [N, 64, 3] int64; name, things of its colour, things of its shape; in the order of patches
        boxes: Tensor,  # [N, 64, 8] float32; in shares of the side, from the patch's centre
    ) -> Tensor:  # [] mean loss
        """Return the loss of predicting the contents of the patches."""
        names, colours, shapes, edges = self.tell(squares).view(len(kinds), GRID * GRID, -1).split(self.parts, dim=-1)
        there = kinds[..., 0] != len(self.names)  # a number past the last name: nothing is there
        loss = F.cross_entropy(names.flatten(0, 1), kinds[..., 0].flatten())
        loss = loss + F.cross_entropy(colours[there], kinds[..., 1][there])
        loss = loss + F.cross_entropy(shapes[there], kinds[..., 2][there])
        return loss + 10 * (edges[there] - boxes[there]).abs().mean()


def targets(questions: Sequence[Question], names: Sequence[str] = NAMES) -> tuple[Tensor, Tensor]:
    """[N, 64, 3] kinds and [N, 64, 8] boxes of what each patch shows; N counts pictures and pairs of frames.

    A kind is a number of `names`, or their count where there is nothing.
    """
    pairs = []
    for question in questions:
        frames = question.regions if len(question.regions) > 1 else question.regions * 2
        pairs += [_of_pair(first, second, names) for first, second in zip(frames[::2], frames[1::2], strict=True)]
    return torch.from_numpy(np.stack([kind for kind, _ in pairs])), torch.from_numpy(
        np.stack([box for _, box in pairs])
    )


def _of_pair(
    first: Sequence[Region], second: Sequence[Region], names: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:  # [64, 3], [64, 8]
    """Kinds and places by the first frame. Both frames name the same things in the same order."""
    starts = np.arange(GRID) * vlm_model.PATCH
    kinds = np.full((GRID, GRID, 3), len(names))
    boxes = np.zeros((GRID, GRID, 8), np.float32)
    most = np.zeros((GRID, GRID))  # pixels of the patch that the thing's box covers
    words = [(name.split()[0], name.split()[-1]) for name, _ in first]
    for (name, (x1, y1, x2, y2)), (_, then) in zip(first, second, strict=True):
        across = np.clip(np.minimum(x2, starts + vlm_model.PATCH) - np.maximum(x1, starts), 0, None)
        down = np.clip(np.minimum(y2, starts + vlm_model.PATCH) - np.maximum(y1, starts), 0, None)
        covered = down[:, None] * across[None, :]
        here = covered > most
        most[here] = covered[here]
        alike = [sum(each[n] == name.split()[-n] for each in words) for n in (0, 1)]
        kinds[here] = (names.index(name), *(min(count, MOST) for count in alike))
        boxes[here] = (x1, y1, x2, y2, *then)
    middle = (starts + vlm_model.PATCH / 2).astype(np.float32)
    boxes[..., 0::2] -= middle[None, :, None]
    boxes[..., 1::2] -= middle[:, None, None]
    half = GRID // vlm_model.MERGE
    order = (
        np.arange(GRID * GRID).reshape(half, vlm_model.MERGE, half, vlm_model.MERGE).transpose(0, 2, 1, 3).reshape(-1)
    )
    return kinds.reshape(-1, 3)[order], (boxes / np.float32(PIXELS)).reshape(-1, 8)[order]
