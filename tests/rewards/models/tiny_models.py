"""Models of a few thousand weights in the file layouts of the published ones, and pictures to show them.

Nothing of mmrl is used here: what the rewards load was written by the libraries that they port.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from mmrl.rewards import RewardInput

WORDS = ["a", "the", "photo", "red", "green", "blue", "circle", "square", "triangle", "two", "three", "on", "left"]
SIZE = 32


def picture(seed: int, width: int = 61, height: int = 47) -> Image.Image:
    """Soft blobs of colour under some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    noise = rng.normal(0, 25, (height, width, 3))
    return Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8))


def prompt(seed: int, words: int = 5) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


def answer(seed: int, **fields) -> RewardInput:
    sample = {"image": picture(seed, 40 + seed % 3 * 17, 40 + seed % 4 * 11), "prompt": prompt(seed)}
    return RewardInput(id=str(seed), group=seed, **(sample | fields))


def answers(count: int) -> list[RewardInput]:
    return [answer(seed) for seed in range(count)]


def as_tensor(picture: Image.Image) -> torch.Tensor:
    """[3, H, W] in [0, 1]."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255


def stir(network: nn.Module, seed: int = 0) -> nn.Module:
    """Weights so large that different inputs give different outputs."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in network.named_parameters():
            if weights.ndim > 1:
                spread = 1.5 / math.sqrt(weights[0].numel())
                weights.copy_(torch.randn(weights.shape, generator=generator) * spread)
            elif not name.endswith(("logit_scale", "logit_bias")):
                middle = 1 if name.endswith("weight") else 0  # of a norm
                weights.copy_(middle + torch.randn(weights.shape, generator=generator) * 0.1)
    return network


def clip_folder(folder: Path, tokens: int = 24) -> Path:
    """A CLIP, as transformers saves it."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    characters = "abcdefghijklmnopqrstuvwxyz0123456789.,!"
    merges = [step for word in WORDS for step in _merges(word)]
    pieces = ["<|startoftext|>", "<|endoftext|>", *characters, *(c + "</w>" for c in characters)]
    pieces = list(dict.fromkeys([*pieces, *("".join(merge) for merge in merges)]))
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=tokens)
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    text = dict(vocab_size=len(pieces), max_position_embeddings=tokens, bos_token_id=0, eos_token_id=1, pad_token_id=1)
    config = CLIPConfig(
        text_config=tower | text,
        vision_config=tower | dict(image_size=SIZE, patch_size=8, projection_dim=24),
        projection_dim=24,
    )
    model = stir(CLIPModel(config))
    model.logit_scale.data.fill_(math.log(100))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE}).save_pretrained(
        folder
    )
    return folder


def _merges(word: str) -> list[tuple[str, str]]:
    """Byte-pair merges that make a word one piece, from the left."""
    letters = [*word[:-1], word[-1] + "</w>"]
    return [("".join(letters[:n]), letters[n]) for n in range(1, len(letters))]


def siglip_folder(folder: Path, tokens: int = 20) -> Path:
    """Save a SigLIP as transformers does, with its own sentencepiece vocabulary."""
    import sentencepiece
    from transformers import SiglipConfig, SiglipModel, SiglipTokenizer
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    folder.mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([prompt(seed) for seed in range(200)]),
        model_prefix=str(folder / "spiece"),
        vocab_size=34,
        bos_id=-1,
        eos_id=1,
        unk_id=2,
        pad_id=0,
        minloglevel=2,
    )
    tokenizer = SiglipTokenizer(str(folder / "spiece.model"), model_max_length=tokens)
    tower = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    config = SiglipConfig(
        text_config=tower | dict(vocab_size=34, max_position_embeddings=tokens, bos_token_id=0, eos_token_id=1),
        vision_config=tower | dict(image_size=SIZE, patch_size=8),
    )
    model = stir(SiglipModel(config))
    model.logit_scale.data.fill_(math.log(10))
    model.logit_bias.data.fill_(-1.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE}).save_pretrained(folder)
    return folder


OPEN_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": SIZE, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}
"""ViT-H-14's configuration, shrunk."""


def open_clip_network() -> nn.Module:
    import open_clip

    return stir(open_clip.CLIP(**{key: dict(v) if isinstance(v, dict) else v for key, v in OPEN_CLIP.items()})).eval()


