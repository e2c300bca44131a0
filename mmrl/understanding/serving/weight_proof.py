"""The proof that a server has the trainer's weights: log-probabilities of tokens that the server wrote.

For the same tokens, let s be the server's log-probabilities, t the trainer's and b those of the base model, computed by
the trainer. The mean of |s - t| must be within a bound. Early in training t and b differ by less than that bound, and a
server without the adapter would pass; so the part of the update that the server has,

    share = <s - b, t - b> / |t - b|^2,

must be near 1 as soon as |t - b| stands out from the noise of s. It is 0 for a server that computes as the base model.
With noise of standard deviation d in each of N values the share has the standard deviation d / |t - b|.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.config.policy import Precision

MAX_PROBE_GAP: dict[Precision, float] = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.1}
"""The largest mean of |s - t|. In float32 a server that reads the same tokens differs by 1e-6; in bfloat16 the kernels
of vLLM and of transformers differ by some hundredths."""
NOISE: dict[Precision, float] = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 3e-2}
"""The standard deviation of s - t that is ascribed to rounding and kernels."""
STANDS_OUT = 6.0
"""|t - b| stands out from the noise when it is this many times as large: the share is then known to a sixth."""
LEAST_SHARE = 0.5
"""The least share, three standard deviations from 1 where |t - b| just stands out."""


@dataclass(frozen=True)
class Agreement:
    """The agreement of a server's log-probabilities with the trainer's, over N tokens."""

    tokens: int
    mean: float  # of |s - t|
    largest: float  # of |s - t|
    moved: float  # the mean of |t - b|: how far training has moved the log-probabilities
    share: float | None  # of the update that the server has; None where it does not stand out from the noise

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a proof."""
        found = {"served/probe_gap": self.mean, "served/probe_gap_max": self.largest, "served/probe_moved": self.moved}
        return found if self.share is None else found | {"served/probe_share": self.share}


def agreement(server: Tensor, trainer: Tensor, base: Tensor, noise: float) -> Agreement:
    """Compare log-probabilities [N] of the same tokens; `noise` is the standard deviation of s - t by rounding.

    >>> base, update = torch.zeros(4), torch.full((4,), 0.1)
    >>> found = agreement(server=base, trainer=base + update, base=base, noise=1e-5)
    >>> round(found.mean, 6), found.share
    (0.1, 0.0)
    """
    server, trainer, base = (each.double() for each in (server, trainer, base))
    gap, moved = (server - trainer).abs(), trainer - base
    stands_out = float(moved.norm()) > STANDS_OUT * noise
    share = float((server - base) @ moved / moved.square().sum()) if stands_out else None
    return Agreement(len(server), float(gap.mean()), float(gap.max()), float(moved.abs().mean()), share)


def complaint(found: Agreement, bound: float, raw_gap: float | None) -> str | None:
    """Return what is wrong with a server and which known cause it looks like; None if nothing is.

    `raw_gap` is the mean of |s - t| with t at temperature 1; None if the probes are at that temperature.
    """
    if found.mean <= bound and (found.share is None or found.share >= LEAST_SHARE):
        return None
    words = f"its log-probabilities differ from the trainer's by {found.mean:.1e} in the mean of {found.tokens} tokens"
    words += f", at most {found.largest:.1e}; the bound is {bound:.1e} (run.servers.max_probe_gap)"
    if raw_gap is not None and raw_gap < 0.5 * found.mean:
        return f"{words}. They are those before the temperature: start it with --logprobs-mode processed_logprobs"
    if found.share is not None and abs(found.share) < LEAST_SHARE:
        return (
            f"{words}. It has {found.share:.0%} of what was trained and computes as the base model does: its weights "
            "are stale, or its adapter binds to no module (see --enable-tower-connector-lora and the server's log)"
        )
    if found.moved <= bound:
        return (
            f"{words}, before training has moved anything: another model or revision, another size of pictures, "
            "another precision (--dtype), or quantised weights"
        )
    return f"{words}. A part of the update did not arrive, or its caches hold what older weights computed"


def joined(values: list[list[float]]) -> Tensor:
    """Return the values of all answers, one after another, [N] float64."""
    return torch.tensor([value for row in values for value in row], dtype=torch.float64)
