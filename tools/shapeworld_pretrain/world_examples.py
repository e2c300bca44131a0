"""Draws one example of each world, in its usual form and in each out-of-distribution form, side by side.

python -m tools.shapeworld_pretrain.world_examples docs/images/worlds.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from mmrl_shapeworld.vqa.canvas import PIXELS, colours_of
from mmrl_shapeworld.worlds.world_splits import WORLDS, world_questions

SCALE, GAP, TEXT = 2, 14, 30
"""Pixels to a pixel of a picture, between pictures, and above each row for its captions."""


def sheet() -> Image.Image:
    """Return a page with a row for each world; clips show their last frame."""
    columns = 1 + max(len(world.unseen) for world in WORLDS.values())
    side = SCALE * PIXELS
    picture = Image.new("RGB", (GAP + columns * (side + 8 * GAP), len(WORLDS) * (side + TEXT + GAP)), "white")
    pen = ImageDraw.Draw(picture)
    for row, name in enumerate(WORLDS):
        examples = {name: world_questions(name, "development")[1][1]}
        for source, question in world_questions(name, "ood")[: len(WORLDS[name].unseen)]:
            examples[source] = question
        for column, (source, question) in enumerate(examples.items()):
            x, y = GAP + column * (side + 8 * GAP), row * (side + TEXT + GAP) + TEXT
            frame = Image.fromarray(np.ascontiguousarray(colours_of(question.frames[-1])))
            picture.paste(frame.resize((side, side), Image.Resampling.NEAREST), (x, y))
            pen.rectangle((x - 1, y - 1, x + side, y + side), outline=(160, 160, 160))
            pen.text((x, y - 26), source, fill=(150, 60, 190))
            pen.text((x, y - 14), question.prompt[:36], fill=(30, 30, 30))
    return picture


if __name__ == "__main__":
    sheet().quantize(32).save(Path(sys.argv[1]), optimize=True)
