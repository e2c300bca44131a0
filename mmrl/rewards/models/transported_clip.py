"""The cosine of a text and a clip, once optimal transport has carried texts to where real clips lie (PISCES)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.errors import DataError
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.images.video_consistency import BATCH_FRAMES, answer_frames
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder
from mmrl.rewards.models.model_files import ResolvedFile

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

LEAST = 8
"""The fewest real clips that a distribution is estimated from."""


class TransportedCLIP(EmbeddingReward):
    """Cosine of an image's or video's vector and its prompt's, after transport onto the vectors of real media: PISCES.

    In [-1, 1]. Vectors of texts lie apart from those of what they describe, and vary in other directions; the optimal
    transport map between both distributions carries a text to where real media of its kind lie. It needs real media
    with their texts, and no label of quality. A video's vector is the mean of its frames'. Differs from the paper: the
    map is that of the Gaussians of both sets, in closed form, where theirs is a network that is trained; there is no
    reward of tokens; the encoder is a CLIP. Gradients reach images, not videos.
    """

    name, range = "transported_clip", (-1.0, 1.0)
    source = "the quality reward of PISCES, arXiv:2602.01624"
    licence = "that of the named model"
    needs = ()

    def __init__(
        self,
        real: str | Sequence[tuple[str, Sequence[Image.Image]]],
        model: str = "openai/clip-vit-large-patch14",
        share: float = 1.0,
        ridge: float = 0.1,
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """
        Args:
            real: a JSONL file of samples with a `prompt` and one of `images` or `videos`; in Python also texts with
                the frames that they describe.
            model: any CLIP or SigLIP, by path or hub id (see `load_encoder`).
            share: how much of their way texts are carried, in [0, 1]; 0 is the plain cosine.
            ridge: what is added to the variance of each direction, as a share of the mean one, above 0: more for fewer
                real media.
            processor: as of `clip_score`.
            revision: as of `clip_score`.
            device: "auto" is the GPU if there is one.
            dtype: of the encoder.
        """
        if not 0 <= share <= 1 or ridge <= 0:
            raise RewardError(f"{self.name}: share is {share} and ridge {ridge}; expected [0, 1] and above 0")
        known = _real_media(real) if isinstance(real, str) else list(real)
        if len(known) < LEAST:
            raise RewardError(f"{self.name}: real has {len(known)} media; it needs at least {LEAST}")
        files = [ResolvedFile(Path(real), real)] if isinstance(real, str) else []  # for caches of scores
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device, head_files=files)
        import torch

        from mmrl.rewards.models.optimal_transport import GaussianTransport

        with torch.inference_mode():
            texts = self.encoder.embed_texts([text for text, _ in known])
            media = self._embed_media([frames for _, frames in known])
        self._transport, self._share = GaussianTransport.fit(texts, media, ridge), share

    def answer_media(self, item: RewardInput) -> list[Image.Image]:
        """Return the frames of a video, or an image as the only one."""
        if item.video is not None:
            return answer_frames(item.video)
        if item.image is None:
            raise ScoringFailed(f"{self.name} scores images and videos, and the answer is neither", "wrong_type")
        return [answer_image(item.image)]

    def score_images(self, images: Sequence[Any], items: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores of answers, given as lists of frames."""
        return self.score_embeddings(self._embed_media(images), items)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        from torch.nn.functional import normalize

        texts = self._transport(self.encoder.embed_texts([item.prompt for item in items]), self._share)
        return (images * normalize(texts, dim=-1)).sum(-1).clamp(-1, 1)

    def _embed_media(self, media: Sequence[Sequence[Image.Image]]) -> Tensor:
        """Return the unit vectors [B, D] of lists of frames."""
        import torch
        from torch.nn.functional import normalize

        frames = [frame for each in media for frame in each]
        parts = [frames[at : at + BATCH_FRAMES] for at in range(0, len(frames), BATCH_FRAMES)]
        vectors = torch.cat([self.encoder.embed_pixels(self.pixels(part).to(self.device)) for part in parts])
        means = [own.mean(0) for own in torch.split(vectors, [len(each) for each in media])]
        return normalize(torch.stack(means), dim=-1)


def _real_media(path: str) -> list[tuple[str, list[Image.Image]]]:
    """Return the prompts of a file with the frames that belong to them.

    Raises:
        RewardError: the file cannot be read, or a line has not one image or video.
    """
    from mmrl.data.jsonl import read_samples
    from mmrl.data.media.decode import load_image, load_video, with_media_in

    found = []
    try:
        for each in read_samples(path):
            sample = with_media_in(each, Path(path).parent)
            if len(sample.images) + len(sample.videos) != 1:
                raise RewardError(f"{path}: sample {sample.id!r} must have one image or one video")
            frames = [load_image(uri, sample.id) for uri in sample.images]
            for uri in sample.videos:
                frames = load_video(uri, sample.id)
            found.append((sample.prompt, frames))
    except (DataError, OSError) as err:
        raise RewardError(f"transported_clip: real: {err}") from None
    return found
