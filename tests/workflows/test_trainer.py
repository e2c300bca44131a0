"""`mmrl.Trainer`: a run from Python resumes by itself, and never on other samples than it began with."""

from __future__ import annotations

import pytest
from diffusers import DiffusionPipeline

import mmrl
from mmrl.errors import ConfigError, DataError
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


@pytest.mark.integration
def test_texts_in_place_of_samples_or_of_a_list_of_rewards_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"prompts: 'a red circle' is no sample: write mmrl\.Sample"):
        trainer(tmp_path, ["a red circle"])
    with pytest.raises(ConfigError, match=r"rewards: write \['shapeworld'\]"):
        mmrl.Trainer(None, prompts="prompts.jsonl", rewards="shapeworld")
    broken = trainer(tmp_path, [mmrl.Sample(id="1", prompt="a red circle")])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("name: run")  # of a run that trained nothing
    with pytest.raises(DataError, match="the data set has 1 samples, fewer than the 2 groups"):
        broken.train()
    assert (tmp_path / "run/prompts.jsonl").exists()
