"""CW-SSIM against its definition: phases by hand, shifts, and pictures that texts draw."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image

from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError
from mmrl.rewards.images.cw_ssim import complex_bands, cw_ssim, similarity
from mmrl.rewards.images.similarity import ssim

HERE = f"{__name__}:drawn"


def wave(cycles: float, phase: float = 0.0, across: bool = True):
    """A sinusoid of 64 x 64 pixels, [1, 64, 64] in [27, 227]."""
    line = 127 + 100 * torch.sin(2 * math.pi * cycles * torch.arange(64, dtype=torch.float64) / 64 + phase)
    picture = line.expand(64, 64)
    return (picture if across else picture.T)[None]


def noise(seed: int):
    return 255 * torch.rand(1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(text: str) -> Image.Image:
    """A picture of grey stripes, one for each digit."""
    if not text.isdigit():
        raise InvalidAnswer("no digits")
    image = Image.new("RGB", (8 * len(text), 32))
    for place, digit in enumerate(text):
        image.paste((25 * int(digit),) * 3, (8 * place, 0, 8 * place + 8, 32))
    return image


def test_one_phase_for_a_whole_window_changes_nothing_and_amplitudes_do():
    ones = torch.ones(1, 1, 9, 9, dtype=torch.complex128)
    turned = ones * complex(math.cos(0.7), math.sin(0.7))
    torch.testing.assert_close(similarity(ones, turned, constant=0.0), torch.ones(1, 1, 3, 3, dtype=torch.float64))
    got = similarity(3 * ones, turned, constant=0.0)  # 2ab / (a² + b²) with a = 3 and b = 1
    torch.testing.assert_close(got, torch.full((1, 1, 3, 3), 0.6, dtype=torch.float64))


def test_opposite_phases_within_a_window_cancel_and_nothing_beside_nothing_is_alike():
    ones = torch.ones(1, 1, 2, 2, dtype=torch.complex128)
    signs = torch.tensor([[[[1.0, -1.0], [-1.0, 1.0]]]], dtype=torch.complex128)
    assert similarity(ones, signs, window=2, constant=0.0).item() == 0
    assert similarity(ones, signs, window=2, constant=8.0).item() == pytest.approx(8 / (8 + 8))
    assert similarity(0 * ones, 0 * ones, window=2).item() == 1


def test_a_band_sees_its_own_frequency_and_direction():
    # 16 cycles on 64 pixels are pi / 2 a pixel, the middle of the first octave; along x, that is direction 0
    across, down = (complex_bands(wave(16, across=way), 3, 4).abs().mean((0, 2, 3)) for way in (True, False))
    assert across.argmax() == 0 and down.argmax() == 2
    torch.testing.assert_close(across[0], torch.tensor(50.0, dtype=torch.float64))  # half of a real sinusoid's 100
    assert across[2] < 1e-9 and across[8:].max() < 1e-9
    torch.testing.assert_close(complex_bands(wave(8), 3, 4).abs().mean((0, 2, 3)).argmax(), torch.tensor(4))


def test_a_shift_is_seen_by_ssim_and_not_by_cw_ssim():
    here, there = wave(8), wave(8, phase=math.pi / 2)
    assert cw_ssim(here, there).item() == pytest.approx(1)
    assert ssim(here[:, None] / 255, there[:, None] / 255).item() < 0.2
    shifted, other = torch.roll(noise(0), 1, -1), noise(1)
    assert cw_ssim(noise(0), shifted).item() > cw_ssim(noise(0), other).item() + 0.1


def test_it_is_symmetric_1_for_equal_pictures_and_low_for_others():
    first, second = noise(0), noise(1)
    assert cw_ssim(first, first).item() == pytest.approx(1)
    assert cw_ssim(first, second).item() == pytest.approx(cw_ssim(second, first).item())
    assert 0 <= cw_ssim(first, second).item() < 0.6


def test_texts_are_compared_by_what_they_draw():
    reward = load("rendered_cw_ssim", renderer=HERE)
    texts = ["1234", "<think>no</think>1234", "1235", "1919", "12", "none", ""]
    output = reward.score([RewardInput("0", 0, "?", text=text, references={"answer": "1234"}) for text in texts])
    values, status = output.values["rendered_cw_ssim"].tolist(), output.status["rendered_cw_ssim"]
    assert values[:2] == [1, 1] and 1 > values[2] > values[3] and values[4] < 1 and values[5:] == [0, 0]
    assert status == [Status.OK] * 5 + [Status.INVALID] * 2
    broken = reward.score([RewardInput("0", 0, "?", text="1234", references={"answer": truth}) for truth in ("x", 3)])
    assert broken.status["rendered_cw_ssim"] == [Status.ERROR] * 2


def test_stored_scores_are_those_of_the_renderer_as_it_is_now(tmp_path):
    path = tmp_path / "draws.py"
    path.write_text("def draw(text): ...\n")
    first, again = (load("rendered_cw_ssim", renderer=f"{path}:draw").fingerprint() for _ in range(2))
    path.write_text("def draw(text): return None\n")
    assert first == again != load("rendered_cw_ssim", renderer=f"{path}:draw").fingerprint()
    with pytest.raises(RewardError, match="rendered_cw_ssim cannot be cached: the source of "):
        load("rendered_cw_ssim", renderer="math:sqrt").fingerprint()


def test_a_renderer_that_is_none_is_named():
    with pytest.raises(RewardError, match="cannot be imported"):
        load("rendered_cw_ssim", renderer="no_such_package:draw")
    with pytest.raises(RewardError, match="at least 1 and 2"):
        load("rendered_cw_ssim", renderer=HERE, orientations=1)
