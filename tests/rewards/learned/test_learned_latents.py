"""Reward models on a generator's noisy latents: from pairs to a folder that scores pictures, clips and latents."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards import RewardError, RewardInput, RewardSuite, load
from mmrl.rewards.learned.reward_folder import read_reward_folder
from mmrl.workflows.latent_answers import level_of_batch, measured_levels
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.motion import Motion, Move, draw_clip, sample_clip, sample_motion
from mmrl_shapeworld.scenes import Scene, Thing, draw
from tests.understanding.media import as_png

PAIRS, UNSEEN = 96, 64
PROMPTS = [f"a {colour} {shape}" for colour in ("red", "blue") for shape in ("circle", "square")]


def write(path, samples):
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    return path


def judged_pairs(count, seed):
    """Pairs of a large and a small thing, on two axes which always disagree: what is large, and what is small."""
    rng = np.random.default_rng(seed)
    axes = {"large": "chosen", "small": "rejected"}
    for number in range(count):
        prompt = PROMPTS[number % len(PROMPTS)]
        _, colour, shape = prompt.split()
        sides = [
            as_png(draw(Scene((Thing(colour, shape, *rng.uniform(0.4, 0.6, 2), rng.uniform(*sizes)),))))
            for sizes in ((0.5, 0.65), (0.3, 0.45))
        ]
        yield Sample(str(number), prompt=prompt, chosen=sides[0], rejected=sides[1], metadata={"axes": axes})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    parts = {"train": (PAIRS, 0), "development": (UNSEEN, 1)}
    return {part: write(folder / f"{part}.jsonl", judged_pairs(*sizes)) for part, sizes in parts.items()}


def recipe(pairs, *overrides):
    data = [f"data.path={pairs['train']}", f"data.validation={pairs['development']}", "axes=[large, small]"]
    short = ["training.steps=60", "training.batch=64", "head.hidden=16", "encoder.layers=[transformer_blocks.0]"]
    return load_reward_recipe("shapes-latents", [*data, *short, *overrides])


@pytest.fixture(scope="module")
def models(pairs, tmp_path_factory):
    """Two models: one of all noise levels, one of clean latents alone."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "noisy": train_reward(recipe(pairs, "encoder.noise={low: 0.05, high: 0.9, draws: 4}"), folder / "noisy"),
        "clean": train_reward(recipe(pairs, "encoder.noise={low: 0.05, high: 0.05, draws: 1}"), folder / "clean"),
    }


@pytest.fixture(scope="module")
def judged():
    samples = list(judged_pairs(UNSEEN, 2))
    return samples, [[load_image(getattr(each, side), each.id) for each in samples] for side in ("chosen", "rejected")]


def inputs(samples, pictures=None):
    return [
        RewardInput(id=str(row), group=row, prompt=sample.prompt, image=pictures[row] if pictures else None)
        for row, sample in enumerate(samples)
    ]


def accuracy(reward, judged, sigma):
    samples, sides = judged
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        scores = []
        for pictures in sides:
            clean = reward.encoder.encode(pictures)
            noisy = (1 - sigma) * clean + sigma * torch.randn(clean.shape, generator=chance)
            scores.append(reward.score_latents(noisy, sigma, inputs(samples)))
    return (scores[0] > scores[1]).float().mean().item()


@pytest.mark.slow
def test_noisy_latents_are_judged_better_by_a_head_that_was_trained_on_noise(models, judged):
    noisy, clean = (load("learned_latents", model=str(models[name].folder), axis="large", device="cpu")
                    for name in ("noisy", "clean"))  # fmt: skip
    assert accuracy(clean, judged, 0.05) > 0.9
    right, wrong = (sum(accuracy(each, judged, sigma) for sigma in (0.5, 0.7)) / 2 for each in (noisy, clean))
    assert right > 0.85 and right > wrong + 0.1


@pytest.mark.slow
def test_axes_and_weights_of_axes(models, judged):
    folder, samples = str(models["noisy"].folder), judged[0][:8]
    items = inputs(samples, judged[1][0][:8])

    def scores(**args):
        suite = RewardSuite([(load("learned_latents", model=folder, device="cpu", **args), 1.0)])
        return suite.score(items).values["learned_latents"]

    large, small = scores(axis="large"), scores(axis="small")
    assert (large > 0).all() and (small < 0).all()  # these pictures are the large ones
    assert scores() == pytest.approx((large + small) / 2, abs=1e-5)
    weighted = scores(weights={"large": 2.0, "small": -0.5})
    assert weighted == pytest.approx(2 * large - 0.5 * small, abs=1e-5)
    assert scores(axis="large") == pytest.approx(large, abs=0)  # loaded again, equal
    with pytest.raises(RewardError, match="has no axis 'beauty': it has large, small"):
        load("learned_latents", model=folder, weights={"beauty": 1.0})
    with pytest.raises(RewardError, match="name weights of some axes, or one axis"):
        load("learned_latents", model=folder, axis="large", weights={"large": 1.0})


@pytest.mark.integration
def test_the_folder_says_what_it_was_trained_on_and_which_reward_loads_it(models):
    settings, heads, others = read_reward_folder(models["noisy"].folder)
    assert settings.kind == "latents" and settings.noise == (0.05, 0.9) and len(heads) == 1
    assert settings.layers == ("transformer_blocks.0",)
    assert others["centre"].shape == others["unit"].shape == (settings.shape.features,)
    card = (models["noisy"].folder / "README.md").read_text()
    assert "rewards: [{name: learned_latents," in card and "right on large at noise 0.9: " in card
    assert "at noise" not in (models["clean"].folder / "README.md").read_text()
    for name in ("learned", "learned_text"):
        with pytest.raises(RewardError, match="load it with the reward learned_latents"):
            load(name, model=str(models["noisy"].folder))


