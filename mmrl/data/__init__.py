"""Samples, the files that hold them and the order in which they are trained on."""

from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError

__all__ = ["DataError", "PromptSampler", "RewardChoice", "Sample", "read_samples", "write_samples"]
