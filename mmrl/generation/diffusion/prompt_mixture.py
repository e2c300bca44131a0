"""Guidance by two prompts: each denoising step follows a mixture of what is predicted after both.

A prompt that a model expanded has more details than the user's, and may lose what the user wanted. Parrot
(arXiv:2401.05675) therefore centres guidance on the original prompt when it samples: with the scales w_1 and w_2 of the
original and of the expanded prompt the prediction is

    (1 - w_1 - w_2) e(empty) + w_1 e(original) + w_2 e(expanded)
        = e(empty) + g (m - e(empty)),   m = s e(original) + (1 - s) e(expanded),   g = w_1 + w_2,   s = w_1 / g,

which is a pipeline's own classifier-free guidance of scale g, whose conditional prediction is the mixture m. So the
pipeline is called as ever with two rows for each picture, which begin with the same noise and differ in their prompt.
After each denoiser call both get the mixture of their outputs, and so they stay equal; of both, one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmrl.config.sampling import SamplingConfig, decisions_per_trajectory
from mmrl.errors import UnsupportedError
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

PAIR = 2
"""Rows of a call for each picture: the sample's prompt, and the other one."""


def mixed_rollout(
    policy: PipelinePolicy, requests: Sequence[RolloutRequest], sampling: SamplingConfig, seed: int
) -> Rollout:
    """Return a rollout whose pictures follow two prompts; it can be neither replayed nor learnt from.

    Initial noise is that of a rollout of the same requests by their own prompts alone.

    Raises:
        ValueError: the requests have different shares, or some have one prompt.
        UnsupportedError: the sampler explores, the rows of a picture did not stay equal, or a denoiser's output is not
            one tensor of rows.
    """
    mixtures = [request.mixture for request in requests if request.mixture is not None]
    shares = {each.share for each in mixtures}
    if len(mixtures) < len(requests) or len(shares) > 1:
        raise ValueError("requests of one call must share the share of their second prompt, got "
                         f"{sorted(shares)} for {len(mixtures)} of {len(requests)}")  # fmt: skip
    if decisions_per_trajectory(sampling):
        raise UnsupportedError("pictures that are learnt from follow the prompt of their sample alone: mix prompts in "
                               "evaluations")  # fmt: skip
    pairs = [
        replace(request, sample=sample, n=1, mixture=None)
        for request, mixture in zip(requests, mixtures, strict=True)
        for _ in range(request.n)
        for sample in (request.sample, replace(request.sample, prompt=mixture.prompt))
    ]
    with mixed_predictions(policy.denoisers, shares.pop(), rows=len(pairs)):
        both = policy.sample_rows(pairs, seed, copies=PAIR)
    clean = both.clean
    if clean is None or not torch.equal(clean[::PAIR], clean[1::PAIR]):
        raise UnsupportedError(f"{type(policy.pipeline).__name__} draws noise that the rows of a picture do not share, "
                               "so prompts cannot be mixed: leave evaluation.original_prompt out")  # fmt: skip
    return replace(
        both,
        samples=both.samples[::PAIR],
        group_index=both.group_index[::PAIR],
        log_probs=both.log_probs[::PAIR],
        mask=both.mask[::PAIR],
        channel=both.channel[::PAIR],
        media=both.media[::PAIR],
        clean=clean[::PAIR],
        recording=None,
    )


@contextmanager
def mixed_predictions(denoisers: Mapping[str, nn.Module], share: float, rows: int) -> Iterator[None]:
    """While open, rows 2i and 2i + 1 of each denoiser call get (1 - share) times the output of the first plus `share`
    times that of the second.

    `rows` is their number in a call, twice that of pictures. Classifier-free guidance may put several times as many
    rows into one call, all of a kind one after another; the rows of a pair without a prompt have equal outputs.

    Raises:
        UnsupportedError: an output is not one tensor with a multiple of these rows.
    """

    def mixed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            found: list[Tensor] = []
            map_leaves(Tensor, found.append, output)
            if len(found) != 1 or len(found[0]) % rows:
                shapes = ", ".join(str(list(each.shape)) for each in found)
                raise UnsupportedError(f"a denoiser gave {shapes} for {rows} rows, two of each picture: prompts are "
                                       "mixed where it gives one tensor of rows")  # fmt: skip
            return map_leaves(Tensor, lambda each: mix_pairs(each, share), output)

        return call

    forwards = [(each, "forward", mixed(each.forward)) for each in denoisers.values()]
    with replaced_attributes(forwards):
        yield


def mix_pairs(output: Tensor, share: float) -> Tensor:  # [2N, ...] -> [2N, ...]
    """Return the rows of each pair replaced by (1 - share) times the first plus `share` times the second, in float32.

    >>> mix_pairs(torch.tensor([1.0, 3.0, 0.0, 8.0]), 0.25)
    tensor([1.5000, 1.5000, 2.0000, 2.0000])
    """
    own, other = output[::PAIR].float(), output[1::PAIR].float()
    return ((1 - share) * own + share * other).to(output.dtype).repeat_interleave(PAIR, dim=0)
