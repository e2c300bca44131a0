"""Samples, the files that hold them and the order in which they are trained on."""

from mmrl.data.jsonl import DataError, read_samples, write_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import RewardChoice, Sample

__all__ = ["DataError", "PromptSampler", "RewardChoice", "Sample", "read_samples", "write_samples"]