@pytest.mark.slow
def test_clips_are_scored_by_their_frames(tmp_path):
    """Clips as lists of frames, of which half are of another direction; the head sees two components of prompts."""
    rng, samples, clips = np.random.default_rng(0), [], []
    for number in range(12):
        motion = sample_motion(rng)
        clip = draw_clip(sample_clip(motion, rng))
        clips.append(clip)
        frames = [as_png(frame) for frame in clip]
        samples.append(Sample(str(number), prompt=str(motion), chosen=frames, rejected=frames[::-1]))
    path = write(tmp_path / "clips.jsonl", samples)
    encoder = "encoder={name: latents, model: 'shapeworld:video', layers: [mid_block], sampling: {num_frames: 5}}"
    noise = ["encoder.noise.high=0.3", "encoder.prompt_components=2"]
    data = [f"data.path={path}", f"data.validation={path}", encoder, *noise]
    short = ["training.steps=60", "training.batch=12", "head.dropout=0"]
    done = train_reward(load_reward_recipe("shapes-latents", [*data, *short]), tmp_path / "model")
    assert done.quality.accuracy["overall"] > 0.9  # of clips that it has seen
    reward = load("learned_latents", model=str(done.folder), device="cpu")
    items = [RewardInput(id="0", group=0, prompt=samples[0].prompt, video=each) for each in (clips[0], clips[0][::-1])]
    there, back = reward.score_batch(items)
    assert there["learned_latents"] > back["learned_latents"]


def clips_of_prompts(count, seed):
    """Pairs of a clip of the prompt's thing and one of the other prompt's thing, which go the same way."""
    rng = np.random.default_rng(seed)
    things = [("red", "circle"), ("blue", "square")]
    for number in range(count):
        sides = []
        for colour, shape in (things[number % 2], things[1 - number % 2]):
            motion = Motion((Move(colour, shape, "left"),))
            sides.append([as_png(frame) for frame in draw_clip(sample_clip(motion, rng))])
        prompt = f"a {' '.join(things[number % 2])} moves left"
        yield Sample(str(number), prompt=prompt, chosen=sides[0], rejected=sides[1])


@pytest.mark.slow
def test_components_of_prompts_tell_which_clip_suits_a_prompt(tmp_path):
    """The states of this generator hardly depend on the prompt: without components the head is right by chance."""
    sizes = {"train": (192, 0), "unseen": (48, 1)}
    train, unseen = (write(tmp_path / f"{part}.jsonl", clips_of_prompts(*size)) for part, size in sizes.items())
    encoder = "encoder={name: latents, model: 'shapeworld:video', layers: [mid_block], sampling: {num_frames: 5}}"
    data = [f"data.path={train}", f"data.validation={unseen}", encoder, "encoder.noise={high: 0.1, draws: 1}"]
    right = {}
    for count in (0, 4):
        overrides = [*data, "training.steps=300", "training.batch=128", f"encoder.prompt_components={count}"]
        done = train_reward(load_reward_recipe("shapes-latents", overrides), tmp_path / f"model-{count}")
        right[count] = done.quality.accuracy["overall"]
    assert right[4] > 0.9 and right[0] < 0.75
    reward = load("learned_latents", model=str(tmp_path / "model-4"), device="cpu")
    samples = list(clips_of_prompts(8, 2))
    items = [
        RewardInput(id=each.id, group=0, prompt=each.prompt, video=[load_image(frame, each.id) for frame in side])
        for each in samples
        for side in (each.chosen, each.rejected)
    ]
    scores = [each["learned_latents"] for each in reward.score_batch(items)]
    assert sum(chosen > rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)) >= 7


@pytest.mark.integration
def test_what_cannot_be_learnt_from_is_named(pairs, tmp_path):
    with pytest.raises(ConfigError, match="layers names the modules of a generator whose states count"):
        recipe(pairs, "encoder.layers=[]")
    with pytest.raises(ConfigError, match=r"low is 0.5 and high 0.2: expected low <= high"):
        recipe(pairs, "encoder.noise={low: 0.5, high: 0.2}")
    with pytest.raises(ConfigError, match="raters: heads on latents have none"):
        train_reward(recipe(pairs, "raters={}"), tmp_path / "a")
    without = write(tmp_path / "x.jsonl", [replace(next(judged_pairs(1, 0)), chosen=None)])
    with pytest.raises(DataError, match="heads on latents need pictures or videos in chosen and rejected"):
        train_reward(recipe({"train": without, "development": without}), tmp_path / "b")


def test_noise_levels_cover_the_range():
    noise = load_reward_recipe("shapes-latents").encoder.noise
    chance = torch.Generator().manual_seed(0)
    for part in range(noise.draws):
        parts = [(level_of_batch(noise, part, chance) - noise.low) / (noise.high - noise.low) for _ in range(20)]
        assert part / noise.draws <= min(parts) <= max(parts) <= (part + 1) / noise.draws
    assert measured_levels(noise)[0] == noise.low and measured_levels(noise)[-1] == noise.high
