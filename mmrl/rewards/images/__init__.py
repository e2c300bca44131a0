"""Rewards that look at pictures. Each takes its pictures through `mmrl.rewards.images.safety`."""
