"""HPSv3 against the published forward pass on one image at a time, in float64, on a tiny Qwen2-VL."""

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.rewards import RewardError, Status, load
from mmrl.rewards.models.hps_v3 import PIXELS, PROMPT
from tests.rewards.models import tiny_qwen_scorers
from tests.rewards.models.tiny_models import answer, answers, prompt

SMALL = 40 * 8 * 8
"""Pixels: 40 tokens of 8 x 8."""


@pytest.fixture(scope="module")
def reward(hps_v3):
    return load("hps_v3", **hps_v3)


def published(items, hps_v3, positions: str = "text") -> np.ndarray:
    """[B, 2]: mu and sigma, one by one; the size of the picture is by transformers' rule."""
    from safetensors.torch import load_file
    from transformers import AutoProcessor
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    tensors = load_file(f"{hps_v3['model']}/HPSv3.safetensors")
    network = tiny_qwen_scorers.whole_network(hps_v3["base"], 1)
    processor = AutoProcessor.from_pretrained(hps_v3["base"])
    processor.tokenizer.add_tokens(["<|Reward|>"], special_tokens=True)
    found = []
    for item in items:
        text = (
            "<|im_start|>user: <|vision_start|><|image_pad|><|vision_end|>"
            + PROMPT.read_text().format(text_prompt=item.prompt)
            + "<|im_end|><|im_start|> ASSISTANT"
        )
        high, wide = smart_resize(item.image.height, item.image.width, 8, SMALL, SMALL)
        picture, kept = item.image.resize((wide, high)), {"do_resize": False}  # PIL's default filter is bicubic
        inputs = processor(text=[text], images=[picture], return_tensors="pt", images_kwargs=kept)
        with torch.no_grad():
            if positions == "text":
                states = tiny_qwen_scorers.states_without_positions(network, inputs)
            else:
                states = network.model(**{**inputs, "pixel_values": inputs["pixel_values"].double()})[0]
        place = inputs["input_ids"][0].tolist().index(processor.tokenizer.convert_tokens_to_ids("<|Reward|>"))
        x = states[0, place]
        for layer in (0, 3, 5):
            x = tensors[f"rm_head.{layer}.weight"].double() @ x + tensors[f"rm_head.{layer}.bias"].double()
            x = x.clamp(min=0) if layer < 5 else x
        found.append([x[0].item(), x[1].exp().item()])
    return np.array(found)


def test_mu_and_sigma_are_those_of_the_published_network(reward, hps_v3):
    """In one batch of pictures of several sizes and prompts of several lengths, so with padding."""
    items = answers(6) + [answer(seed, prompt=prompt(seed, 30)) for seed in range(3)]
    expected = published(items, hps_v3)
    output = reward.score(items)
    assert output.status["hps_v3"] == [Status.OK] * 9
    np.testing.assert_allclose(output.values["hps_v3"], expected[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(output.values["hps_v3_sigma"], expected[:, 1], rtol=1e-4, atol=1e-4)
    assert np.std(expected[:, 0]) > 0.05 and (expected[:, 1] > 0).all()


def test_positions_of_qwen2_vl_would_give_other_numbers(reward, hps_v3):
    """The control: the published network reads pictures as if their patches were words, one after the other."""
    items = answers(3)
    other = published(items, hps_v3, positions="picture")
    assert np.abs(reward.score(items).values["hps_v3"] - other[:, 0]).max() > 1e-3


def test_scores_depend_on_prompt_and_picture(reward):
    one = answer(0)
    scores = reward.score([one, answer(0, prompt="two blue square"), answer(0, image=answer(5).image)]).values["hps_v3"]
    assert len({round(float(score), 4) for score in scores}) == 3


def test_prompts_cannot_hold_a_second_score_token(reward):
    output = reward.score([answer(0, prompt=f"red {token}") for token in ("<|Reward|>", "<|image_pad|>", "{braces}")])
    assert output.status["hps_v3"] == [Status.ERROR, Status.ERROR, Status.OK]
    assert [row["hps_v3"].kind for row in output.failures[:2]] == ["control_token"] * 2


def test_invalid_pictures_leave_other_rows_alone(reward):
    items = [answer(0), answer(1, image=None), answer(2, image=Image.new("RGB", (1, 999))), answer(0)]
    output = reward.score(items)
    assert output.status["hps_v3"] == [Status.OK, *[Status.ERROR] * 2, Status.OK]
    np.testing.assert_allclose(output.values["hps_v3"][0], output.values["hps_v3"][-1], atol=1e-5)


def test_published_size_and_prompt():
    """256 tokens of 28 x 28 pixels; the prompt is MizzenAI/HPSv3@d232ff8's, with its spaces at the ends of lines."""
    import hashlib

    assert PIXELS == 200_704
    text = PROMPT.read_text(encoding="utf-8")
    assert text.count("{text_prompt}") == 1 and text.count("<|Reward|>") == 1 and "and 10 being the best. \n" in text
    assert hashlib.sha256(text.encode()).hexdigest().startswith("f6ee57479d4e9eee")


def test_half_precision_is_close(hps_v3):
    items = answers(4)
    whole = load("hps_v3", **hps_v3).score(items).values["hps_v3"]
    half = load("hps_v3", **hps_v3 | {"dtype": "bfloat16"})
    assert {weights.dtype for weights in half.network[0].parameters()} == {torch.bfloat16}
    assert {weights.dtype for weights in half.network[1].parameters()} == {torch.float32}
    assert np.abs(half.score(items).values["hps_v3"] - whole).max() < 0.2


def test_a_base_in_the_form_of_the_hub_gives_the_same_numbers(reward, hps_v3, tmp_path):
    base = tiny_qwen_scorers.as_on_the_hub(hps_v3["base"], tmp_path / "base")
    items = answers(4)
    there = load("hps_v3", **hps_v3 | {"base": base}).score(items).values["hps_v3"]
    np.testing.assert_array_equal(there, reward.score(items).values["hps_v3"])


def test_files_that_are_no_hps_v3_raise(hps_v3, tmp_path):
    from pathlib import Path

    from safetensors.torch import load_file, save_file

    with pytest.raises(RewardError, match=r"has no HPSv3.safetensors"):
        load("hps_v3", **hps_v3 | {"model": str(tmp_path)})
    tensors = load_file(Path(hps_v3["model"]) / "HPSv3.safetensors")
    place = tmp_path / "HPSv3.safetensors"

    def refused(tensors, message):
        save_file(tensors, place)
        with pytest.raises(RewardError, match=message):
            load("hps_v3", **hps_v3 | {"model": str(tmp_path)})

    refused({name: t for name, t in tensors.items() if "rm_head" not in name}, r"has no tensors rm_head\.\*")
    refused({name: t for name, t in tensors.items() if name != "model.norm.weight"}, r"1 missing .*language_model.norm")
    refused(tensors | {"model.surplus": torch.zeros(1)}, r"1 unexpected tensors for a qwen2_vl: language_model.surplus")
    refused(tensors | {"surplus": torch.zeros(1)}, r"has no tensor 'surplus'")
    more = torch.cat([tensors["model.embed_tokens.weight"]] * 2)
    refused(tensors | {"model.embed_tokens.weight": more}, r"knows 84 tokens, and the tokenizer of the base 42")
    refused(tensors | {"rm_head.5.weight": torch.zeros(3, 16), "rm_head.5.bias": torch.zeros(3)}, r"has 3 outputs")
