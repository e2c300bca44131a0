"""Rewards of images and videos. Each receives its images through `mmrl.rewards.core.image_input`."""
