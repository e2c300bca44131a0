"""Building blocks of the code in a model card that generates an image without mmrl (`ImageTokenModel.snippet`)."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mmrl.config.sampling import ImageTokenSamplingConfig

PIXELS_TO_IMAGE = (
    "image = Image.fromarray(((pixels.detach().float().clamp(-1, 1) + 1) * 127.5).round().byte().cpu().numpy())"
)
"""The line that makes `image` from `pixels` [height, width, 3] in [-1, 1]."""


@dataclass(frozen=True)
class SnippetRequest:
    """The folder, the prompt and the sampling that a snippet shows."""

    folder: str
    """The folder's name or its Hub id."""
    dtype: str
    prompt: str
    sampling: ImageTokenSamplingConfig

    @property
    def load_arguments(self) -> str:
        """The arguments of `from_pretrained`."""
        return f"{quote(self.folder)}, dtype=torch.{self.dtype}"

    @property
    def generate_arguments(self) -> str:
        """The sampling arguments of `generate`; `top_k=0` because the default of transformers is 50."""
        sampling = self.sampling
        if not sampling.temperature:
            return "do_sample=False"
        return (
            f"do_sample=True, temperature={sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k or 0}"
        )

    def empty_prompt_lines(self, template: str) -> list[str]:
        """Return the line that defines `empty` for guidance, if there is any; `template` has {} for its text."""
        if self.sampling.guidance_scale == 1:
            return []
        return ["empty = " + template.format(quote(self.sampling.negative_prompt or ""))]

    def guidance_lines(self, ids: str, mask: str) -> list[str]:
        """Return the guidance arguments of `generate`, one a line, if there is guidance."""
        if self.sampling.guidance_scale == 1:
            return []
        return [
            f"    guidance_scale={self.sampling.guidance_scale},",
            f"    negative_prompt_ids={ids},",
            f"    negative_prompt_attention_mask={mask},",
        ]


def quote(text: str) -> str:
    """Return a text as a Python literal in double quotes. User text enters code through this function only."""
    return json.dumps(text, ensure_ascii=False)
