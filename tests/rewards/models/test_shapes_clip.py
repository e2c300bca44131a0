"""The tiny CLIP that ships, in both of its forms, as a reward: it must know a true caption from a wrong one."""

import numpy as np
import pytest

from mmrl.rewards import RewardInput, load
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.negatives import hard_negatives, true_captions
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP, OPEN_CLIP


@pytest.fixture(scope="module")
def pairs() -> list[tuple[RewardInput, RewardInput]]:
    """200 pictures, each with its caption and with one that differs in a colour, a shape or a number."""
    rng, found = np.random.default_rng(0), []
    while len(found) < 200:
        caption = sample_caption(rng, KINDS)
        scene = sample_scene(caption, rng)
        attribute = ("colour", "shape", "count")[len(found) % 3]
        wrong = [other for other in hard_negatives(caption, attribute) if other not in true_captions(scene)]
        if wrong:
            drawn, other = draw(scene, 32), wrong[rng.integers(len(wrong))]
            found.append(tuple(RewardInput("0", 0, str(c), image=drawn) for c in (caption, other)))
    return found


@pytest.mark.integration
@pytest.mark.parametrize("name", ["clip_score", "pickscore", "goal_contrast", "anchor_margin"])
@pytest.mark.parametrize("folder", [CLIP, OPEN_CLIP], ids=["transformers", "open_clip"])
def test_shapes_clip_ranks_true_captions_above_wrong_ones(pairs, folder, name):
    others = {
        "goal_contrast": {"negative": "a picture"},
        "anchor_margin": {"anchors": sorted({item.prompt for pair in pairs for item in pair})},
    }
    arguments = others.get(name, {})
    reward = load(name, model=str(folder), device="cpu", **arguments)
    true, wrong = (reward.score([pair[side] for pair in pairs]).values[name] for side in (0, 1))
    assert (true > wrong).mean() >= 0.9


@pytest.mark.integration
def test_both_weight_formats_give_equal_scores_and_gradients(pairs):
    import torch

    items = [item for pair in pairs[:30] for item in pair]
    one, other = (load("clip_score", model=str(folder), device="cpu") for folder in (CLIP, OPEN_CLIP))
    np.testing.assert_allclose(
        one.score(items).values["clip_score"], other.score(items).values["clip_score"], atol=2e-5
    )
    images = torch.rand(8, 3, 32, 32)
    np.testing.assert_allclose(one.score_tensor(images, items[:8]), other.score_tensor(images, items[:8]), atol=2e-5)
