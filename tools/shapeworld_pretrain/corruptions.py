"""Pictures that no caption is true of, made from good ones: what a policy draws when it tries to fool a scorer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from mmrl_shapeworld.scenes import BACKGROUND, COLOURS, Scene, Thing, draw, thing_mask

PALETTE = np.array(list(COLOURS.values()), np.float32)
PIXELS = 32
Picture = NDArray[np.float32]  # [32, 32, 3] in [0, 255]


def break_picture(scene: Scene, other: Scene, kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """[32, 32, 3]; the picture of a scene with one fault, of a kind named in `FAULTS`; `other` is for mixtures."""
    picture = np.asarray(draw(scene, PIXELS), np.float32)
    fault = FAULTS[kind](picture.copy(), scene, other, rng)
    return np.asarray(fault.clip(0, 255).round(), np.uint8)


def _one_mask(scene: Scene, rng: np.random.Generator) -> tuple[Thing, NDArray[np.bool_]]:
    thing = scene.things[rng.integers(len(scene.things))]
    return thing, thing_mask(thing, PIXELS)


def _half(thing: Thing, rng: np.random.Generator) -> NDArray[np.bool_]:
    """The pixels on one side of a line at any angle near a thing's centre."""
    angle, shift = rng.uniform(0, 2 * np.pi), rng.uniform(-0.15, 0.15) * thing.side
    y, x = (np.mgrid[:PIXELS, :PIXELS] + 0.5) / PIXELS
    return np.asarray((x - thing.x) * np.cos(angle) + (y - thing.y) * np.sin(angle) > shift)


def two_tone(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Half of a thing in another colour of the palette."""
    thing, mask = _one_mask(scene, rng)
    choices = [rgb for name, rgb in COLOURS.items() if name != thing.colour]
    picture[mask & _half(thing, rng)] = choices[rng.integers(len(choices))]
    return picture


def cut(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Half of a thing missing."""
    thing, mask = _one_mask(scene, rng)
    picture[mask & _half(thing, rng)] = BACKGROUND
    return picture


def off_palette(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """A thing in a colour that has no name."""
    _, mask = _one_mask(scene, rng)
    known = np.vstack([PALETTE, np.array(BACKGROUND, np.float32)])
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(known - colour, axis=1).min() > 90:
            picture[mask] = colour
            return picture


def odd_shape(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """A thing that is a ring, a cross, a diamond, a bar or a triangle on its head."""
    thing, mask = _one_mask(scene, rng)
    picture[mask] = BACKGROUND
    y, x = (np.mgrid[:PIXELS, :PIXELS] + 0.5) / PIXELS
    u, v = (x - thing.x) / thing.side, (y - thing.y) / thing.side  # -1/2 to 1/2 inside the box
    box = (abs(u) <= 0.5) & (abs(v) <= 0.5)
    if rng.random() < 0.5:
        u, v = v, u
    odd = [
        box & (u**2 + v**2 <= 0.25) & (u**2 + v**2 >= 0.09),
        box & (np.minimum(abs(u), abs(v)) <= 0.15),
        box & (abs(u) + abs(v) <= 0.5),
        box & (abs(u) <= 0.22),
        box & (abs((x - thing.x) / thing.side) <= (0.5 - (y - thing.y) / thing.side) / 2),
    ][rng.integers(5)]
    picture[odd] = COLOURS[thing.colour]
    return picture


def debris(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Three to eight scraps of colour, each too small to be a thing."""
    for _ in range(rng.integers(3, 9)):
        height, width = rng.integers(1, 4, 2)
        top, left = rng.integers(0, PIXELS - 3, 2)
        picture[top : top + height, left : left + width] = PALETTE[rng.integers(len(PALETTE))]
    return picture


def smudge(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """A soft stain of any colour across things and background."""
    y, x = (np.mgrid[:PIXELS, :PIXELS] + 0.5) / PIXELS
    cx, cy = rng.uniform(0.1, 0.9, 2)
    wide, high = rng.uniform(0.1, 0.3, 2)
    stain = np.exp(-(((x - cx) / wide) ** 2) - ((y - cy) / high) ** 2)[..., None]
    return np.asarray(picture + stain * rng.uniform(0.7, 1) * (rng.uniform(0, 255, 3) - picture), np.float32)


def stained_background(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """A background that is grey, dark or coloured."""
    covered = np.any([thing_mask(thing, PIXELS) for thing in scene.things], axis=0)
    while True:
        colour = rng.uniform(0, 255, 3)
        if np.linalg.norm(colour - np.array(BACKGROUND)) > 80:
            picture[~covered] = colour
            return picture


def blur(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Out of focus by far more than the autoencoder ever is."""
    return np.asarray(ndimage.gaussian_filter(picture, (rng.uniform(1.8, 4),) * 2 + (0,), mode="nearest"), np.float32)


def noise(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Strong noise on every pixel."""
    return np.asarray(picture + rng.normal(0, rng.uniform(45, 100), picture.shape), np.float32)


def mixture(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """Two pictures at once, each half transparent."""
    share = rng.uniform(0.35, 0.65)
    return np.asarray(share * picture + (1 - share) * np.asarray(draw(other, PIXELS), np.float32), np.float32)


def overlap(picture: Picture, scene: Scene, other: Scene, rng: np.random.Generator) -> Picture:
    """A second thing pasted over the edge of one."""
    thing, _ = _one_mask(scene, rng)
    angle = rng.uniform(0, 2 * np.pi)
    reach = rng.uniform(0.35, 0.55) * thing.side
    kind = other.things[0]
    x, y = np.clip([thing.x + reach * np.cos(angle), thing.y + reach * np.sin(angle)], 0.1, 0.9)
    colours = [colour for colour in COLOURS if colour != thing.colour]
    pasted = Thing(colours[rng.integers(len(colours))], kind.shape, float(x), float(y), 0.7 * thing.side)
    picture[thing_mask(pasted, PIXELS)] = COLOURS[pasted.colour]
    return picture


FAULTS: dict[str, Callable[[Picture, Scene, Scene, np.random.Generator], Picture]] = {
    fault.__name__: fault
    for fault in (
        two_tone,
        cut,
        off_palette,
        odd_shape,
        debris,
        smudge,
        stained_background,
        blur,
        noise,
        mixture,
        overlap,
    )
}
