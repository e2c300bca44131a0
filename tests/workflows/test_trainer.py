"""`mmrl.Trainer`: a run from Python resumes by itself, and never on other samples than it began with."""

from __future__ import annotations

import pytest
from diffusers import DiffusionPipeline

import mmrl
from mmrl.errors import ConfigError
from mmrl_shapeworld import splits
from mmrl_shapeworld.shipped_models import PIPELINE

SAMPLING = mmrl.DenoisingSampling(
    steps=2, guidance_scale=1.0, transition=mmrl.FlowSDE(), pipeline_args={"max_sequence_length": 1}
)


def trainer(folder, samples):
    policy = mmrl.PipelinePolicy(
        DiffusionPipeline.from_pretrained(PIPELINE), sampling=SAMPLING, train=mmrl.LoRA(rank=2)
    )
    return mmrl.Trainer(
        policy, rewards=["shapeworld"], prompts=samples, batch=mmrl.Batch(2, 2), iterations=1, out=folder / "run"
    )


@pytest.mark.integration
def test_trainer_resumes_and_rejects_other_samples(tmp_path):
    samples = splits.samples("validation")[:3]
    folder = trainer(tmp_path, samples).train()
    written = (folder / "prompts.jsonl").read_bytes()
    metrics = (folder / "metrics.jsonl").read_text()
    assert trainer(tmp_path, samples).train() == folder  # all iterations are done: nothing is trained again
    assert (folder / "metrics.jsonl").read_text() == metrics
    with pytest.raises(ConfigError, match=r"prompts\.jsonl does not hold the samples of `prompts`"):
        trainer(tmp_path, samples[:2]).train()
    assert (folder / "prompts.jsonl").read_bytes() == written
