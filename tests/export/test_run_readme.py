"""The README of a run names what was trained and loads it back."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from mmrl.config.loading.load import dump_config
from mmrl.config.train import TrainConfig
from mmrl.export.run_readme import write_run_readme
from mmrl.training.run.checkpoints import Checkpoints, TrainerState
from tests.training.token_policy import TokenPolicy


def card(run: Path, evaluations: list[dict[str, float]], **changes: object) -> str:
    """The README of a run with a checkpoint and these evaluations."""
    settings: dict[str, object] = {
        "name": "questions",
        "policy": {"kind": "vlm", "model": "org/model"},
        "data": {"path": "my.jsonl", "groups": 2, "group_size": 4},
    }
    config = TrainConfig.model_validate(settings | changes, strict=False)
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(config))
    lines = [{"kind": "evaluation", "step": step} | numbers for step, numbers in enumerate(evaluations)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Checkpoints(run).save(TokenPolicy(), TrainerState(4, {}, {}), None)
    return write_run_readme(run, config).read_text(encoding="utf-8")


def code(text: str) -> str:
    snippet = text.split("```python\n")[1].split("\n```")[0]
    ast.parse(snippet)
    return snippet


def test_run_readme_loads_vlms_with_transformers_and_peft(tmp_path):
    lora = code(card(tmp_path / "lora", [], policy={"kind": "vlm", "model": "org/model", "revision": "abc"}))
    assert f'PeftModel.from_pretrained(model, "{tmp_path / "lora"}")' in lora and "diffusers" not in lora
    assert lora.count('from_pretrained("org/model", revision="abc")') == 2
    full = code(card(tmp_path / "full", [], policy={"kind": "vlm", "model": "org/model", "train": "full"}))
    assert full.count(f'from_pretrained("{tmp_path / "full" / "checkpoints" / "step-4"}")') == 2 and "peft" not in full


def test_run_readme_loads_pipelines_with_diffusers(tmp_path):
    text = card(tmp_path / "run", [], policy={"model": "org/model"}, rewards=[{"name": "exact", "weight": 0.5}])
    assert "pipe.load_lora_weights" in code(text) and "exact (weight 0.5)" in text and "transformers" not in text


def test_run_readme_results_are_by_reward_source_and_greedy(tmp_path):
    numbers = {
        "evaluation/total": 0.25,
        "evaluation/near": 0.5,
        "evaluation/brief": 0.1,
        "evaluation_by_source/a|b\nc": 0.125,
        "greedy_evaluation/total": 0.75,
    }
    text = card(tmp_path / "run", [numbers, numbers], evaluation={"rewards": ["brief"]})
    assert "Rewards: each sample's own; scored: near" in text
    assert "| total | 0.250 | 0.250 |" in text and "| total on a\\|b c | 0.125 | 0.125 |" in text
    greedy = text[text.index("## Results, greedy") :]
    assert "| total | 0.750 | 0.750 |" in greedy and "held-out" not in text
    assert "2 prompts × 4 samples an iteration" in text
    assert "## Results" not in card(tmp_path / "one", [numbers])


@pytest.mark.parametrize("name", ["sft", "dpo"])
def test_run_readme_of_offline_runs_states_samples(name, tmp_path):
    assert "`my.jsonl`, 2 samples an iteration" in card(tmp_path / "run", [], algorithm={"name": name})
