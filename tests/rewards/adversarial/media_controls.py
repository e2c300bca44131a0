"""Controls of rewards that look at pictures and videos with rules, and of ShapeWorld's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmrl.rewards import Reward, load
from mmrl.rewards.images.geneval import GenEval
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import sample_scene
from mmrl_shapeworld.editing import Edit
from mmrl_shapeworld.inpainting import Hole
from mmrl_shapeworld.motion import Motion, Move, draw_clip
from mmrl_shapeworld.scenes import Scene, Thing, draw
from mmrl_shapeworld.shipped_models import CLIP
from tests.rewards.images.shape_detector import PaletteColours, ShapeDetector

from .controls import STRIP, Control, Place, drawn, filmed, written
from .text_controls import built

RED = Thing("red", "circle", 0.3, 0.5, 0.3)
BLUE = Thing("blue", "square", 0.75, 0.5, 0.3)
PERFECT = draw(Scene((RED, BLUE)), 48)
MIRRORED = draw(Scene((replace(RED, x=0.75), replace(BLUE, x=0.3))), 48)
WHITE = Image.new("RGB", (48, 48), "white")
NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8))
HIDDEN = PERFECT.convert("RGBA")
HIDDEN.putalpha(0)
INCLUDE = [
    {"class": "circle", "count": 1, "color": "red"},
    {"class": "square", "count": 1, "color": "blue", "position": ["right of", 0]},
]
HOSTILE = [WHITE, NOISE, MIRRORED, HIDDEN, Image.new("RGB", (1, 1)), STRIP]


def against_reference(name: str, **args) -> Control:
    rows = [drawn(image, image=PERFECT) for image in (PERFECT, *HOSTILE)]
    return Control(built(name, resize=True, **args), rows[0], rows[1:])


def lpips(place: Place) -> Reward:
    """Return LPIPS on an AlexNet of random weights, whose distance of equal pictures is 0."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(0)
    alex = torchvision.models.alexnet(weights=None).features.state_dict()
    file = str(place.folder / "alexnet.safetensors")
    save_file({f"features.{key}": value for key, value in alex.items()}, file)
    return load("lpips", network=file, resize=True, device="cpu")


def lettered(text: str) -> Image.Image:
    image = Image.new("RGB", (160, 100), "white")
    ImageDraw.Draw(image).text((20, 30), text, "black", ImageFont.load_default(30))
    return image


def striped() -> Image.Image:
    """Return the perfect picture with a grid over it."""
    pixels = np.asarray(PERFECT).astype(int)
    pixels[::8], pixels[:, ::8] = pixels[::8] // 2, pixels[:, ::8] // 2
    return Image.fromarray(pixels.astype(np.uint8))


def shaped(*images, references=None, prompt="", name="shapeworld", **more) -> Control:
    rows = [drawn(image, prompt, **(references or {})) for image in images]
    return Control(built(name, **more), rows[0], rows[1:])


def dino(place: Place) -> Reward:
    """Return subject consistency with a tiny ViT."""
    import torch
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    folder = place.folder / "vit"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    ViTModel(ViTConfig(**sizes, image_size=16, patch_size=8), add_pooling_layer=False).save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    return load("subject_consistency", model=str(folder))


STILL = [PERFECT] * 4
CUT = [PERFECT, NOISE, WHITE, MIRRORED]
CLIPS = [CUT, [PERFECT], [], [PERFECT, WHITE.resize((20, 20))], [PERFECT, STRIP]]


def steady(build) -> Control:
    return Control(build, filmed(STILL), [filmed(clip) for clip in CLIPS])


