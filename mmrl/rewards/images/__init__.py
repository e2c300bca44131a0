"""Rewards that look at pictures. Each takes its pictures through `mmrl.rewards.core.image_input`."""
