"""SSIM is scikit-image's, MS-SSIM is torchmetrics' parts put together, and both are 1 for the same picture alone."""

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.metrics import structural_similarity
from torchmetrics.functional.image.ssim import _ssim_update, multiscale_structural_similarity_index_measure

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.images.similarity import SCALE_WEIGHTS, ms_ssim, ssim


def pair(rng, width, height, opposite=0.2):
    """A picture and another: the same with noise, a blend, anything, or (as often as `opposite`) its negative."""
    coarse = rng.integers(0, 256, (-(-height // 4), -(-width // 4), 3)).repeat(4, 0).repeat(4, 1)[:height, :width]
    first = np.clip(coarse + rng.normal(0, rng.uniform(1, 60), coarse.shape), 0, 255)
    other = rng.uniform(0, 255, first.shape)
    share = rng.choice([0.0, 0.1, 0.5, 1.0])
    second = np.clip((1 - share) * first + share * other + rng.normal(0, 20), 0, 255)
    if rng.random() < opposite:
        second = 255 - first
    return first.round().astype(np.uint8), second.round().astype(np.uint8)


def ask(image, reference):
    return RewardInput(id="a", group=0, prompt="", image=image, references={"image": reference})


def tensor(array):
    return torch.from_numpy(array.astype(np.float64) / 255).permute(2, 0, 1)[None]


@pytest.mark.integration
def test_ssim_equals_scikit_image():
    rng = np.random.default_rng(0)
    items, expected = [], []
    for _ in range(150):
        width, height = rng.integers(11, 30, 2)
        first, second = pair(rng, width, height)
        items.append(ask(Image.fromarray(first), Image.fromarray(second)))
        expected.append(
            structural_similarity(
                first, second, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255,
                channel_axis=2,
            )
        )  # fmt: skip
    output = load("ssim").score(items)
    assert set(output.status["ssim"]) == {Status.OK}
    np.testing.assert_allclose(output.values["ssim"], expected, atol=2e-7)
    assert min(expected) < -0.2 and max(expected) > 0.95


def by_torchmetrics(first, second, scales):
    """[B]; its contrast at each scale, and at the last its similarity without the mirrored border that it leaves."""
    total, result = sum(SCALE_WEIGHTS[:scales]), 1.0
    for scale, weight in enumerate(SCALE_WEIGHTS[:scales]):
        _, mean = _ssim_update(first, second, data_range=1.0, return_contrast_sensitivity=True)
        if scale == scales - 1:
            whole = _ssim_update(first, second, data_range=1.0, return_full_image=True)[1]
            mean = whole[..., 5:-5, 5:-5].mean((1, 2, 3))
        result = result * mean.clamp(min=0) ** (weight / total)
        first, second = (torch.nn.functional.avg_pool2d(x, 2) for x in (first, second))
    return result.tolist()


@pytest.mark.integration
def test_ms_ssim_combines_the_scales_of_torchmetrics():
    rng = np.random.default_rng(1)
    for scales, sizes, cases in ((1, 4, 12), (2, 4, 12), (3, 2, 5), (4, 1, 3), (5, 1, 2)):
        expected, values = [], []
        reward = load("ms_ssim", scales=scales)
        for _ in range(sizes):
            width, height = rng.integers(11 * 2 ** (scales - 1), 12 * 2 ** (scales - 1), 2)
            pairs = [pair(rng, width, height, opposite=0.1) for _ in range(cases)]
            output = reward.score([ask(Image.fromarray(a), Image.fromarray(b)) for a, b in pairs])
            assert set(output.status["ms_ssim"]) == {Status.OK}
            values += output.values["ms_ssim"].tolist()
            first, second = (torch.cat([tensor(p[i]) for p in pairs]) for i in (0, 1))
            expected += by_torchmetrics(first, second, scales)
        np.testing.assert_allclose(values, expected, atol=2e-6)
        assert max(expected) > 0.5


def test_ms_ssim_is_close_to_torchmetrics():
    """The rest is the mirrored border of its coarsest scale, which is the smaller the larger the picture."""
    rng = np.random.default_rng(2)
    first, second = (tensor(picture).float() for picture in pair(rng, 400, 400, opposite=0))
    expected = float(multiscale_structural_similarity_index_measure(first, second, data_range=1.0))
    assert float(ms_ssim(first, second)[0]) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name, settings, side", [("ssim", {}, 24), ("ms_ssim", {"scales": 2}, 30)])
def test_ssim_is_perfect_only_for_equal_images(name, settings, side):
    rng = np.random.default_rng(3)
    reward = load(name, **settings)
    for _ in range(20):
        picture, _ = pair(rng, side, side)
        almost = picture.copy()
        row, column, channel = rng.integers(0, (side, side, 3))
        almost[row, column, channel] ^= 1
        values = reward.score(
            [ask(Image.fromarray(seen), Image.fromarray(picture)) for seen in (picture, almost)]
        ).values[name]
        assert values[0] == 1
        assert values[1] < 1
    flat = [ask(Image.new("RGB", (side, side), "red"), Image.new("RGB", (side, side), "red"))]
    assert reward.score(flat).values[name] == [1]


@pytest.mark.parametrize("function, side", [(ssim, 16), (lambda x, y: ms_ssim(x, y, 2), 24)])
def test_ssim_gradients_equal_finite_differences(function, side):
    torch.manual_seed(0)
    x, y = torch.rand(2, 2, 1, side, side, dtype=torch.float64)
    y = 0.5 * x + 0.5 * y
    assert torch.autograd.gradcheck(lambda x: function(x, y), x.clone().requires_grad_(), fast_mode=True)


def test_negative_contrast_has_zero_gradient_without_nan():
    x = torch.rand(1, 3, 24, 24).requires_grad_()
    value = ms_ssim(x, 1 - x.detach(), 2)
    assert value.item() == 0
    value.sum().backward()
    assert torch.all(x.grad == 0)


@pytest.mark.parametrize("name, settings", [("ssim", {}), ("ms_ssim", {"scales": 2})])
def test_tensors_score_as_images(name, settings, tmp_path):
    rng = np.random.default_rng(4)
    pairs = [pair(rng, 28, 30, opposite=0) for _ in range(4)]
    for number, (_, second) in enumerate(pairs):
        Image.fromarray(second).save(tmp_path / f"{number}.png")
    reward = load(name, **settings)
    items = [ask(Image.fromarray(first), str(tmp_path / f"{n}.png")) for n, (first, _) in enumerate(pairs)]
    expected = reward.score(items).values[name]
    images = torch.cat([tensor(first) for first, _ in pairs]).float().requires_grad_()
    scores = reward.score_tensor(images, items)
    np.testing.assert_allclose(scores.detach(), expected, atol=2e-5)
    scores.sum().backward()
    assert all(images.grad[row].abs().sum() > 0 for row in range(4))
    half = reward.score_tensor(images.detach().bfloat16(), items)
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half, expected, atol=0.05)


def test_gradient_ascent_increases_similarity():
    rng = np.random.default_rng(5)
    first, second = pair(rng, 24, 24)
    images, items = tensor(first).float(), [ask(None, Image.fromarray(second))]
    reward, seen = load("ssim"), []
    for _ in range(15):
        images = images.detach().requires_grad_()
        score = reward.score_tensor(images, items)
        seen.append(score.item())
        score.sum().backward()
        images = (images + 40 * images.grad).clamp(0, 1)
    assert seen[-1] > seen[0] + 0.05


def test_unequal_sizes_fail_unless_resizing_is_allowed():
    rng = np.random.default_rng(6)
    picture, _ = pair(rng, 24, 20)
    large = Image.fromarray(picture).resize((48, 40), Image.Resampling.BICUBIC)
    item = ask(large, Image.fromarray(picture))
    output = load("ssim").score([item])
    assert output.failures[0]["ssim"].kind == "size"
    assert "48 x 40 pixels and its reference 24 x 20" in output.detail[0]["ssim"]
    assert 0.8 < load("ssim", resize=True).score([item]).values["ssim"][0] < 1
    tiny = Image.fromarray(picture).resize((1, 1), Image.Resampling.BOX)  # not its reference made as small
    assert load("ssim", resize=True).score([ask(tiny, Image.fromarray(picture))]).values["ssim"][0] < 0.3
    images = tensor(np.asarray(large)).float()
    with pytest.raises(ScoringFailed, match="48 x 40"):
        load("ssim").score_tensor(images, [item])
    expected = load("ssim", resize=True).score([item]).values["ssim"][0]
    assert load("ssim", resize=True).score_tensor(images, [item]).item() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("name, settings, least", [
    ("ssim", {}, 11), ("ms_ssim", {"scales": 1}, 11), ("ms_ssim", {"scales": 3}, 44), ("ms_ssim", {}, 176),
])  # fmt: skip
def test_images_smaller_than_the_window_are_scorer_failures(name, settings, least):
    reward = load(name, **settings)
    small, large = (
        ask(Image.new("RGB", (side, 200), "red"), Image.new("RGB", (side, 200), "red")) for side in (least - 1, least)
    )
    output = reward.score([small, large])
    assert output.status[name] == [Status.ERROR, Status.OK]
    assert output.failures[0][name].kind == "too_small"
    assert output.values[name][1] == 1


def test_invalid_settings_are_rejected():
    for scales in (0, 6):
        with pytest.raises(RewardError, match=f"scales is {scales}; it must be from 1 to 5"):
            load("ms_ssim", scales=scales)
