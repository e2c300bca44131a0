"""Captions to draw and pictures to edit for one generator, and a run that imitates both and then explores each."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mmrl.build.config_checks import check
from mmrl.config import load_config
from mmrl.data.media.decode import load_image, load_mask
from mmrl.workflows.train import train
from mmrl_shapeworld import two_tasks
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge, read
from mmrl_shapeworld.editing import Edit, judge_edit
from mmrl_shapeworld.inpainting import Hole
from mmrl_shapeworld.scenes import draw


@pytest.mark.integration
def test_demonstrations_are_right_and_each_task_has_its_reward():
    both = two_tasks.samples("draw-or-edit")
    assert [sample.source for sample in both[:4]] == ["draw", "edit", "draw", "edit"]
    for sample in both[:40]:
        right, began = (
            load_image(each, sample.id) for each in (sample.demonstration["image"], sample.conditions["image"])
        )
        if sample.source == "draw":
            assert judge(right, Caption.from_dict(sample.answer)).strict and not read(began).things
        else:
            edit = Edit.from_dict(sample.answer)
            assert judge_edit(right, edit).strict and began.tobytes() == draw(edit.source).tobytes()
        assert [each.name for each in sample.rewards] == [
            "shapeworld" if sample.source == "draw" else "shapeworld_edit"
        ]


def test_splits_of_one_task_are_halves_and_results_share_no_edit_with_training():
    halves = [two_tasks.samples(name) for name in ("draw-first", "edit-first")]
    assert [len(half) for half in halves] == [512, 512]
    seen = {(sample.prompt, sample.conditions["image"]) for sample in halves[1]}
    for name in ("development", "validation"):
        found = two_tasks.samples(f"draw-or-edit-{name}")
        assert all(sample.demonstration is None for sample in found)
        assert not seen & {(sample.prompt, sample.conditions["image"]) for sample in found if sample.source == "edit"}


@pytest.mark.integration
def test_a_canvas_is_masked_up_to_its_margin_and_a_hole_is_one_of_its_picture():
    both = two_tasks.samples("canvas-or-hole")
    assert [sample.source for sample in both[:4]] == ["draw", "edit", "draw", "edit"]
    for sample in both[:40]:
        began = load_image(sample.conditions["image"], sample.id)
        masked = np.asarray(load_mask(sample.conditions["mask_image"], sample.id)) > 0
        if sample.source == "draw":
            assert masked.sum() == 24 * 24 and masked[4:28, 4:28].all() and not read(began).things
            assert 1 <= Caption.from_dict(sample.answer).total <= 2
        else:
            hole = Hole.from_dict(sample.answer)
            assert np.array_equal(masked, hole.mask()) and began.tobytes() == draw(hole.source).tobytes()
        assert [each.name for each in sample.rewards] == [
            "shapeworld" if sample.source == "draw" else "shapeworld_inpaint"
        ]
    assert [len(two_tasks.samples(name)) for name in ("canvas-first", "hole-first")] == [512, 512]
    seen = {sample.conditions["image"] for sample in two_tasks.samples("hole-first")}
    for name in ("development", "validation"):
        found = [each for each in two_tasks.samples(f"canvas-or-hole-{name}") if each.source == "edit"]
        assert not seen & {sample.conditions["image"] for sample in found}


@pytest.mark.integration
def test_a_pipeline_imitates_both_tasks_in_one_call_and_then_explores_each(tmp_path):
    explored = "algorithm: {name: grpo, clip: {low: 1.0e-2}}"
    config = load_config(
        "shapes-edit",
        [
            "stages=[{iterations: 2, algorithm: {name: sft}, data: {groups: 6, micro_batch: 6}}, "
            f"{{iterations: 1, {explored}, data: {{path: 'shapeworld:draw-first', groups: 2}}}}]",
            "data={path: 'shapeworld:draw-or-edit', groups: 2, group_size: 2, micro_batch: 2}",
            "training={iterations: 4}",
            "evaluation={}",
            "rewards=[{name: shapeworld}]",
            "sampling.steps=3",
            "sampling.window={size: 1}",
            f"run={{dir: '{tmp_path}/run', display: quiet}}",
        ],
    )
    check(config)
    rows = [json.loads(line) for line in (train(config) / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["stage"] for row in trained] == [0, 0, 1, 2]
    assert all(row["replay_gap"] == 0.0 for row in trained)
    assert "reward/shapeworld_edit" not in trained[2] and "loss" in trained[0]