CAPTION = splits.captions("train")[0]
SCENE = draw(sample_scene(CAPTION, np.random.default_rng(0)))
CIRCLE, SQUARE = Thing("red", "circle", 0.28, 0.28, 0.36), Thing("green", "square", 0.72, 0.7, 0.34)
EDIT = Edit(Scene((CIRCLE, SQUARE)), 0, "blue")
TRIANGLE = Thing("yellow", "triangle", 0.74, 0.72, 0.34)
HOLE = Hole(Scene((CIRCLE, TRIANGLE)), (0, 0, 16, 16), "green", "square")
FILLED = draw(Scene((Thing("green", "square", 0.26, 0.26, 0.34), TRIANGLE)), 32)
LEFT = Motion((Move("red", "circle", "left"),))
MOVING = draw_clip([Scene((Thing("red", "circle", x, 0.5, 0.36),)) for x in (0.7, 0.62, 0.54, 0.46, 0.38)])
FACTS = [{"size": "small", "colour": "red", "shape": "circle", "place": "top left"}]
EMPTY = Image.new("RGB", (32, 32), "white")

CONTROLS: dict[str, Control] = {
    "ssim": against_reference("ssim"),
    "ms_ssim": against_reference("ms_ssim", scales=2),
    "lpips": replace(against_reference("lpips"), build=lpips),
    "geneval": replace(
        shaped(PERFECT, *HOSTILE, references={"include": INCLUDE}),
        build=lambda place: GenEval(ShapeDetector(), PaletteColours()),
    ),
    "rendered_text": shaped(
        lettered("HELLO"), lettered("HELL"), lettered("HELLO HELLO"), WHITE, NOISE, STRIP,
        references={"text": "HELLO"}, name="rendered_text",
    ),
    "artefacts": shaped(PERFECT, striped(), STRIP, name="artefacts"),
    "compressibility": shaped(WHITE, NOISE, PERFECT, STRIP, name="compressibility"),
    "diversity": Control(
        built("diversity"), drawn(NOISE), [drawn(WHITE), drawn(WHITE.copy()), drawn(STRIP)], others=[drawn(WHITE)] * 2
    ),
    "temporal_flickering": steady(built("temporal_flickering")),
    "background_consistency": steady(built("background_consistency", model=str(CLIP))),
    "subject_consistency": steady(dino),
    "reference_identity": Control(
        built("reference_identity", model=str(CLIP)),
        filmed(STILL, reference_images=[PERFECT]),
        [filmed(clip, reference_images=[PERFECT]) for clip in (CUT, [WHITE] * 4, [PERFECT], [])],
    ),
    "shapeworld_consistency": steady(built("shapeworld_consistency")),
    "shapeworld": shaped(SCENE, EMPTY, NOISE, STRIP, references={"answer": CAPTION.as_dict()}),
    "shapeworld_heldout": shaped(
        SCENE, EMPTY, NOISE, STRIP, references={"answer": CAPTION.as_dict()}, name="shapeworld_heldout"
    ),
    "shapeworld_clip": shaped(SCENE, EMPTY, STRIP, prompt=str(CAPTION), name="shapeworld_clip"),
    "shapeworld_geneval": shaped(
        PERFECT, WHITE, MIRRORED, STRIP, references={"include": INCLUDE}, name="shapeworld_geneval"
    ),
    "shapeworld_edit": shaped(
        draw(EDIT.target, 32), draw(EDIT.source, 32), EMPTY, STRIP,
        references={"answer": EDIT.as_dict()}, name="shapeworld_edit",
    ),
    "shapeworld_inpaint": shaped(
        FILLED, draw(HOLE.source, 32), EMPTY, STRIP, references={"answer": HOLE.as_dict()}, name="shapeworld_inpaint"
    ),
    "shapeworld_video": Control(
        built("shapeworld_video"),
        filmed(MOVING, answer=LEFT.as_dict()),
        [filmed(clip, answer=LEFT.as_dict()) for clip in (MOVING[::-1], MOVING[:1] * 5, [EMPTY] * 5)],
    ),
    "shapeworld_facts": Control(
        built("shapeworld_facts"),
        written("a small red circle top left", facts=FACTS),
        [
            written(text, facts=FACTS)
            for text in ("", "a small red circle", "a red blue green circle", "a small red circle top left " * 9, "\0")
        ],
    ),
}  # fmt: skip
