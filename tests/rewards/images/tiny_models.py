"""Models of a few thousand random parameters, saved as the hub has them: what the loading paths are tested with."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

WORDS = ("a", "photo", "of", "dog", "cat", "red", "green", "blue", "sports", "ball", "circle", "square", "triangle")
LABELS = {0: "N/A", 1: "dog", 2: "cat", 3: "sports ball", 4: "mouse"}
SWIN = {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "window_size": 4, "image_size": 64}


def vivid(model: torch.nn.Module) -> torch.nn.Module:
    """The same with larger weights in its heads: fresh ones say the same of every box."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (
                any(head in name for head in ("class", "bbox", "box_head", "quer", "detection_tokens"))
                and parameter.dim() > 1
            ):
                parameter.normal_(std=1.0)
    return model


def bert_tokenizer() -> transformers.BertTokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", "-", *WORDS]
    return transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})


def clip_tokenizer(longest: int) -> transformers.CLIPTokenizer:
    letters = [*"abcdefghijklmnopqrstuvwxyz-'"]
    # OWLv2 takes a text that begins with the number 0 for padding
    words = ["!", "<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    return transformers.CLIPTokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=[], model_max_length=longest
    )


def resnet() -> transformers.ResNetConfig:
    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], out_features=["stage4"]
    )


def detr(folder: Path) -> Path:
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=resnet(),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=12,
        id2label=LABELS,
    )
    vivid(transformers.DetrForObjectDetection(config)).save_pretrained(folder)
    transformers.DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(folder)
    return folder


def yolos(folder: Path) -> Path:
    config = transformers.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 64],
        num_detection_tokens=12,
        id2label=LABELS,
    )
    vivid(transformers.YolosForObjectDetection(config)).save_pretrained(folder)
    transformers.YolosImageProcessor(size={"shortest_edge": 64, "longest_edge": 96}).save_pretrained(folder)
    return folder


def mask2former(folder: Path) -> Path:
    config = transformers.Mask2FormerConfig(
        backbone_config=transformers.SwinConfig(**SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=16,
        dim_feedforward=16,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=6,
        id2label=LABELS,
    )
    vivid(transformers.Mask2FormerForUniversalSegmentation(config)).save_pretrained(folder)
    transformers.Mask2FormerImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)
    return folder


def grounding_dino(folder: Path) -> Path:
    tokenizer = bert_tokenizer()
    config = transformers.GroundingDinoConfig(
        backbone_config=transformers.SwinConfig(**SWIN, out_features=["stage2", "stage3", "stage4"]),
        text_config=transformers.BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=64,
        ),
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_queries=12,
        max_text_len=64,
    )
    vivid(transformers.GroundingDinoForObjectDetection(config)).save_pretrained(folder)
    images = transformers.GroundingDinoImageProcessor(size={"shortest_edge": 64, "longest_edge": 96})
    transformers.GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def owlv2(folder: Path) -> Path:
    tokenizer = clip_tokenizer(16)
    text = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Owlv2Config(
        text_config=text | sizes | {"max_position_embeddings": 16},
        vision_config=sizes | {"image_size": 64, "patch_size": 16},
        projection_dim=16,
    )
    model = vivid(transformers.Owlv2ForObjectDetection(config))
    with torch.no_grad():
        model.class_head.logit_shift.weight.zero_()
    model.save_pretrained(folder)
    images = transformers.Owlv2ImageProcessor(size={"height": 64, "width": 64})
    transformers.Owlv2Processor(images, tokenizer).save_pretrained(folder)
    return folder


def clip(folder: Path) -> Path:
    tokenizer = clip_tokenizer(48)
    text = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=text | sizes | {"max_position_embeddings": 48},
        vision_config=sizes | {"image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config)
    with torch.no_grad():  # random projections hardly tell pictures apart
        for parameter in model.parameters():
            parameter.mul_(4)
    model.save_pretrained(folder)
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
