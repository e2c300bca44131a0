"""A stage with another mix than the run, whose terms name data sets."""

from __future__ import annotations

import json

import pytest

from mmrl.config import load_config
from mmrl.workflows.train import train

STAGE = "stages=[{iterations: 1, algorithm: {name: mix, terms: [{name: grpo}, {name: sft, path: general.jsonl}]}}]"


@pytest.mark.integration
def test_a_mix_of_a_stage_imitates_the_data_sets_that_its_terms_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [
        {"prompt": f"{n} + 2 =", "answer": n + 2, "demonstration": str(n + 2), "source": "general"} for n in (3, 5)
    ]
    lines = [json.dumps(line) for line in lines]
    (tmp_path / "general.jsonl").write_text("\n".join(lines) + "\n")
    words = ["data={path: 'shapeworld:sums-train', groups: 2, group_size: 2}", "evaluation={}", "policy.train=lora"]
    words += ["training={iterations: 2}", "sampling.max_new_tokens=8", "run={dir: run, display: quiet}", STAGE]
    train(load_config("shapes-reasoning", words))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [name for name in rows[0] if name.startswith("sft/length_by_source/")] == ["sft/length_by_source/general"]
    assert not [name for name in rows[1] if name.startswith("sft/")]
