"""Rewards of images. Each receives its images through `mmrl.rewards.core.image_input`."""
