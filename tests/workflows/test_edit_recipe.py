"""The recipe of edits that are thought about, as it stands, trains an iteration of the tiny models of its classes."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from mmrl.build.training_setup import check
from mmrl.config.loading.load import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.workflows.train import train
from tests.generation import tiny_pipelines
from tests.understanding import tiny_vlms

REWARDS = """
def done(image, prompt):
    return image.convert("L").getpixel((0, 0)) / 255

def kept(image, prompt):
    return image.convert("L").getpixel((9, 9)) / 255 + len(prompt)
"""


def test_qwen_thinks_and_instruct_pix2pix_edits(tmp_path: Path):
    tiny_vlms.build("qwen2_5_vl", tmp_path / "writer")
    tiny_pipelines.build("sd15_pix2pix").save_pretrained(tmp_path / "painter")
    sizes = tiny_pipelines.PIPELINES["sd15_pix2pix"].sampling
    for number in range(2):
        Image.new("RGB", (56, 56), (200, 90 * number, 20)).save(tmp_path / f"{number}.png")
    messages = (
        {"role": "system", "content": "Plan the edit."},
        {"role": "user", "content": "remove it"},
    )
    write_samples(
        [Sample(id=f"s{n}", messages=messages, images=(str(tmp_path / f"{n}.png"),)) for n in range(2)],
        tmp_path / "data.jsonl",
    )
    (tmp_path / "reward.py").write_text(REWARDS)
    words = [
        f"policy.model={tmp_path / 'writer'}",
        "policy.dtype=float32",
        "policy.gradient_checkpointing=false",
        f"models.painter.model={tmp_path / 'painter'}",
        "models.painter.lora.rank=2",
        *(f"models.painter.sampling.{name}={sizes[name]}" for name in ("height", "width") if name in sizes),
        "models.painter.sampling.steps=3",
        "models.painter.sampling.window={size: 1}",
        "sampling.max_new_tokens=4",
        f"rewards=[{{name: '{tmp_path / 'reward.py'}:done'}}, {{name: '{tmp_path / 'reward.py'}:kept'}}]",
        f"data={{path: '{tmp_path / 'data.jsonl'}', groups: 2, group_size: 4, micro_batch: 8}}",
        "training.iterations=1",
        f"run={{dir: '{tmp_path / 'run'}', display: quiet}}",
    ]
    config = load_config("thinkrl-edit-qwen25-vl-3b", words)
    check(config)
    rows = [json.loads(line) for line in (train(config) / "metrics.jsonl").read_text().splitlines()]
    (row,) = [row for row in rows if row["kind"] == "train"]
    assert row["grad_norm"] > 0 and row["painter/grad_norm"] > 0
    assert 9 <= row["reward/kept"] <= 10  # the user's own request is judged, of nine letters
