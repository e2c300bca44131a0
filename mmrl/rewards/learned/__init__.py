"""Reward models that are trained here: heads on frozen encoders, from pairs or scores (`mmrl train reward`)."""
