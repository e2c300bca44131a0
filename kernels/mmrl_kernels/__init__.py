"""Fused operations for reinforcement learning on images, video and text, each beside its plain torch reference."""
