"""A picture's distance to the others of its group, by scipy's distances; alone and unusable ones are told apart."""

import numpy as np
import pytest
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import save_file
from scipy.spatial.distance import pdist, squareform

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.images.lpips import LPIPS
from tests.rewards.images import tiny_models


def ask(image, group=0):
    return RewardInput(id="a", group=group, prompt="", image=image)


def pictures(number, side=64, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (number, side, side, 3), dtype=np.uint8)


def test_pixel_distances_equal_scipy():
    rng, items, expected = np.random.default_rng(0), [], []
    for group in range(120):
        members = pictures(int(rng.integers(2, 8)), seed=group) // int(rng.integers(1, 9))
        distances = squareform(pdist(members.reshape(len(members), -1) / 255, "cityblock")) / members[0].size
        expected += list(distances.sum(1) / (len(members) - 1))
        items += [ask(Image.fromarray(member), group) for member in members]
    assert len(items) > 500
    order = rng.permutation(len(items))
    output = load("diversity").score([items[row] for row in order])
    np.testing.assert_allclose(output.values["diversity"], np.array(expected)[order], rtol=1e-5)


def test_group_mean_is_the_mean_pairwise_distance():
    members = pictures(6)
    values = load("diversity").score([ask(Image.fromarray(member)) for member in members]).values["diversity"]
    assert values.mean() == pytest.approx(pdist(members.reshape(6, -1) / 255, "cityblock").mean() / members[0].size)


def test_outliers_score_highest_and_equal_images_0():
    white, black = Image.new("RGB", (40, 40), "white"), Image.new("RGB", (40, 40))
    reward = load("diversity")
    assert reward.score([ask(white)] * 3).values["diversity"].tolist() == [0, 0, 0]
    assert reward.score([ask(white), ask(white), ask(black)]).values["diversity"].tolist() == [0.5, 0.5, 1]


def test_fine_noise_counts_less_than_coarse_noise():
    """Pictures are compared at one size, so that fine noise is no cheap diversity."""
    coarse = [ask(Image.fromarray(p)) for p in pictures(4, 64)]
    fine = [ask(Image.fromarray(p)) for p in pictures(4, 512)]
    reward = load("diversity")
    assert reward.score(fine).values["diversity"].max() < reward.score(coarse).values["diversity"].min() / 4


def test_single_images_cannot_be_scored():
    output = load("diversity").score([ask(Image.new("RGB", (9, 9)), 1), ask(Image.new("RGB", (9, 9)), 2)])
    assert output.status["diversity"] == [Status.ERROR] * 2
    assert [row["diversity"].kind for row in output.failures] == ["alone", "alone"]


def test_invalid_images_are_left_out_of_other_scores():
    white, black = Image.new("RGB", (40, 40), "white"), Image.new("RGB", (40, 40))
    output = load("diversity").score(
        [ask(white), ask(Image.new("F", (9, 9))), ask(black), ask(Image.new("RGB", (0, 9)))]
    )
    assert output.status["diversity"] == [Status.OK, Status.INVALID, Status.OK, Status.INVALID]
    assert output.values["diversity"].tolist() == [1, 0, 1, 0]
    output = load("diversity").score([ask(white), ask(Image.new("F", (9, 9)))])
    assert output.status["diversity"] == [Status.ERROR, Status.INVALID]


def test_clip_distances_are_1_minus_the_cosine(tmp_path):
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    folder = str(tiny_models.clip(tmp_path))
    members = [Image.fromarray(p) for p in pictures(4, 40)]
    model, processor = (
        transformers.CLIPModel.from_pretrained(folder).eval(),
        transformers.CLIPProcessor.from_pretrained(folder),
    )
    transformers.utils.logging.enable_progress_bar()
    with torch.no_grad():
        vectors = model.get_image_features(**processor(images=members, return_tensors="pt")).pooler_output
    expected = squareform(pdist(vectors.numpy(), "cosine")).sum(1) / 3
    reward = load("diversity", metric="clip", model=folder, device="cpu")
    np.testing.assert_allclose(
        reward.score([ask(m) for m in members]).values["diversity"], expected, rtol=1e-3, atol=1e-6
    )
    assert expected.min() > 1e-4
    assert reward.score([ask(members[0])] * 2).values["diversity"].tolist() == [0, 0]
    assert len(reward.spec.weights) == 1


@pytest.mark.integration
def test_lpips_distances_equal_the_lpips_reward(tmp_path):
    torch.manual_seed(0)
    features = torchvision.models.alexnet(weights=None).features.state_dict()
    file = str(tmp_path / "alex.safetensors")
    save_file({f"features.{key}": value for key, value in features.items()}, file)
    members = [Image.fromarray(p) for p in pictures(4, 64)]
    one = LPIPS("alex", file, device="cpu")
    pairs = [RewardInput("a", 0, "", image=a, references={"image": b}) for a in members for b in members]
    expected = one.score(pairs).values["lpips"].reshape(4, 4).sum(1) / 3
    reward = load("diversity", metric="lpips", model=file, device="cpu")
    np.testing.assert_allclose(reward.score([ask(m) for m in members]).values["diversity"], expected, rtol=1e-4)
    assert len(reward.spec.weights) == 2


@pytest.mark.parametrize("settings, says", [
    ({"metric": "mse"}, "metric is 'mse'; it must be one of pixels, lpips, clip"),
    ({"metric": "clip"}, "needs a model"),
    ({"model": "a/b"}, "'pixels' takes no model"),
    ({"side": 8}, "side is 8; it must be at least 32"),
])  # fmt: skip
def test_invalid_settings_are_rejected(settings, says):
    with pytest.raises(RewardError, match=says):
        load("diversity", **settings)