def open_clip_folder(folder: Path) -> Path:
    """A CLIP, as open_clip's push_to_hf_hub lays it out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    preprocessing = {"mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "interpolation": "bicubic"}
    written = {"model_cfg": OPEN_CLIP, "preprocess_cfg": preprocessing | {"resize_mode": "shortest"}}
    (folder / "open_clip_config.json").write_text(json.dumps(written))
    save_file(open_clip_network().state_dict(), folder / "open_clip_model.safetensors")
    return folder


def hps_folder(folder: Path, file: str = "HPS_v2_compressed.pt") -> Path:
    """The published file's layout: a pickled {"state_dict": ...} of an open_clip network."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": open_clip_network().state_dict()}, folder / file)
    return folder


def head_tensors(width: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The five linear layers that LAION's predictor and ImageReward share, narrower."""
    generator, sizes = torch.Generator().manual_seed(seed), [width, 20, 12, 8, 4, 1]
    tensors = {}
    for layer, before, after in zip((0, 2, 4, 6, 7), sizes, sizes[1:], strict=False):
        tensors[f"layers.{layer}.weight"] = torch.randn(after, before, generator=generator) * 1.5 / math.sqrt(before)
        tensors[f"layers.{layer}.bias"] = torch.randn(after, generator=generator)
    return tensors


MED = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 40,
    "model_type": "bert",
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 64,
    "encoder_width": 768,
    "add_cross_attention": True,
}
"""med_config.json, with smaller numbers; encoder_width is wrong in the published one too, and not used."""


def image_reward_tensors() -> dict[str, torch.Tensor]:
    """Tensors under the names of ImageReward.pt. The picture encoder is timm's, which BLIP copied."""
    from timm.models.vision_transformer import VisionTransformer

    vision = stir(VisionTransformer(SIZE, 8, embed_dim=128, depth=2, num_heads=2, num_classes=0), 1)
    tensors = {f"blip.visual_encoder.{name}": tensor for name, tensor in vision.state_dict().items()}
    hidden, inner, generator = MED["hidden_size"], MED["intermediate_size"], torch.Generator().manual_seed(2)
    text = "blip.text_encoder."

    def linear(name, before, after):
        tensors[f"{text}{name}.weight"] = torch.randn(after, before, generator=generator) * 1.5 / math.sqrt(before)
        tensors[f"{text}{name}.bias"] = torch.randn(after, generator=generator) * 0.1

    def norm(name):
        tensors[f"{text}{name}.weight"] = 1 + torch.randn(hidden, generator=generator) * 0.1
        tensors[f"{text}{name}.bias"] = torch.randn(hidden, generator=generator) * 0.1

    tensors[text + "embeddings.position_ids"] = torch.arange(MED["max_position_embeddings"])[None]
    for table, rows in (("word", MED["vocab_size"]), ("position", MED["max_position_embeddings"])):
        tensors[f"{text}embeddings.{table}_embeddings.weight"] = torch.randn(rows, hidden, generator=generator)
    norm("embeddings.LayerNorm")
    for layer in range(MED["num_hidden_layers"]):
        for block, width in (("attention", hidden), ("crossattention", 128)):
            place = f"encoder.layer.{layer}.{block}"
            linear(f"{place}.self.query", hidden, hidden)
            linear(f"{place}.self.key", width, hidden)
            linear(f"{place}.self.value", width, hidden)
            linear(f"{place}.output.dense", hidden, hidden)
            norm(f"{place}.output.LayerNorm")
        linear(f"encoder.layer.{layer}.intermediate.dense", hidden, inner)
        linear(f"encoder.layer.{layer}.output.dense", inner, hidden)
        norm(f"encoder.layer.{layer}.output.LayerNorm")
    for side, width in (("vision", 128), ("text", hidden)):  # in the published file, and of no use
        tensors[f"blip.{side}_proj.weight"] = torch.randn(16, width, generator=generator)
        tensors[f"blip.{side}_proj.bias"] = torch.randn(16, generator=generator)
    return tensors | {f"mlp.{name}": tensor for name, tensor in head_tensors(hidden, 3).items()}


def image_reward_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    torch.save(image_reward_tensors(), folder / "ImageReward.pt")
    (folder / "med_config.json").write_text(json.dumps(MED))
    return folder


def bert_tokenizer(folder: Path) -> Path:
    """A vocabulary of 62 words and pieces; [DEC] and [ENC] make it 64."""
    from transformers import BertTokenizer

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    pieces = list(dict.fromkeys(pieces))  # the word "a" is a letter too
    pieces += [f"##{n}" for n in range(62 - len(pieces))]
    BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    return folder
