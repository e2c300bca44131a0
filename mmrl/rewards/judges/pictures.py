"""Pictures and videos as a request carries them: data URLs of bounded size."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Literal

from PIL import Image

from mmrl.rewards.images.safety import answer_picture

PictureFormat = Literal["png", "jpeg"]

JPEG_QUALITY = 92


def data_url(image: Any, form: PictureFormat, longest_side: int) -> str:
    """The picture as `data:image/...;base64,...`, made smaller (never larger) so that no side exceeds `longest_side`.

    Raises:
        InvalidAnswer, ScoringFailed: as `answer_picture`.
    """
    shown = answer_picture(image)
    if max(shown.size) > longest_side:
        shown = shown.copy()
        shown.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    if form == "png":
        shown.save(buffer, "PNG", compress_level=1)  # a quarter of the usual time for an eighth more bytes
    else:
        shown.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/{form};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def spread(frames: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the frames, evenly from the first to the last; the middle one if only one may be shown."""
    if len(frames) <= most:
        return list(frames)
    if most == 1:
        return [frames[len(frames) // 2]]
    return [frames[round(i * (len(frames) - 1) / (most - 1))] for i in range(most)]
