"""A pipeline whose calls make one video each is trained with calls of one row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.errors import ConfigError
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines

REWARD = """
def bright(video, prompt):
    return sum(frame.convert("L").getpixel((0, 0)) for frame in video) / 255
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    tiny_pipelines.build("wan_vace").save_pretrained(tmp_path / "vace")
    write_samples(tiny_pipelines.samples("wan_vace", tmp_path), tmp_path / "swaps.jsonl")
    (tmp_path / "reward.py").write_text(REWARD)
    sampling = tiny_pipelines.sampling("wan_vace", steps=3).model_dump(
        include={"height", "width", "num_frames", "steps"}
    )
    return [
        f"policy={{kind: pipeline, model: '{tmp_path / 'vace'}', train: lora, lora: {{rank: 2}}}}",
        *(f"sampling.{name}={value}" for name, value in sampling.items()),
        "sampling.guidance_scale=1.0",
        "sampling.transition={name: flow_sde}",
        "sampling.pipeline_args={max_sequence_length: 8}",
        "algorithm={name: grpo}",
        f"rewards=[{{name: '{tmp_path / 'reward.py'}:bright'}}]",
        f"data={{path: '{tmp_path / 'swaps.jsonl'}', groups: 2, group_size: 2, micro_batch: 1}}",
        "training.iterations=1",
        "evaluation={prompts: 2, samples: 1, batch: 1}",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]


@pytest.mark.integration
def test_wan_vace_learns_from_videos_that_are_made_one_at_a_time(words):
    run = train(load_config("quickstart", words))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "train"]
    assert row["grad_norm"] > 0 and row["replay_gap"] == 0


@pytest.mark.parametrize("key", ["data.micro_batch", "evaluation.batch"])
def test_calls_of_more_rows_are_refused_before_the_first(words, key):
    with pytest.raises(
        ConfigError, match=r"WanVACEPipeline makes one picture or video per call, not 2: set data\.micro"
    ):
        train(load_config("quickstart", [*words, f"{key}=2"]))
