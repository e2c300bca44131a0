"""Text in pictures: read by OCR and compared with the text that was asked for."""

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

LONGEST_SIDE = 1280
"""Larger pictures are made smaller before they are read."""
SHORTEST_SIDE = 384
"""Smaller ones are made larger. Twice this is the reader's own habit: no better at 10 random words, 8 times as slow."""
LONGEST_TEXT = 10_000
NARROWEST = 4
"""Pictures longer than this times their width are widened by a margin: the reader scales the *shorter* side up, which
would make gigabytes of a strip."""
QUOTES = (('"', '"'), ("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u00ab", "\u00bb"))


class RenderedText(Reward):
    """How well the text in the picture is the text that was asked for, in [0, 1].

    Flow-GRPO's OCR reward: max(0, 1 - edits / characters asked for), case and white space set aside; nothing found
    scores 0. The text is `references["text"]`, or else all that stands in double quotes in the prompt. Other text in
    the picture counts as edits, where Flow-GRPO's code gives full marks as soon as the text is found somewhere.
    Read by RapidOCR (PP-OCRv4, Latin and Chinese), whose models come with the package: pip install mmrl-suite[ocr].
    """

    name, needs, range = "rendered_text", ("image",), (0.0, 1.0)
    source = "Flow-GRPO, arXiv:2505.05470"
    licence = "Apache-2.0"

    def __init__(self, threads: int = 1, least_confidence: float = 0.5) -> None:
        """
        Args:
            threads: of the reader, on the CPU.
            least_confidence: lines that are read with less are left out, in [0, 1].
        """
        if threads < 1:
            raise RewardError(f"rendered_text: threads is {threads}; at least 1 is due")
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
            det_limit_side_len=SHORTEST_SIDE,
            use_cls=False,  # text stands upright, or it was not drawn as asked
        )
        self._reading = threading.Lock()  # the reader keeps notes about the picture that it reads

    def score_one(self, item: RewardInput) -> float:
        """Read the picture, and compare."""
        due = asked_for(item)
        return likeness(self.read(answer_image(item.image)), due)

    def read(self, picture: Image.Image) -> str:
        """The lines of text in an RGB picture, from top to bottom; empty if there are none."""
        with self._reading:
            lines, _ = self._reader(np.asarray(_readable(picture))[:, :, ::-1])  # as BGR
        return "\n".join(text for _, text, _ in lines or [])


def asked_for(item: RewardInput) -> str:
    """The text that the picture should hold.

    Raises:
        ScoringFailed: no text is named ("missing"), or it is too long or empty ("reference").
    """
    given = item.references.get("text")
    if given is None:
        given = " ".join(quoted(item.prompt)) or None
    if given is None:
        raise ScoringFailed(
            "no text to look for: neither references['text'] nor double quotes in the prompt", "missing"
        )
    if not isinstance(given, str) or not letters(given) or len(given) > LONGEST_TEXT:
        raise ScoringFailed(
            f"the text to look for is {given!r:.80}; 1 to {LONGEST_TEXT} characters are due", "reference"
        )
    return given


def quoted(prompt: str) -> list[str]:
    """What stands in double quotes, in order; a quote that is never closed holds nothing."""
    found, start = [], 0
    while start < len(prompt):
        closing = next((right for left, right in QUOTES if prompt[start] == left), None)
        end = prompt.find(closing, start + 1) if closing else -1
        if end > start:
            found.append(prompt[start + 1 : end])
            start = end
        start += 1
    return [text for text in found if text.strip()]


def likeness(read: str, due: str) -> float:
    """max(0, 1 - edits / characters due), in [0, 1]: of texts without case and white space."""
    from rapidfuzz.distance import Levenshtein

    wanted, seen = letters(due), letters(read)
    edits = Levenshtein.distance(wanted, seen, score_cutoff=len(wanted))
    return max(0.0, 1 - edits / len(wanted))


def letters(text: str) -> str:
    """Without white space and case, and with one form of each character (NFKC)."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _readable(picture: Image.Image) -> Image.Image:
    """No larger than the reader needs, and no strip."""
    if max(picture.size) > LONGEST_SIDE:
        picture = picture.copy()
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    width, height = picture.size
    least = -(-max(width, height) // NARROWEST)
    if min(width, height) >= least:
        return picture
    wider = Image.new("RGB", (max(width, least), max(height, least)), picture.getpixel((0, 0)))
    wider.paste(picture, ((wider.width - width) // 2, (wider.height - height) // 2))
    return wider
