"""Text in images, read by OCR and compared with the requested text."""

from __future__ import annotations

import threading
import unicodedata
from typing import Any

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput

MAX_SIDE = 1280  # width and height above which images are downscaled for the OCR
MIN_SIDE = 384
"""Width and height below which images are upscaled. The OCR's default is twice this: 8 times as slow, and no better at
10 random words."""
MAX_TEXT_LENGTH = 10_000
MAX_ASPECT_RATIO = 4
"""Ratio of the sides above which an image is padded: the OCR scales the *shorter* side up, which for a strip would take
gigabytes."""
QUOTES = (('"', '"'), ("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u00ab", "\u00bb"))


class RenderedText(Reward):
    """Similarity of the text in the image to the requested text, in [0, 1].

    Flow-GRPO's OCR reward: max(0, 1 - edits / requested characters), without case and white space; an image without
    text scores 0. The text is `references["text"]`, or else all double-quoted text in the prompt. Other text in the
    image counts as edits, where Flow-GRPO's code gives 1 as soon as the text is found anywhere. Read by RapidOCR
    (PP-OCRv4, Latin and Chinese), whose models come with the package: pip install mmrl-suite[ocr].
    """

    name, needs, range = "rendered_text", ("image",), (0.0, 1.0)
    source = "Flow-GRPO, arXiv:2505.05470"
    licence = "Apache-2.0"

    def __init__(self, threads: int = 1, least_confidence: float = 0.5) -> None:
        """
        Args:
            threads: CPU threads of the OCR.
            least_confidence: lines below this confidence are dropped, in [0, 1].
        """
        if threads < 1:
            raise RewardError(f"rendered_text: threads is {threads}; it must be at least 1")
        if not 0 <= least_confidence <= 1:
            raise RewardError(f"rendered_text: least_confidence is {least_confidence}; it must be in [0, 1]")
        try:
            from rapidocr_onnxruntime import RapidOCR
        except ImportError as err:
            raise RewardError(
                f"rendered_text needs rapidocr-onnxruntime ({err}): pip install mmrl-suite[ocr], on Python up to 3.12"
            ) from err
        self._reader: Any = RapidOCR(
            intra_op_num_threads=threads,
            inter_op_num_threads=threads,
            text_score=least_confidence,
            det_limit_side_len=MIN_SIDE,
            use_cls=False,  # text that is not upright does not count
        )
        self._lock = threading.Lock()  # the OCR keeps state about the image

    def score_one(self, item: RewardInput) -> float:
        target = target_text(item)
        return text_similarity(self.read(answer_image(item.image)), target)

    def read(self, image: Image.Image) -> str:
        """Return the lines of text in an RGB image, from top to bottom; "" if there are none."""
        with self._lock:
            lines, _ = self._reader(np.asarray(_prepare(image))[:, :, ::-1])  # as BGR
        return "\n".join(text for _, text, _ in lines or [])


def target_text(item: RewardInput) -> str:
    """Return the requested text.

    Raises:
        ScoringFailed: there is none ("missing"), or it is too long or empty ("reference").
    """
    text = item.references.get("text")
    if text is None:
        text = " ".join(quoted_texts(item.prompt)) or None
    if text is None:
        raise ScoringFailed("no text to look for: no references['text'], no double quotes in the prompt", "missing")
    if not isinstance(text, str) or not normalized_text(text) or len(text) > MAX_TEXT_LENGTH:
        raise ScoringFailed(
            f"the text to look for is {text!r:.80}; it has 1 to {MAX_TEXT_LENGTH} characters", "reference"
        )
    return text


def quoted_texts(prompt: str) -> list[str]:
    """Return the double-quoted texts, in order; a quote that is never closed is ignored."""
    found, start = [], 0
    while start < len(prompt):
        closing = next((right for left, right in QUOTES if prompt[start] == left), None)
        end = prompt.find(closing, start + 1) if closing else -1
        if end > start:
            found.append(prompt[start + 1 : end])
            start = end
        start += 1
    return [text for text in found if text.strip()]


def text_similarity(read: str, target: str) -> float:
    """Return max(0, 1 - edits / characters of the target), in [0, 1], without case and white space."""
    from rapidfuzz.distance import Levenshtein

    expected, found = normalized_text(target), normalized_text(read)
    edits = Levenshtein.distance(expected, found, score_cutoff=len(expected))
    return max(0.0, 1 - edits / len(expected))


def normalized_text(text: str) -> str:
    """Return the text without white space and case, in the normal form NFKC."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _prepare(image: Image.Image) -> Image.Image:
    """Return the image downscaled to `MAX_SIDE` and padded to `MAX_ASPECT_RATIO`."""
    if max(image.size) > MAX_SIDE:
        image = image.copy()
        image.thumbnail((MAX_SIDE, MAX_SIDE))
    width, height = image.size
    least = -(-max(width, height) // MAX_ASPECT_RATIO)
    if min(width, height) >= least:
        return image
    padded = Image.new("RGB", (max(width, least), max(height, least)), image.getpixel((0, 0)))
    padded.paste(image, ((padded.width - width) // 2, (padded.height - height) // 2))
    return padded
