"""VBench's consistency and flickering, against their definitions in numpy."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, ViTConfig, ViTImageProcessor, ViTModel

from mmrl.rewards import RewardInput, Status, load
from mmrl_shapeworld.shipped_models import CLIP


def ask(frames):
    return RewardInput(id="a", group=0, prompt="", video=frames)


def noise(count, size=(16, 12), seed=0):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(count)]


def scored(reward, frames):
    output = reward.score([ask(frames)])
    return float(output.values[reward.name][0]), output.status[reward.name][0]


def vbench(features):
    """The mean over frames of the clamped cosines to the frame before and to the first."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    sims = [(max(0, unit[n] @ unit[n - 1]) + max(0, unit[n] @ unit[0])) / 2 for n in range(1, len(unit))]
    return np.mean(sims)


def test_flickering_by_hand():
    reward = load("temporal_flickering")
    black, grey = (Image.new("RGB", (4, 4), (level,) * 3) for level in (0, 51))
    assert scored(reward, [black] * 3) == (1.0, Status.OK)
    assert scored(reward, [black, grey, grey])[0] == pytest.approx(1 - 25.5 / 255)
    frames = noise(5)
    values = np.asarray([np.asarray(frame, float) for frame in frames])
    assert scored(reward, frames)[0] == pytest.approx((255 - np.abs(np.diff(values, axis=0)).mean()) / 255, abs=1e-6)


@pytest.mark.integration
def test_consistency_equals_vbench_with_clip_and_dino(tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    shape = ViTConfig(**sizes, image_size=16, patch_size=8)
    ViTModel(shape, add_pooling_layer=False).save_pretrained(tmp_path)  # as DINO is published: without a pooler
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    frames = noise(4)
    for name, place in (("subject_consistency", str(tmp_path)), ("background_consistency", str(CLIP))):
        network = (ViTModel if place == str(tmp_path) else AutoModel).from_pretrained(place).eval()
        pixels = AutoImageProcessor.from_pretrained(place, backend="pil")(images=frames, return_tensors="pt")
        with torch.no_grad():
            if name == "subject_consistency":
                features = network(**pixels).last_hidden_state[:, 0]
            else:
                features = network.get_image_features(**pixels).pooler_output
        found, status = scored(load(name, model=place), frames)
        assert status is Status.OK
        assert found == pytest.approx(vbench(features.double().numpy()), abs=1e-5)
        assert found < 1


def test_equal_frames_score_one_and_changing_ones_less():
    reward = load("background_consistency", model=str(CLIP))
    still, moving = noise(1) * 5, noise(5)
    assert scored(reward, still) == (1.0, Status.OK)
    assert scored(reward, moving)[0] < 0.999
    assert reward.weight_files()


def test_identity_is_the_mean_cosine_to_the_nearest_reference():
    reward, (one, other), frames = load("reference_identity", model=str(CLIP)), noise(2), noise(3, seed=1)
    network, processor = AutoModel.from_pretrained(CLIP).eval(), AutoImageProcessor.from_pretrained(CLIP, backend="pil")

    def unit(pictures):
        with torch.no_grad():
            found = network.get_image_features(**processor(images=pictures, return_tensors="pt")).pooler_output.numpy()
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def identity(clip, *references):
        output = reward.score(
            [RewardInput(id="a", group=0, prompt="", video=clip, references={"reference_images": references})]
        )
        return float(output.values[reward.name][0]), output.status[reward.name][0]

    cosines = unit(frames) @ unit([one, other]).T
    assert identity(frames, one, other)[0] == pytest.approx(np.maximum(cosines, 0).max(1).mean(), abs=1e-5)
    assert identity(frames, one)[0] == pytest.approx(np.maximum(cosines[:, 0], 0).mean(), abs=1e-5)
    assert identity([one, one], one, other) == (1.0, Status.OK)
    assert identity(frames, one)[0] < identity([one, *frames], one)[0]  # more frames show it
    assert identity(frames)[1] is Status.ERROR and identity([one], one)[1] is Status.INVALID


@pytest.mark.parametrize("name", ["temporal_flickering", "background_consistency"])
def test_invalid_videos_have_a_status_and_message(name):
    reward = load(name, **({"model": str(CLIP)} if name == "background_consistency" else {}))
    assert scored(reward, noise(1)) == (0.0, Status.INVALID)
    assert scored(reward, noise(2) + noise(1, size=(8, 8))) == (0.0, Status.INVALID)
    output = reward.score([RewardInput(id="a", group=0, prompt="", image=noise(1)[0])])
    assert output.status[reward.name][0] is Status.ERROR
