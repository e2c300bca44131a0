"""VideoReward against the published forward pass on one video at a time, in float64, on a tiny Qwen2-VL."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize

from mmrl.rewards import RewardError, RewardInput, Status, load
from mmrl.rewards.models.video_reward import PROMPT, sampled_frames
from tests.rewards.models import tiny_qwen_scorers
from tests.rewards.models.tiny_models import picture, prompt

NAMES = ("video_reward_visual", "video_reward_motion", "video_reward_alignment")


def clip(seed: int, frames: int = 12, **fields) -> RewardInput:
    pictures = [picture(1000 * seed + number, 40 + 8 * (seed % 3), 40) for number in range(frames)]
    return RewardInput(str(seed), seed, **{"prompt": prompt(seed, 3 + 9 * (seed % 2)), "video": pictures} | fields)


@pytest.fixture(scope="module")
def reward(video_reward):
    return load("video_reward", **video_reward)


def published(items, base: str, outputs: int = 1, normalised: bool = True) -> np.ndarray:
    """[B, 3], one by one, from the merged network; frames are scaled by the formula, written out for these sizes."""
    from transformers import AutoProcessor

    network = tiny_qwen_scorers.whole_network(base, 3)
    head = tiny_qwen_scorers.video_reward_tensors(base, outputs)["rm_head.weight"].double()
    processor = AutoProcessor.from_pretrained(base)
    tokens = ["<|VQ_reward|>", "<|MQ_reward|>", "<|TA_reward|>"]
    processor.tokenizer.add_tokens(tokens, special_tokens=True)
    ids, found = processor.tokenizer.convert_tokens_to_ids(tokens), []
    for item in items:
        text = (
            "<|im_start|>user: <|vision_start|><|video_pad|><|vision_end|>"
            + PROMPT.read_text().format(text_prompt=item.prompt)
            + "<|im_end|><|im_start|> ASSISTANT"
        )
        places = torch.linspace(0, 11, 4).round().long()  # 12 frames at 8 a second: 3, but 4 at least
        pixels = torch.from_numpy(np.stack([np.asarray(frame) for frame in item.video]))[places].permute(0, 3, 1, 2)
        wide = {40: 48, 48: 56, 56: 64}[pixels.shape[-1]]  # with a height of 48: 2304 pixels or more, in eights
        pixels = resize(pixels, [48, wide], InterpolationMode.BICUBIC, antialias=True)
        kept = {"do_resize": False, "do_sample_frames": False}
        inputs = processor(text=[text], videos=[pixels], return_tensors="pt", videos_kwargs=kept)
        with torch.no_grad():
            states = tiny_qwen_scorers.states_without_positions(network, inputs)[0]
        outs = torch.stack([head @ states[inputs["input_ids"][0].tolist().index(token)] for token in ids])  # [3, N]
        found.append(outs.diagonal() if outputs == 3 else outs[:, 0])
    scores = torch.stack(found).numpy()
    if not normalised:
        return scores
    s = tiny_qwen_scorers.STATISTICS
    return (scores - [s["VQ_mean"], s["MQ_mean"], s["TA_mean"]]) / [s["VQ_std"], s["MQ_std"], s["TA_std"]]


@pytest.mark.integration
def test_scores_are_those_of_the_published_network(reward, video_reward):
    items = [clip(seed) for seed in range(6)]
    expected = published(items, video_reward["base"])
    output = reward.score(items)
    assert output.status["video_reward"] == [Status.OK] * 6
    for axis, name in enumerate(NAMES):
        np.testing.assert_allclose(output.values[name], expected[:, axis], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(output.values["video_reward"], expected.sum(1), rtol=1e-3, atol=3e-4)
    assert (np.std(expected, axis=0) > 0.01).all() and np.abs(expected[:, 0] - expected[:, 2]).min() > 0.01


@pytest.mark.integration
def test_axis_chooses_the_score_that_is_the_reward(video_reward):
    items = [clip(seed) for seed in range(2)]
    for axis, name in zip(("visual", "motion", "alignment"), NAMES, strict=True):
        values = load("video_reward", **video_reward, axis=axis).score(items).values
        np.testing.assert_array_equal(values["video_reward"], values[name])
    with pytest.raises(RewardError, match="axis is 'taste'; it must be one of overall, visual, motion, alignment"):
        load("video_reward", **video_reward, axis="taste")


@pytest.mark.integration
def test_a_head_of_three_outputs_gives_each_token_its_own(video_reward, tmp_path):
    folder = tiny_qwen_scorers.video_reward_folder(video_reward["base"], tmp_path / "three", outputs=3)
    items = [clip(seed) for seed in range(2)]
    values = load("video_reward", **video_reward | {"model": str(folder)}).score(items).values
    expected = published(items, video_reward["base"], outputs=3)
    np.testing.assert_allclose(np.stack([values[name] for name in NAMES], 1), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.integration
def test_merged_weights_score_as_the_lora_apart(reward, video_reward, tmp_path):
    """Also by the names that transformers gives today, and without statistics, by which nothing is standardised."""
    import json
    from pathlib import Path

    from safetensors.torch import save_file

    tensors = tiny_qwen_scorers.video_reward_tensors(video_reward["base"], 1)
    today = {}
    for name, tensor in tensors.items():
        moved = (
            name
            if name.startswith(("lm_head", "rm_head", "visual"))
            else name.replace("model.", "model.language_model.")
        )
        today[moved.replace("visual.", "model.visual.", 1) if moved.startswith("visual.") else moved] = tensor
    save_file(today, tmp_path / "merged.safetensors")
    settings = json.loads((Path(video_reward["model"]) / "model_config.json").read_text())
    del settings["inference_config"]
    (tmp_path / "model_config.json").write_text(json.dumps(settings))
    items = [clip(seed) for seed in range(2)]
    merged = load("video_reward", **video_reward | {"model": str(tmp_path), "weights": "merged.safetensors"})
    values = merged.score(items).values
    expected = published(items, video_reward["base"], normalised=False)
    np.testing.assert_allclose(np.stack([values[name] for name in NAMES], 1), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.integration
def test_a_base_in_the_form_of_the_hub_gives_the_same_numbers(reward, video_reward, tmp_path):
    base = tiny_qwen_scorers.as_on_the_hub(video_reward["base"], tmp_path / "base")
    items = [clip(seed) for seed in range(2)]
    there = load("video_reward", **video_reward | {"base": base}).score(items).values["video_reward"]
    np.testing.assert_array_equal(there, reward.score(items).values["video_reward"])


def test_order_of_frames_and_prompt_matter(reward):
    one = clip(1)
    back, other = clip(1, video=one.video[::-1]), clip(1, prompt="two blue square")
    scores = reward.score([one, back, other]).values["video_reward"]
    assert len({round(float(score), 4) for score in scores}) == 3


@pytest.mark.parametrize(
    ("total", "rate", "places"),
    [
        (16, 8.0, [0, 5, 10, 15]),  # two seconds, four frames
        (49, 8.0, [0, 4, 9, 13, 17, 22, 26, 31, 35, 39, 44, 48]),  # 12.25 frames
        (81, 16.0, [0, 9, 18, 27, 36, 44, 53, 62, 71, 80]),  # 10.1
        (3, 8.0, [0, 2]),
        (2, 30.0, [0, 1]),
    ],
)
def test_frames_are_an_even_number_evenly_spaced(total, rate, places):
    assert sampled_frames(total, rate, 2.0) == places


def test_invalid_videos_leave_other_rows_alone(reward):
    frame = Image.new("RGB", (40, 40))
    odd = [None, [frame], [frame, Image.new("RGB", (41, 40))], [frame, "x.png"]]
    items = [clip(0), *(clip(1, video=video) for video in odd), clip(1, prompt="red <|VQ_reward|>"), clip(0)]
    output = reward.score(items)
    assert output.status["video_reward"] == [Status.OK, *[Status.ERROR] * 5, Status.OK]
    np.testing.assert_allclose(output.values["video_reward"][0], output.values["video_reward"][-1], atol=1e-4)


def test_folders_of_another_form_raise(video_reward, tmp_path):
    base = video_reward["base"]
    changed = tiny_qwen_scorers.video_reward_folder(base, tmp_path / "one", prompt_template_type="simple")
    with pytest.raises(RewardError, match=r"data_config.prompt_template_type is 'simple'; only 'detailed_special'"):
        load("video_reward", **video_reward | {"model": str(changed)})
    with pytest.raises(RewardError, match=r"has no model_config.json"):
        load("video_reward", **video_reward | {"model": str(tmp_path)})
    with pytest.raises(RewardError, match=r"video_fps is 0; it must be above 0"):
        load("video_reward", **video_reward | {"video_fps": 0})
