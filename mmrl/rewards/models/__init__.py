"""Rewards that run a network in this process: CLIP-like models, preference models, VQAScore.

    load("pickscore")                                          the published weights, from the Hugging Face hub
    load("clip_score", model="path/to/folder", device="cpu")   any CLIP, in transformers or open_clip form
    load("vqa_score", model="Qwen/Qwen3-VL-2B-Instruct", dtype="bfloat16")

Weights are read when the reward is built, so that missing files raise at once. safetensors are preferred; where only
pickled tensors are published (HPSv2, LAION's aesthetic head, ImageReward) they are read with torch's `weights_only`,
which runs no code. Code from a repository is never run.

To add one: extend `PixelReward` (a network that sees pixels, with gradients), `EmbeddingReward` (one that compares
embeddings of an `Encoder`) or `ModelReward` (anything else).
"""
