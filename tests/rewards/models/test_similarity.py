"""CLIPScore, SigLIP, PickScore and HPS against their formulas, computed with the raw models."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, load
from tests.rewards.models.tiny_models import answer, answers, open_clip_network, picture, prompt

CASES = 500


@pytest.fixture(scope="module")
def items() -> list[RewardInput]:
    return answers(CASES)


def cosines(images: torch.Tensor, texts: torch.Tensor) -> np.ndarray:
    images, texts = images.double().numpy(), texts.double().numpy()
    return (images * texts).sum(1) / np.linalg.norm(images, axis=1) / np.linalg.norm(texts, axis=1)


def raw_cosines(folder: str, items, prefix: str = "", **text) -> tuple[np.ndarray, torch.nn.Module]:
    """Cosines by transformers' own model and processor, used as their model cards say."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    seen = AutoImageProcessor.from_pretrained(folder, backend="pil")(
        images=[item.image for item in items], return_tensors="pt"
    )
    read = AutoTokenizer.from_pretrained(folder)(
        [prefix + item.prompt for item in items], return_tensors="pt", truncation=True, **text
    )
    with torch.no_grad():
        out = model(input_ids=read["input_ids"], pixel_values=seen["pixel_values"])
    return cosines(out.image_embeds, out.text_embeds), model


@pytest.mark.integration
def test_clip_score_equals_the_paper(clip, items):
    items = items + [answer(seed, prompt=prompt(seed, 40)) for seed in range(9)]  # the last are too long
    cos, _ = raw_cosines(clip, items, "A photo depicts ", padding=True)
    assert (cos < 0).any() and (cos > 0.1).any()
    scored = load("clip_score", model=clip, prefix="A photo depicts ").score(items).values["clip_score"]
    np.testing.assert_allclose(scored, 2.5 * np.maximum(cos, 0), atol=1e-5)


@pytest.mark.integration
def test_clip_score_is_a_fortieth_of_torchmetrics(clip, items):
    from torchmetrics.functional.multimodal.clip_score import _clip_score_update  # the public one gives means alone
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel, CLIPProcessor

    class Unwrapped(CLIPModel):  # torchmetrics 1.9 knows transformers 4 alone, whose features were plain tensors
        def get_image_features(self, pixels):
            return super().get_image_features(pixels).pooler_output

        def get_text_features(self, tokens, mask):
            return super().get_text_features(tokens, mask).pooler_output

    theirs = Unwrapped.from_pretrained(clip).eval()
    processor = CLIPProcessor(
        AutoImageProcessor.from_pretrained(clip, backend="pil"), AutoTokenizer.from_pretrained(clip)
    )
    pictures = [torch.from_numpy(np.array(item.image)).permute(2, 0, 1) for item in items]
    expected, _ = _clip_score_update(pictures, [item.prompt for item in items], theirs, processor)
    scored = load("clip_score", model=clip).score(items).values["clip_score"]
    np.testing.assert_allclose(40 * scored, expected.detach().clamp(min=0), atol=1e-3)


@pytest.mark.integration
def test_clip_score_depends_on_the_prefix(clip):
    items = answers(40)
    plain, photo = (
        load("clip_score", model=clip, prefix=p).score(items).values["clip_score"] for p in ("", "A photo ")
    )
    assert np.abs(plain - photo).max() > 0.01


@pytest.mark.integration
def test_clip_score_reads_open_clip_too(open_clip_form, items):
    import open_clip

    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{open_clip_form}")
    tokens = open_clip.get_tokenizer(f"local-dir:{open_clip_form}")([item.prompt for item in items])
    with torch.no_grad():
        images = model.eval().encode_image(torch.stack([preprocess(item.image) for item in items]))
        cos = cosines(images, model.encode_text(tokens))
    for name in (open_clip_form, f"local-dir:{open_clip_form}"):
        scored = load("clip_score", model=name).score(items).values["clip_score"]
        np.testing.assert_allclose(scored, 2.5 * np.maximum(cos, 0), atol=1e-5)


@pytest.mark.integration
def test_pickscore_equals_the_model_card(clip, items):
    cos, model = raw_cosines(clip, items, padding=True, max_length=24)
    assert model.logit_scale.exp().item() == pytest.approx(100, abs=1e-3)
    scored = load("pickscore", model=clip).score(items).values["pickscore"]
    np.testing.assert_allclose(scored, model.logit_scale.exp().item() * cos, atol=1e-4)


