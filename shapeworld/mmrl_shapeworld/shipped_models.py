"""Folders of the shipped models, by the names that `policy.model` takes: `shapeworld`, `shapeworld:unet` and so on.

`model_folder` is the package's entry point of the group `mmrl.models`. This module imports no model library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
GENERATORS: Mapping[str, Path] = {
    "sd3": WEIGHTS / "sd3-shapes-32",
    "unet": WEIGHTS / "sd-shapes-32",
    "edit": WEIGHTS / "sd-edit-shapes-32",
    "inpaint": WEIGHTS / "sd-inpaint-shapes-32",
    "masks": WEIGHTS / "sd-masks-shapes-32",
    "video": WEIGHTS / "sd-video-shapes-32",
    "swap": WEIGHTS / "vace-swap-shapes-32",
}
"""Pipelines of diffusers. The first is also the model of plain `shapeworld`."""
PIPELINE = GENERATORS["sd3"]
VLM = WEIGHTS / "vlm-shapes"
REASONERS: Mapping[str, Path] = {"sums": WEIGHTS / "vlm-sums", "remainders": WEIGHTS / "vlm-remainders"}
"""Language models of `mmrl_shapeworld.reasoning`, by family."""
SECOND_TURNS = WEIGHTS / "vlm-sums-twice"
"""The language model of sums that was taught a second turn."""
TAUGHT_SUMS = WEIGHTS / "vlm-sums-taught"
"""The language model of sums that writes in full and has one habit: a teacher of the one before."""
CONVENTIONS = WEIGHTS / "vlm-sums-conventions"
"""The language model of sums that calculates in two ways (`mmrl_shapeworld.reasoning.two_conventions`)."""
COUNTDOWN = WEIGHTS / "vlm-countdown"
"""The language model of sums that was taught the form of answers to puzzles (`mmrl_shapeworld.reasoning.countdown`)."""
CALLS = WEIGHTS / "vlm-calls"
"""The language model that calls a tool for calculations."""
SHOP = WEIGHTS / "vlm-shop"
"""The language model that shops in `mmrl_shapeworld.shop`."""
SHOP_PROGRESS = WEIGHTS / "shop-progress"
"""The estimator of what a turn in the shop contributes, from episodes of that model before it is trained."""
VLM_WORLDS = WEIGHTS / "vlm-worlds"
"""The VLM of the questions of `mmrl_shapeworld.worlds`."""
VLM_ZOOM = WEIGHTS / "vlm-zoom"
"""The VLM that looks closer at the pages of `mmrl_shapeworld.worlds.zoom_pages`."""
VLM_PAGES = WEIGHTS / "vlm-pages"
"""The VLM that searches stacks of pages (`mmrl_shapeworld.worlds.page_stacks`)."""
VLM_SCREENS = WEIGHTS / "vlm-screens"
"""The VLM that clicks buttons over several turns, of `mmrl_shapeworld.worlds.button_environment`."""
VLM_SCREENS_LONGER = WEIGHTS / "vlm-screens-longer"
"""The same, trained for almost twice as long: it finds a button by its colour more often than by chance."""
VLM_ROOMS = WEIGHTS / "vlm-rooms"
"""The VLM that places blocks around a table over several turns, of `mmrl_shapeworld.worlds.room_environment`."""
VLM_JUDGE = WEIGHTS / "vlm-judge"
"""The VLM that judges pairs of pictures, of `mmrl_shapeworld.worlds.picture_pairs`."""
IMAGE_AR = WEIGHTS / "ar-shapes-32"
"""The token image generator."""
SCALES = WEIGHTS / "scales-shapes-32"
"""The token image generator that draws scale by scale (`mmrl_shapeworld.scale_model`)."""
UNIFIED = WEIGHTS / "unified-shapes-32"
"""The unified model, which draws and looks (`mmrl_shapeworld.unified_model`)."""
UNIFIED_LOOKING = WEIGHTS / "unified-looking-32"
"""The same, trained on until it looks better than it draws."""
DIFFUSION_DECODER = WEIGHTS / "decoder-shapes-32"
"""A diffusion decoder of its codes, of `mmrl_shapeworld.diffused_pictures`."""
CLIP = WEIGHTS / "clip-shapes"
OPEN_CLIP = WEIGHTS / "open-clip-shapes"
"""The same CLIP in the format of open_clip."""
OBSERVER = WEIGHTS / "observer.safetensors"

_FOLDERS: Mapping[str, Mapping[str, Path]] = {
    "pipeline": {"": PIPELINE, **GENERATORS},
    "vlm": {
        "": VLM,
        **REASONERS,
        "sums-twice": SECOND_TURNS,
        "sums-taught": TAUGHT_SUMS,
        "sums-conventions": CONVENTIONS,
        "countdown": COUNTDOWN,
        "calls": CALLS,
        "shop": SHOP,
        "vlm-worlds": VLM_WORLDS,
        "screens": VLM_SCREENS,
        "screens-longer": VLM_SCREENS_LONGER,
        "zoom": VLM_ZOOM,
        "pages": VLM_PAGES,
        "rooms": VLM_ROOMS,
        "judge": VLM_JUDGE,
        "unified": UNIFIED,
        "unified-looking": UNIFIED_LOOKING,
    },
    "image_tokens": {"": IMAGE_AR, "scales": SCALES, "unified": UNIFIED, "unified-looking": UNIFIED_LOOKING},
    "clip": {"": CLIP},
    "progress": {"shop": SHOP_PROGRESS},
}


def model_folder(name: str, kind: str) -> Path:
    """Return the folder of a shipped model.

    Args:
        name: The text after `shapeworld:`; empty for plain `shapeworld`.
        kind: `policy.kind`: pipeline, vlm or image_tokens; clip, the encoder of a reward model, or
            progress, an estimator of what turns contribute.

    Raises:
        KeyError: No such model ships. The message lists the models of this kind.
    """
    folders = _FOLDERS[kind]
    if name not in folders:
        known = ", ".join(f"shapeworld:{each}" if each else "shapeworld" for each in folders)
        raise KeyError(f"no {kind} shapeworld:{name} ships: choose one of {known}")
    return folders[name]
