"""The models in the package, by the names that `policy.model` takes: `shapeworld`, `shapeworld:unet` and so on.

No library is loaded here: a name becomes a folder.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
PREFIX = "shapeworld"
GENERATORS: dict[str, Path] = {
    "sd3": WEIGHTS / "sd3-shapes-32",
    "unet": WEIGHTS / "sd-shapes-32",
    "edit": WEIGHTS / "sd-edit-shapes-32",
    "inpaint": WEIGHTS / "sd-inpaint-shapes-32",
    "video": WEIGHTS / "sd-video-shapes-32",
}
"""Pipelines of diffusers: `shapeworld:NAME`. Plain `shapeworld` is the first."""

PAINTER = WEIGHTS / "ar-shapes-32"
"""What plain `shapeworld` is to a policy that draws token by token."""


def is_shipped(model: str) -> bool:
    """Whether a model's name is one of the package's own, `shapeworld` or `shapeworld:NAME`."""
    return model == PREFIX or model.startswith(PREFIX + ":")


def pipeline_folder(model: str) -> Path:
    """The folder of a shipped pipeline.

    Raises:
        KeyError: there is none of that name; the message lists those that there are.
    """
    _, _, name = model.partition(":")
    if model == PREFIX:
        name = next(iter(GENERATORS))
    if name not in GENERATORS:
        known = ", ".join(f"{PREFIX}:{each}" for each in GENERATORS)
        raise KeyError(f"no pipeline {model} ships: choose one of {known}")
    return GENERATORS[name]
