"""The recipes of joint GRPO, as they stand, train an iteration of the tiny models of their classes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mmrl.build.training_setup import check
from mmrl.config.loading.load import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison import SubjectStore
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.results import Evaluation
from mmrl.workflows.compare.comparison import CompareRequest, compare
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines
from tests.understanding import tiny_vlms

REWARD = """
def user_text(image, prompt):
    return image.convert('L').getpixel((0, 0)) / 255 + len(prompt)

def dark(image, prompt):
    return -image.convert('L').getpixel((0, 0)) / 255
"""


@pytest.mark.parametrize(("recipe", "rewards"), [("unigrpo", ["user_text"]), ("parrot", ["user_text", "dark"])])
def test_qwen_writes_what_stable_diffusion_draws(recipe: str, rewards: list[str], tmp_path: Path):
    tiny_vlms.build("qwen2_5_vl", tmp_path / "writer")
    tiny_pipelines.build("sd3").save_pretrained(tmp_path / "painter")
    rewards = [f"'{tmp_path / 'reward.py'}:{name}'" for name in rewards]
    sizes = tiny_pipelines.PIPELINES["sd3"].sampling
    messages = (
        {"role": "system", "content": "Write it in full."},
        {"role": "user", "content": "a birthday"},
    )
    write_samples([Sample(id=f"s{n}", prompt="", messages=messages) for n in range(2)], tmp_path / "data.jsonl")
    (tmp_path / "reward.py").write_text(REWARD)
    words = [
        f"policy.model={tmp_path / 'writer'}",
        "policy.dtype=float32",
        "policy.gradient_checkpointing=false",
        f"models.painter.model={tmp_path / 'painter'}",
        "models.painter.lora.rank=2",
        *(f"models.painter.sampling.{name}={sizes[name]}" for name in ("height", "width")),
        "models.painter.sampling.steps=3",
        "sampling.max_new_tokens=4",
        f"rewards=[{', '.join(f'{{name: {reward}}}' for reward in rewards)}]",
        f"data={{path: '{tmp_path / 'data.jsonl'}', groups: 2, group_size: 2, micro_batch: 4}}",
        f"data.validation={tmp_path / 'data.jsonl'}",
        "training.iterations=1",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]
    config = load_config(f"{recipe}-qwen25-vl-3b", words)
    check(config)
    run = train(config)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "train"]
    assert row["grad_norm"] > 0 and row["painter/grad_norm"] > 0 and row["kl"] == 0 == row.get("painter/kl", 0)
    assert 10 <= row["reward/user_text"] <= 11  # the user's own text is judged, of ten letters
    assert len([row for row in rows if row["kind"] == "evaluation"]) == 2
    evaluated = config.evaluation
    request = CompareRequest(
        models=(str(run),),
        data=config.data.validation,
        draws=evaluated.samples,
        batch=evaluated.batch,
        seed=evaluated.seed,
        out=tmp_path / "out",
    )
    done = compare(request, ComparisonDisplay(print))
    base, last = done.result.subjects.values()
    for subject, step in ((base, 0), (last, 1)):
        store, expected = SubjectStore(done.folder, subject.file), Evaluation.load(run, step)
        scores = [row.scores["user_text"] for row in store.lines()]
        np.testing.assert_array_equal(scores, expected.values["user_text"])
        for row, picture in enumerate(expected.images):
            np.testing.assert_array_equal(np.asarray(store.picture(row, 0)), np.asarray(picture))
    assert done.result.subjects.keys() == {f"{run}@base", str(run)} and last.drift.value > 0
