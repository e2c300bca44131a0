"""Swaps of a thing in a clip: the true clip, the source, clips that are half right, and the data of splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.data.media.decode import load_image, load_mask, load_video
from mmrl.rewards.core.reward_io import RewardInput, reward_input
from mmrl_shapeworld import swaps
from mmrl_shapeworld.captions import SEEN_KINDS
from mmrl_shapeworld.motion import FRAMES, draw_clip
from mmrl_shapeworld.scenes import Scene, Thing, draw, thing_mask
from mmrl_shapeworld.swaps import LEAKS, Swap, SwapBackground, SwapSimilarity, judge_swap, sample_pair, sample_swap

OTHER = Thing("yellow", "triangle", 0.72, 0.74, 0.34)
SOURCE = tuple(Scene((Thing("red", "square", 0.25 + step, 0.25, 0.25), OTHER)) for step in (0.0, 0.1, 0.2, 0.3, 0.4))
SWAP = Swap(SOURCE, 0, ("blue", "circle"), 2, Thing("blue", "circle", 0.5, 0.5, 0.5))


def pixels(frames):
    return np.stack([np.asarray(frame) for frame in frames])


@pytest.mark.integration
def test_the_true_clip_is_right_and_the_source_shows_another_thing():
    rng = np.random.default_rng(0)
    for _ in range(40):
        swap = sample_swap(rng)
        present = {(thing.colour, thing.shape) for thing in swap.source[0].things}
        assert swap.kind in SEEN_KINDS and swap.kind not in present and len(present) == 2
        right, left_alone = (judge_swap(draw_clip(clip), swap) for clip in (swap.target, swap.source))
        assert (right.identity, right.motion, right.background_error) == (1.0, 1.0, 0.0)
        assert (left_alone.identity, left_alone.motion, left_alone.background_error) == (0.0, 1.0, 0.0)
        assert Swap.from_dict(swap.as_dict()) == swap


def test_scores_by_hand():
    right, source = draw_clip(SWAP.target), draw_clip(SWAP.source)
    assert judge_swap([*right[:3], *source[3:]], SWAP).identity == pytest.approx(3 / 5)
    inside = thing_mask(SWAP.wanted[0], 32)
    grey = [
        Image.fromarray(np.where(inside[..., None], 127, np.asarray(frame)).astype(np.uint8)) for frame in right[:1]
    ]
    spoilt = [*grey, *right[1:]]  # eight by eight pixels and two around them, 12 by 12, are compared
    difference = np.abs(np.array([127, 127, 127]) - [50, 85, 220]).mean() / 255 * inside.sum() / 144 / 5
    assert judge_swap(spoilt, SWAP).similarity == pytest.approx(1 - difference, abs=1e-5)
    assert judge_swap(source, SWAP).similarity < judge_swap(spoilt, SWAP).similarity < 1.0
    elsewhere = draw_clip([Scene((replace(thing, y=0.6), OTHER)) for thing in SWAP.wanted])
    assert judge_swap(elsewhere, SWAP).motion == 0.0
    larger = draw_clip([Scene((replace(thing, side=0.45), OTHER)) for thing in SWAP.wanted])
    assert judge_swap(larger, SWAP).identity == 0.0  # its size is that of another thing
    gone = [draw(Scene(scene.things[:1])) for scene in SWAP.target]  # the other thing is left out
    before, after = pixels(source).astype(float) / 255, pixels(gone).astype(float) / 255
    both = [
        thing_mask(scene.things[0], 32) | thing_mask(new, 32) for scene, new in zip(SOURCE, SWAP.wanted, strict=True)
    ]
    outside = ~np.stack(both)[..., None] & np.ones(3, bool)
    for frame, mask in enumerate(outside):  # two pixels around the things do not count
        rows, columns = np.nonzero(both[frame])
        mask[rows.min() - 2 : rows.max() + 3, columns.min() - 2 : columns.max() + 3] = False
    expected = np.mean([((b - a) ** 2)[mask].mean() for b, a, mask in zip(before, after, outside, strict=True)])
    found = judge_swap(gone, SWAP)
    assert found.identity == found.similarity == 1.0 and found.background_error == pytest.approx(expected, rel=0.05)
    assert judge_swap([Image.new("RGB", (32, 32), (245, 245, 245))] * 5, SWAP).motion == 0.0


@pytest.mark.slow
def test_pairs_leak_the_old_colour_or_shape_as_often_as_stated():
    rng, kept = np.random.default_rng(1), []
    for _ in range(300):
        swap, second = sample_pair(rng)
        verdict = judge_swap(draw_clip(second), swap)
        assert verdict.motion == 1.0 and verdict.background_error == 0.0 and verdict.identity in (0.0, 1.0)
        kept.append(verdict.identity)
        new, old = second[0].things[swap.which], swap.source[0].things[swap.which]
        if not verdict.identity:
            assert {(new.colour, new.shape)} <= {(old.colour, swap.kind[1]), (swap.kind[0], old.shape)}
    leaking = 1 - np.mean(kept)  # of those, some keep what is the same in both things
    assert 0.6 * LEAKS < leaking <= 1.1 * LEAKS


@pytest.mark.slow
def test_samples_have_a_mask_in_one_frame_or_in_all_and_no_clip_of_another_split():
    one, masked = swaps.samples("swap-development"), swaps.samples(f"swap-development{swaps.MASKED}")
    for sample, more in zip(one[:12], masked, strict=False):
        swap = Swap.from_dict(sample.answer)
        assert sample.answer == more.answer and sample.prompt == "" and sample.id != more.id
        assert pixels(load_video(sample.conditions["video"])).tolist() == pixels(draw_clip(swap.source)).tolist()
        marks = [
            [np.asarray(load_mask(each)) > 0 for each in each_sample.conditions["mask"]]
            for each_sample in (one[0], more)
        ]
        truth = [thing_mask(scene.things[swap.which], 32) for scene in swap.source]
        assert np.array_equal(marks[1], truth) and len(truth) == FRAMES
        (portrait,) = sample.conditions["reference_images"]
        assert load_image(portrait).tobytes() == draw(Scene((swap.portrait,))).tobytes()
    first = Swap.from_dict(one[0].answer)
    present = [np.asarray(load_mask(each)).any() for each in one[0].conditions["mask"]]
    assert present == [frame == first.marked for frame in range(FRAMES)]
    clips = {name: {sample.conditions["video"] for sample in swaps.samples(name)} for name in swaps.SPLITS}
    assert sum(map(len, clips.values())) == len(set().union(*clips.values()))


@pytest.mark.integration
def test_the_reward_scores_the_clip_of_its_sample():
    sample = swaps.samples("swap-development")[0]
    swap = Swap.from_dict(sample.answer)
    item = reward_input(sample, draw_clip(swap.target), group=0, id="a")
    values = SwapSimilarity().score([item]).values
    assert [values[f"swap_{name}"][0] for name in ("similarity", "identity", "motion")] == [1.0] * 3
    assert values["swap_background_error"][0] == 0.0


def test_rewards_of_clips_have_gradients_where_they_look():
    clip = torch.from_numpy(pixels(draw_clip(SWAP.source))).permute(0, 3, 1, 2)[None] / 255
    item = RewardInput(id="a", group=0, prompt="", video=[], references={"answer": SWAP.as_dict()})
    masks = torch.from_numpy(np.stack([thing_mask(thing, 32) for thing in SWAP.wanted]))
    for reward, lower in ((SwapSimilarity(), False), (SwapBackground(), True)):
        frames = draw_clip([Scene(scene.things[:1]) for scene in SWAP.source])  # the other thing is left out
        drawn = torch.from_numpy(pixels(frames)).permute(0, 3, 1, 2)[None] / 255
        (score,) = reward.score_tensor(drawn.requires_grad_(), [item])
        (gradient,) = torch.autograd.grad(score, drawn)
        own = gradient.abs().sum((0, 2))[masks]
        assert (own > 0).all() if not lower else not own.any() and gradient.abs().sum() > 0
        alone = reward.score([replace(item, video=frames)]).values[reward.name][0]
        assert score.item() == pytest.approx(float(alone), abs=1e-6)
    assert SwapBackground().score_tensor(clip, [item]).item() == 0.0
