"""Samples, the data sets that contain them, and the order in which training uses them.

sample          `Sample`: one line of a data set
jsonl, sources  JSON Lines; Parquet and data sets of Hugging Face
prompts         `PromptSampler`: shuffled epochs of prompts; `VarianceAwareSampler`: prompts sampled by score
growing_prompts `GrowingSampler`: prompts that a proposer (`proposers`) adds while a run trains
media           images and videos of samples
"""

from mmrl.data.jsonl import read_samples, write_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import DataError

__all__ = ["DataError", "PromptSampler", "RewardChoice", "Sample", "read_samples", "write_samples"]