@pytest.mark.integration
def test_siglip_is_the_sigmoid_probability_at_full_padding(siglip, items):
    cos, model = raw_cosines(siglip, items, padding="max_length", max_length=20)
    expected = 1 / (1 + np.exp(-(model.logit_scale.exp().item() * cos + model.logit_bias.item())))
    scored = load("siglip_score", model=siglip).score(items).values["siglip_score"]
    np.testing.assert_allclose(scored, expected, atol=1e-5)
    plain = load("siglip_score", model=siglip, output="cosine").score(items).values["siglip_score"]
    np.testing.assert_allclose(plain, cos, atol=1e-5)
    few = [answer(seed, prompt=prompt(seed, 2)) for seed in range(20)]
    padded, unpadded = (raw_cosines(siglip, few, padding=how, max_length=20)[0] for how in ("max_length", True))
    assert np.abs(padded - unpadded).max() > 0.01  # padding matters: the control


def test_siglip_rejects_missing_bias_and_unknown_outputs(clip, siglip):
    with pytest.raises(RewardError, match="has no logit_bias"):
        load("siglip_score", model=clip)
    assert load("siglip_score", model=clip, output="cosine").name == "siglip_score"
    with pytest.raises(RewardError, match="output is 'logit'; it must be one of probability, cosine"):
        load("siglip_score", model=siglip, output="logit")


def hps_pixels(picture: Image.Image, side: int) -> torch.Tensor:
    """HPSv2's own steps: the long side to `side`, black around, OpenAI's mean and deviation."""
    scale = side / max(picture.size)
    small = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC)
    whole = Image.new("RGB", (side, side), (0, 0, 0))
    whole.paste(small, ((side - small.width) // 2, (side - small.height) // 2))
    pixels = np.asarray(whole, np.float32) / 255
    pixels = (pixels - [0.48145466, 0.4578275, 0.40821073]) / [0.26862954, 0.26130258, 0.27577711]
    return torch.from_numpy(pixels).permute(2, 0, 1).float()


@pytest.mark.integration
@pytest.mark.parametrize("name", ["hps_v2", "hps_v21"])
def test_hps_is_the_cosine_of_a_padded_image(hps, name, items):
    import open_clip

    model = open_clip_network()
    tokens = open_clip.tokenize([item.prompt for item in items])
    with torch.no_grad():
        images = model.encode_image(torch.stack([hps_pixels(item.image, 32) for item in items]))
        expected = cosines(images, model.encode_text(tokens))
    scored = load(name, **hps).score(items).values[name]
    np.testing.assert_allclose(scored, expected, atol=1e-5)
    assert np.abs(scored).max() <= 1 and model.logit_scale.exp() > 10  # the scale would show


def test_hps_pads_images_whose_long_side_is_224():
    """The published transform leaves such a picture as it is, and its network then fails."""
    from open_clip.transform import image_transform

    image = picture(0, 224, 100)
    made = image_transform(224, is_train=False, resize_mode="longest")(image)
    torch.testing.assert_close(made, hps_pixels(image, 224))


def test_published_names_and_scales():
    import open_clip

    from mmrl.rewards.models import clip_rewards, image_reward

    assert (clip_rewards.HPSv2.file, clip_rewards.HPSv21.file) == (
        "HPS_v2_compressed.pt",
        "HPS_v2.1_compressed.pt",
    )
    config = open_clip.get_model_config("ViT-H-14")
    assert config["vision_cfg"]["image_size"] == 224 and config["text_cfg"]["context_length"] == 77
    assert (image_reward.MEAN, image_reward.STD) == (0.16717362830052426, 1.0333394966054072)
    assert (image_reward.TOKENS, clip_rewards.PICKSCORE) == (35, "yuvalkirstain/PickScore_v1")
    assert "sac+logos+ava1-l14-linearMSE.pth" in clip_rewards.AESTHETIC_FILES and math.isinf(
        clip_rewards.Aesthetic.range[1]
    )
    assert clip_rewards.BIG_G.startswith("laion/CLIP-ViT-bigG-14")
