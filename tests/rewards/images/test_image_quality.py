"""Natural pictures are clean; the same with a grid or saturated colours are not, and the less so the stronger it is."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.images.image_quality import TILE_SIDE, grid_contrast, oversaturated, tiles
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.scenes import draw

PHOTOS = Path(skimage.__file__).parent / "data"
NAMES = ("artefacts", "artefacts/grid", "artefacts/saturation")


def scores(arrays, **settings):
    """Return the scores {name: [N]} of arrays [H, W, 3] in 0 to 255."""
    pictures = [Image.fromarray(np.clip(np.round(array), 0, 255).astype(np.uint8)) for array in arrays]
    output = load("artefacts", **settings).score([RewardInput("a", 0, "", image=picture) for picture in pictures])
    assert set(output.status["artefacts"]) <= {Status.OK}
    return output.values


def photo(name):
    with Image.open(PHOTOS / f"{name}.png") as opened:
        return np.asarray(opened.convert("RGB"), np.float64)


def ramp(side):
    y, x = np.mgrid[:side, :side] / (side - 1)
    return 255 * np.stack([x, y, (x + y) / 2], -1)


def noise(rng, side, sigma=20):
    return 128 + rng.normal(0, sigma, (side, side, 3))


def pink(rng, side):
    """As photographs, its amplitudes fall as 1 / frequency."""
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None])
    frequency[0, 0] = 1
    waves = [np.fft.ifft2(np.fft.fft2(rng.normal(size=(side, side))) / frequency).real for _ in range(3)]
    return 128 + 45 * np.stack(waves, -1) / np.std(waves)


def scene(rng, side):
    return np.asarray(draw(sample_scene(sample_caption(rng, KINDS), rng), side), np.float64)


def controls():
    rng = np.random.default_rng(0)
    makers = {"ramp": lambda _, side: ramp(side), "noise": noise, "pink": pink, "scene": scene}
    made = {f"{name}{side}": make(rng, side) for side in (64, 130, 256) for name, make in makers.items()}
    return made | {name: photo(name) for name in ("astronaut", "camera", "chelsea", "coffee", "brick", "moon", "text")}


CONTROLS = controls()


def checks(shape, period):
    y, x = np.mgrid[: shape[0], : shape[1]] // (period // 2)
    return np.where((x + y) % 2, 1.0, -1.0)[..., None]


def lines(shape, period):
    y, x = np.mgrid[: shape[0], : shape[1]] % period
    return ((x == 0) | (y == 0)).astype(float)[..., None]


def sine(shape, period):
    return np.broadcast_to(np.cos(2 * np.pi * np.arange(shape[1]) / period), shape[:2])[..., None]


@pytest.mark.integration
def test_natural_images_score_no_artefacts():
    values = scores(CONTROLS.values())
    for name in NAMES:
        assert dict(zip(CONTROLS, values[name].tolist(), strict=True)) == dict.fromkeys(
            CONTROLS, pytest.approx(1, abs=0.02)
        )


@pytest.mark.slow
def test_few_of_540_scenes_and_noise_images_have_a_grid():
    rng = np.random.default_rng(1)
    for make in (scene, noise, pink):
        values = scores([make(rng, side) for side in (32, 64, 96, 128) for _ in range(45)])
        assert np.mean(values["artefacts/grid"] > 0.9) >= 0.97
        assert np.mean(values["artefacts/grid"]) > 0.98


@pytest.mark.parametrize("pattern", [checks, lines, sine])
@pytest.mark.parametrize("period", [2, 4, 8, 16])
def test_grids_of_8_levels_are_detected_in_every_control(pattern, period):
    """For images that hold 16 periods; thin lines 16 apart are masked by content of equal frequency."""
    names = [name for name, array in CONTROLS.items() if min(array.shape[:2]) >= max(16 * period, 64)]
    added = [CONTROLS[name] + 8 * pattern(CONTROLS[name].shape, period) for name in names]
    seen = dict(zip(names, scores(added)["artefacts/grid"].tolist(), strict=True))
    assert np.median(list(seen.values())) < {checks: 0.35, sine: 0.5, lines: 0.8}[pattern], seen
    if pattern is checks:
        assert max(seen.values()) < 0.9, seen


@pytest.mark.integration
@pytest.mark.parametrize("period", [2, 8])
def test_stronger_grids_score_lower(period):
    for name in ("ramp256", "pink256", "scene256", "chelsea"):
        array = 40 + 0.65 * CONTROLS[name]  # away from 0 and 255, where it would be cut
        grid = scores([array + level * checks(array.shape, period) for level in (0, 1, 2, 4, 8, 16, 32)])[
            "artefacts/grid"
        ]
        assert np.all(np.diff(grid) <= 1e-3), (name, grid)
        assert grid[0] > 0.98 and grid[3] < 0.6 and grid[-1] < 0.02


def test_grid_contrast_is_the_root_mean_square_of_the_pattern():
    for side, period in ((64, 8), (130, 4), (256, 16), (97, 2)):
        pattern = np.random.default_rng(period).normal(size=(period, period, 3))
        pattern -= pattern.mean((0, 1))
        whole = np.tile(pattern, (-(-side // period), -(-side // period), 1))[:side, :side] / 100
        expected = np.sqrt(np.square(pattern / 100).mean((0, 1))).max()
        assert grid_contrast(0.5 + whole, [period]) == pytest.approx(expected, rel=1e-3)
        assert grid_contrast(0.5 + whole, [period + 1]) < 0.1 * expected


def test_large_images_are_tiled_completely():
    for size in ((1, 1), (2048, 2048), (2049, 100), (7680, 4320), (5000, 6000)):
        count = np.zeros((size[1] // 20 + 1, size[0] // 20 + 1), int)
        area = 0
        for left, top, right, bottom in tiles(size):
            assert 0 < right - left <= TILE_SIDE and 0 < bottom - top <= TILE_SIDE
            area += (right - left) * (bottom - top)
            count[-(-top // 20) : -(-bottom // 20), -(-left // 20) : -(-right // 20)] += 1
        assert area == size[0] * size[1] and count.max() == 1
    assert tiles((2048, 2048)) == [(0, 0, 2048, 2048)]


@pytest.mark.slow
def test_large_images_score_as_their_tiles_with_little_memory():
    rng = np.random.default_rng(0)
    grid = np.tile(128 + 8 * checks((64, 64), 8), (40, 40, 3))
    plain = Image.fromarray(rng.integers(100, 156, (2560, 2560, 3), dtype=np.uint8))
    pictures = [Image.fromarray(np.round(grid).astype(np.uint8)), plain]
    scores([CONTROLS["pink256"]])  # what is imported for it is not measured
    tracemalloc.start()
    try:
        values = load("artefacts").score([RewardInput("a", 0, "", image=picture) for picture in pictures]).values
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values["artefacts/grid"][0] < 0.2 and values["artefacts/grid"][1] > 0.98
    assert peak < 50 * 2560 * 2560


def test_other_grid_periods_are_detected_on_request():
    array = CONTROLS["pink256"] + 12 * lines((256, 256), 7)
    assert scores([array])["artefacts/grid"] > 0.98
    assert scores([array], periods=[7])["artefacts/grid"] < 0.5


def test_grids_too_few_for_the_image_have_no_contrast():
    array = 128 + 8 * checks((60, 60), 8)
    assert grid_contrast(array / 255, [8]) == 0
    assert grid_contrast(array[:4, :4] / 255) == 0


@pytest.mark.integration
def test_oversaturated_images_score_lower():
    for name in ("astronaut", "chelsea", "coffee", "pink256"):
        array = CONTROLS[name]
        mean = array.mean(2, keepdims=True)
        values = scores([128 + gain * (mean - 128 + gain * (array - mean)) for gain in (1, 2, 4, 8)])[
            "artefacts/saturation"
        ]
        assert np.all(np.diff(values) <= 0), (name, values)
        assert values[0] > 0.98 and values[-1] < 0.5


def test_oversaturated_share_by_hand():
    counted = [[255, 0, 0], [254, 200, 60], [1, 90, 90]]
    grey_or_not_clipped = [[0, 0, 0], [255, 255, 255], [128, 128, 128], [250, 10, 10], [0, 0, 60], [255, 255, 200]]
    row = np.array(counted + grey_or_not_clipped)
    assert oversaturated(row[None] / 255) == 3 / 9
    assert scores([np.full((20, 20, 3), (255, 0, 0))])["artefacts/saturation"] < 0.1
    assert scores([np.full((20, 20, 3), 255), np.zeros((20, 20, 3))])["artefacts"].tolist() == [1, 1]


def test_images_without_artefacts_are_perfect():
    array = CONTROLS["ramp256"]
    parts = scores([array, array + 2 * checks(array.shape, 2), np.full((64, 64, 3), (255, 0, 0))])
    assert parts["artefacts"][0] == 1
    assert np.all(parts["artefacts"][1:] < 1)
    np.testing.assert_allclose(parts["artefacts"], parts["artefacts/grid"] * parts["artefacts/saturation"], rtol=1e-6)


@pytest.mark.parametrize("periods", [[], [1], [2.5], [0, 2], [-4]])
def test_invalid_periods_are_rejected(periods):
    with pytest.raises(RewardError, match="it must be numbers of pixels from 2 up"):
        load("artefacts", periods=periods)
