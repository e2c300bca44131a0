"""The margin of a chosen text over the other texts of its context, by a CLIP-like encoder (Found-RL)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor

MAX_ANCHORS = 1000


def chosen_margin(
    logits: Tensor,  # [B, T] scaled cosines of images and texts
    chosen: Tensor,  # [B] int, the column of each image's chosen text
    context: Tensor,  # [B, T] bool, the texts of each image's context; the chosen one counts in any case
) -> Tensor:  # [B] in (-1, 1)
    """Return p(chosen) − max p(other), with p the softmax over the texts of the context (arXiv:2602.10458).

    >>> import torch
    >>> logits = torch.tensor([[0.0, 0.0, 9.0]]).log1p()  # odds of 1 : 1 : 10
    >>> chosen_margin(logits, torch.tensor([2]), torch.tensor([[True, True, True]])).item()
    0.75
    """
    import torch

    is_chosen = chosen[:, None] == torch.arange(logits.shape[1], device=logits.device)
    probabilities = logits.masked_fill(~(context | is_chosen), float("-inf")).softmax(-1)
    others = probabilities.masked_fill(is_chosen | ~context, 0.0).amax(-1)
    return probabilities.masked_fill(~is_chosen, 0.0).sum(-1) - others


class AnchorMargin(EmbeddingReward):
    """The margin by which CLIP prefers an image's prompt to the other texts of its context: Found-RL's anchors.

    In [-1, 1]: p(prompt) − max p(other) of the softmax over the context, above 0 if the prompt fits best. A cosine
    depends on what else the image shows and on the wording of the text; the margin compares one image with texts of one
    wording. The authors' code cuts values below 0 off and divides by a running spread, which advantages do here.

        load("anchor_margin", anchors=["the car turns left", "the car turns right", "the car stops"])
    """

    name, range = "anchor_margin", (-1.0, 1.0)
    source = "Found-RL, arXiv:2602.10458; ys-qu/found-rl:train_rl_asycn_vlm.py"
    licence = "MIT"

    def __init__(
        self,
        anchors: Sequence[str] = (),
        model: str = "openai/clip-vit-base-patch32",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`anchors`: the texts of the one context; empty means those of each sample's, `references["anchors"]`.

        Texts that are as right as the prompt, such as neighbouring actions, are left out of them.
        """
        if anchors and (problem := _problem(anchors)):
            raise RewardError(f"anchors is {anchors!r:.200}; {problem}")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._anchors = list(anchors)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        import torch

        contexts = [self._anchors or _anchors_of(item) for item in items]
        if any(set(each) <= {item.prompt} for item, each in zip(items, contexts, strict=True)):
            raise ScoringFailed(f"{self.name} needs an anchor other than the prompt", "missing")
        texts = list(dict.fromkeys([item.prompt for item in items] + [text for each in contexts for text in each]))
        chosen = torch.tensor([texts.index(item.prompt) for item in items], device=images.device)
        context = torch.tensor([[text in each for text in texts] for each in map(set, contexts)], device=images.device)
        logits = self.encoder.scale() * images @ self.encoder.embed_texts(texts).T
        return chosen_margin(logits, chosen, context)


def _anchors_of(item: RewardInput) -> list[str]:
    found = item.references.get("anchors")
    if found is None:
        raise ScoringFailed("anchor_margin needs anchors, as an argument or in references.anchors", "missing")
    if problem := _problem(found):
        raise ScoringFailed(f"references.anchors is {found!r:.200}; {problem}", "reference")
    return list(found)


def _problem(anchors: object) -> str | None:
    listed = list(anchors) if isinstance(anchors, list | tuple) else []
    if 0 < len(listed) <= MAX_ANCHORS and all(isinstance(each, str) and each.strip() for each in listed):
        return None
    return f"it must be a list of 1 to {MAX_ANCHORS} texts"
