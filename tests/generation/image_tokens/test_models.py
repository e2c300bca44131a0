"""Each family against its own library: prompts, greedy pictures, codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
    Emu3ForConditionalGeneration,
    JanusForConditionalGeneration,
)

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens.codecs import PatchCodec, load_codec
from mmrl.generation.image_tokens.image_token_model import to_images, to_pixels
from mmrl.generation.image_tokens.image_token_policy import load_image_token_model
from mmrl.rollout_request import RolloutRequest
from tests.generation.image_tokens.conftest import REQUESTS
from tests.generation.image_tokens.tiny_models import CODES, seeded

CPU = torch.device("cpu")
TEXTS = [request.sample.prompt for request in REQUESTS]


def greedy(policy, scale: float = 1.0, negative: str | None = None):
    sampling = ImageTokenSamplingConfig(temperature=0, guidance_scale=scale, negative_prompt=negative)
    return policy.rollout([RolloutRequest(r.sample, 1, r.group, sampling=sampling) for r in REQUESTS], seed=0)


def test_janus_samples_greedily_as_its_own_generate(shared_painter, painter_folder):
    """Guided by 3, prompts of unequal length in one batch."""
    folder = painter_folder("janus")
    model = JanusForConditionalGeneration.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    turns = [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in TEXTS]
    texts = [processor.apply_chat_template(turn, add_generation_prompt=True) for turn in turns]
    inputs = processor(text=texts, generation_mode="image", padding=True, return_tensors="pt")
    expected = model.generate(**inputs, generation_mode="image", do_sample=False, guidance_scale=3.0, use_cache=True)
    came = greedy(shared_painter("janus"), scale=3.0)
    assert came.token_ids == expected.tolist()
    pixels = model.decode_image_tokens(expected).detach().permute(0, 3, 1, 2)
    assert [picture.tobytes() for picture in came.media] == [picture.tobytes() for picture in to_images(pixels)]


@pytest.mark.parametrize("negative", [None, "an ugly frog"])
def test_emu3_samples_greedily_as_its_own_generate(shared_painter, painter_folder, negative):
    """By the library's constraint on tokens and its guidance, which needs prompts one by one."""
    policy, folder = shared_painter("emu3"), painter_folder("emu3")
    model = Emu3ForConditionalGeneration.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    rows, columns = policy.image_model.grid
    mark = f"{processor.tokenizer.boi_token}{rows}*{columns}{processor.tokenizer.image_wrapper_token}"
    visual, end = model.vocabulary_mapping.image_tokens, model.vocabulary_mapping.eol_token_id
    came = greedy(policy, scale=3.0, negative=negative)
    for row, text in enumerate(TEXTS):
        inputs = processor(text=[f"{text}{mark}"], return_tensors="pt")
        against = processor(text=[f"{negative or ''}{mark}"], return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        assert inputs["input_ids"][0].tolist() == list(policy.image_model.prompt(text, negative).cond)

        def allowed(_, ids, length=length):
            return [end] if (len(ids) - length + 1) % (columns + 1) == 0 else visual

        out = model.generate(
            **inputs,
            max_new_tokens=rows * (columns + 1),
            do_sample=False,
            prefix_allowed_tokens_fn=allowed,
            guidance_scale=3.0,
            negative_prompt_ids=against["input_ids"],
            negative_prompt_attention_mask=against["attention_mask"],
        )
        lines = out[:, length:].view(1, rows, columns + 1)
        codes = model.vocabulary_mapping.convert_bpe2img(lines)
        assert came.token_ids[row] == codes.flatten().tolist()
        pixels = model.model.vqmodel.decode(codes)
        assert to_images(pixels)[0].tobytes() == came.media[row].tobytes()


def test_emu3_prompt_has_the_image_size_of_its_processor(painter_folder):
    folder = painter_folder("emu3")
    family = load_image_token_model(ImageTokenConfig(model=str(folder), device="cpu"), CPU)
    processor = AutoProcessor.from_pretrained(folder)
    expected = processor(text=["a dog"], return_for_image_generation=True, return_tensors="pt")
    assert family.prompt("a dog", None).cond == tuple(expected["input_ids"][0].tolist())
    assert list(family.grid) == [int(side) for side in expected["image_sizes"][0]]
    with pytest.raises(ConfigError, match=r"policy\.size: \[20, 24\] must be multiples of 8"):
        load_image_token_model(ImageTokenConfig(model=str(folder), size=(20, 24), device="cpu"), CPU)


def test_composite_samples_greedily_as_its_own_generate(shared_painter, painter_folder):
    policy, folder = shared_painter("composite"), painter_folder("composite")
    model = AutoModelForCausalLM.from_pretrained(folder / "language_model").eval()
    words = AutoTokenizer.from_pretrained(folder / "tokenizer")
    spec = json.loads((folder / "image_tokens.json").read_text())
    first, came = spec["first_code"], greedy(policy)
    outside = [n for n in range(model.config.vocab_size) if not first <= n < first + CODES]
    for row, text in enumerate(TEXTS):
        ids = torch.tensor([[*words(text)["input_ids"], spec["start"]]])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=6,
            suppress_tokens=outside,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert came.token_ids[row] == (out[0, ids.shape[1] :] - first).tolist()


def test_janus_rejects_negative_prompts_and_other_sizes(shared_painter, painter_folder):
    with pytest.raises(ConfigError, match=r"sampling\.negative_prompt: Janus"):
        greedy(shared_painter("janus"), scale=3.0, negative="ugly")
    with pytest.raises(ConfigError, match=r"policy\.size: Janus has a single image size"):
        load_image_token_model(ImageTokenConfig(model=str(painter_folder("janus")), size=(16, 16), device="cpu"), CPU)


def test_patches_round_trip(tmp_path):
    patches = torch.randint(256, (7, 3, 2, 4), generator=seeded(), dtype=torch.uint8)
    book = PatchCodec(patches)
    codes = torch.randint(7, (5, 3, 2), generator=seeded())
    pictures = book.decode(codes)
    assert pictures[0].size == (8, 6)
    assert torch.equal(book.encode(pictures, 3, 2), codes)
    square = np.asarray(pictures[1].crop((4, 2, 8, 4))).transpose(2, 0, 1)
    assert np.array_equal(square, patches[codes[1, 1, 1]].numpy())
    book.save(tmp_path)
    assert torch.equal(load_codec(tmp_path, CPU).encode(pictures, 3, 2), codes)


def test_autoencoder_decodes_as_diffusers_does(painter_folder):
    from diffusers import VQModel

    folder = painter_folder("composite")
    model, codec = VQModel.from_pretrained(folder / "vqvae").eval(), load_codec(folder, CPU)
    pixels = torch.rand(2, 3, 4, 6, generator=seeded()) * 2 - 1
    pictures = to_images(pixels)
    codes = codec.encode(pictures, 2, 3)
    with torch.no_grad():
        expected = model(to_pixels(pictures, 4, 6)).sample
    assert [p.tobytes() for p in codec.decode(codes)] == [p.tobytes() for p in to_images(expected)]


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "cannot be read"),
        ('{"grid": [8, 8]}', "expected a map with the keys"),
        ('{"grid": 8, "first_code": 1, "start": 2}', "grid must be rows and columns"),
        ('{"grid": [8, 0], "first_code": 1, "start": 2}', "columns must be a whole number of at least 1, not 0"),
        ('{"grid": [8, 8], "first_code": true, "start": 2}', "first_code must be a whole number"),
        ('{"grid": [8, 8], "first_code": 900, "start": 2}', "codes are tokens 900 to 919 .* has 283 tokens"),
    ],
)
def test_invalid_descriptions_raise(painter_folder, tmp_path: Path, content, message):
    folder = tmp_path / "broken"
    folder.mkdir()
    for part in ("language_model", "tokenizer", "vqvae"):
        (folder / part).symlink_to(painter_folder("composite") / part)
    (folder / "image_tokens.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"image_tokens\.json.*{message}"):
        load_image_token_model(ImageTokenConfig(model=str(folder), device="cpu"), CPU)


def test_models_that_generate_no_images_raise(painter_folder, tmp_path):
    language = painter_folder("composite") / "language_model"
    with pytest.raises(ConfigError, match=r"is a llama; kind image_tokens draws with janus, emu3, or a folder with"):
        load_image_token_model(ImageTokenConfig(model=str(language), device="cpu"), CPU)
    with pytest.raises(ConfigError, match=r"policy\.model: .*cannot be loaded"):
        load_image_token_model(ImageTokenConfig(model=str(tmp_path), device="cpu"), CPU)


def test_images_of_another_shape_are_cropped_at_the_centre():
    from PIL import Image

    picture = Image.new("RGB", (40, 20), "red")
    picture.paste("blue", (0, 0, 10, 20))
    assert to_images(to_pixels([picture], 8, 8))[0].getpixel((1, 4)) == (255, 0, 0)
