"""Sampling with a trained model: guidance, LoRA strength, reward guidance, best of N. Nothing here trains."""
