"""ImageReward against timm's picture encoder and BLIP's text encoder written out, both fed the file's own tensors."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from mmrl.rewards import RewardError, load
from mmrl.rewards.models.image_reward import text_tensors, vision_name, vision_tensors
from tests.rewards.models.tiny_models import MED, SIZE, answer, answers, image_reward_tensors, prompt

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def read_while_looking(tensors: dict[str, Tensor], tokens: Tensor, mask: Tensor, patches: Tensor) -> Tensor:
    """[B, L, D]: BLIP's text encoder, with the picture's patches in every layer."""
    weights = {k.removeprefix("blip.text_encoder."): t.double() for k, t in tensors.items() if "text_encoder" in k}

    def linear(name, x):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(name, x):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        return scaled * weights[name + ".weight"] + weights[name + ".bias"]

    def attend(name, x, to, hidden):
        heads = MED["num_attention_heads"]
        queries, keys, values = (
            linear(f"{name}.self.{part}", source).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, source in (("query", x), ("key", to), ("value", to))
        )
        match = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        seen = match.masked_fill(hidden[:, None, None], -math.inf).softmax(-1) @ values
        return norm(f"{name}.output.LayerNorm", linear(f"{name}.output.dense", seen.transpose(1, 2).flatten(2)) + x)

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = norm("embeddings.LayerNorm", x + weights["embeddings.position_embeddings.weight"][: tokens.shape[1]])
    for layer in range(MED["num_hidden_layers"]):
        place = f"encoder.layer.{layer}"
        x = attend(f"{place}.attention", x, x, mask == 0)
        x = attend(f"{place}.crossattention", x, patches, torch.zeros(patches.shape[:2], dtype=torch.bool))
        inner = functional.gelu(linear(f"{place}.intermediate.dense", x))
        x = norm(f"{place}.output.LayerNorm", linear(f"{place}.output.dense", inner) + x)
    return x


def published_scores(items, tokenizer_folder: str) -> np.ndarray:
    from timm.models.vision_transformer import VisionTransformer
    from torchvision import transforms
    from transformers import BertTokenizer

    tensors = image_reward_tensors()
    vision = VisionTransformer(SIZE, 8, embed_dim=128, depth=2, num_heads=2, num_classes=0).eval()
    eyes = {k.removeprefix("blip.visual_encoder."): t for k, t in tensors.items() if "visual_encoder" in k}
    vision.load_state_dict(eyes)
    preprocess = transforms.Compose(
        [
            transforms.Resize(SIZE, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(SIZE),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    tokenizer = BertTokenizer.from_pretrained(tokenizer_folder)
    read = tokenizer(
        [item.prompt for item in items], padding="max_length", truncation=True, max_length=35, return_tensors="pt"
    )
    with torch.no_grad():
        patches = vision.double().forward_features(torch.stack([preprocess(item.image) for item in items]).double())
        x = read_while_looking(tensors, read["input_ids"], read["attention_mask"], patches)[:, 0]
        for layer in (0, 2, 4, 6, 7):
            x = x @ tensors[f"mlp.layers.{layer}.weight"].double().T + tensors[f"mlp.layers.{layer}.bias"].double()
    return ((x[:, 0] - 0.16717362830052426) / 1.0333394966054072).numpy()


@pytest.mark.integration
def test_image_reward_equals_the_published_network(image_reward):
    items = answers(500) + [answer(seed, prompt=prompt(seed, 60)) for seed in range(4)]
    scored = load("image_reward", **image_reward).score(items).values["image_reward"]
    expected = published_scores(items, image_reward["tokenizer"])
    np.testing.assert_allclose(scored, expected, rtol=1e-4, atol=1e-4)
    assert np.std(scored) > 1


def test_image_reward_ignores_padding_and_other_rows(image_reward):
    """A mask that is added as true and false, not as zero and minus infinity, would let padding in."""
    reward = load("image_reward", **image_reward)
    with torch.no_grad():
        reward._parts.text.embeddings.word_embeddings.weight[0] += 50  # of [PAD]
    expected = load("image_reward", **image_reward).score(answers(4)).values["image_reward"]
    np.testing.assert_allclose(reward.score(answers(4)).values["image_reward"], expected, rtol=1e-5)


def test_weight_names_map_one_to_one_onto_blip():
    tensors = image_reward_tensors()
    vision = BlipVisionModel(
        BlipVisionConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            image_size=32,
            patch_size=8,
        )
    )
    settings = {key: MED[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")}
    text = BlipTextModel(
        BlipTextConfig(**settings, num_attention_heads=3, max_position_embeddings=40, encoder_hidden_size=128),
        add_pooling_layer=False,
    )
    for theirs, ours in ((vision, vision_tensors(tensors)), (text, text_tensors(tensors))):
        expected = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
        assert {name: tensor.shape for name, tensor in ours.items()} == expected


def test_weight_names_round_trip():
    """Round trip: put through transformers' network and back, every tensor is what and where it was."""
    tensors = {k.removeprefix("blip.visual_encoder."): t for k, t in image_reward_tensors().items() if "visual_" in k}
    back = {vision_name(name): name for name in tensors}
    assert len(back) == len(tensors)
    model = BlipVisionModel(
        BlipVisionConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            image_size=32,
            patch_size=8,
        )
    )
    model.load_state_dict({vision_name(name): tensor for name, tensor in tensors.items()})
    returned = {back[name]: tensor for name, tensor in model.state_dict().items()}
    assert returned.keys() == tensors.keys()
    assert all(torch.equal(returned[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", ["blocks.x.norm1.weight", "blocks.0.norm3.weight", "head.weight", "fc_norm.bias", ""])
def test_unknown_weight_names_raise(name):
    with pytest.raises(RewardError, match="has no tensor"):
        vision_name(name)


def test_published_sizes_are_inferred_from_the_tensors():
    """ViT-L/16 at 224: 24 blocks of width 1024 and 16 heads."""
    from mmrl.rewards.models import image_reward

    assert 1024 // image_reward.HEAD_WIDTH == 16 and 768 // image_reward.HEAD_WIDTH == 12
    assert math.isqrt(197 - 1) * 16 == 224


def test_files_that_are_no_image_reward_raise(image_reward, tmp_path):
    from pathlib import Path

    med = (Path(image_reward["model"]) / "med_config.json").read_text()
    arguments = {"model": str(tmp_path), "tokenizer": image_reward["tokenizer"]}
    with pytest.raises(RewardError, match=r"has no ImageReward.safetensors or ImageReward.pt; it has nothing"):
        load("image_reward", **arguments)
    torch.save({"weight": torch.zeros(2)}, tmp_path / "ImageReward.pt")
    with pytest.raises(RewardError, match=r"has no med_config.json; it has ImageReward.pt"):
        load("image_reward", **arguments)
    (tmp_path / "med_config.json").write_text("{")
    with pytest.raises(RewardError, match=r"med_config.json cannot be loaded"):
        load("image_reward", **arguments)
    (tmp_path / "med_config.json").write_text(med)
    with pytest.raises(RewardError, match=r"has no tensors called blip.visual_encoder.\* and blip.text_encoder.\*"):
        load("image_reward", **arguments)
    tensors = image_reward_tensors()
    del tensors["blip.text_encoder.encoder.layer.1.crossattention.self.key.weight"]
    torch.save(tensors, tmp_path / "ImageReward.pt")
    with pytest.raises(
        RewardError, match=r"(?s)ImageReward.pt cannot be loaded: .*layer.1.crossattention.self.key.weight"
    ):
        load("image_reward", **arguments)
