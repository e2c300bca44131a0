"""The HTML parts of pages: curves, grids, wins and losses, boxes, clips."""

import io
import math

import av
import numpy as np
import pytest
from PIL import Image

from mmrl.data.sample import RewardChoice, Sample
from mmrl.demo.answer_boxes import THICKNESS, outline_mask, parse_answer, reference_boxes
from mmrl.demo.grid import Grid, GridCell, export_page, grid_html
from mmrl.demo.reward_curves import curve_points, reward_curve
from mmrl.demo.scores import AnswerScores
from mmrl.demo.tab_prompts import prompt_changes, prompt_changes_html
from mmrl.demo.video_clips import clip_files, clips_html, encode_clip, read_clip
from mmrl.evaluation.run_reader import read_run

HOSTILE = '<img src=x onerror="alert(1)">'


def grid(values, prompt="a dog", heldout=()):
    """Columns base and run@2 of one row each, with these rewards."""
    picture = Image.new("RGB", (8, 8))
    cells = {
        (0, c): GridCell(picture, AnswerScores(v), {"seed": "0"})
        for c, v in zip(("base", "run@2"), values, strict=True)
    }
    return Grid(("base", "run@2"), ("seed 0 / 0",), prompt, {"base": "base", "run@2": "base"}, cells, heldout=heldout)


def test_cells_display_differences_from_base_and_best():
    text = grid_html(grid([{"good": 0.25}, {"good": 0.75}]))
    assert text.count("★ best") == 1 and text.index("★ best") > text.index("run@2")
    base, tuned = text.split("<td><figure")[1:]
    assert "+0.500" in tuned and "-0.500" in base and "-0.500" not in tuned


def test_falling_heldout_rewards_display_a_hint():
    hacked = grid([{"good": 0.2, "held": 0.9}, {"good": 0.8, "held": 0.4}], heldout=("held",))
    assert "good +0.60 while the held-out held -0.50" in hacked.hint("run@2") and hacked.headline == "good"
    assert not grid([{"good": 0.2, "held": 0.4}, {"good": 0.8, "held": 0.9}], heldout=("held",)).hint("run@2")


def test_unscored_values_display_as_a_dash():
    broken = grid([{"good": math.nan}, {"good": 0.5}])
    assert broken.best == "run@2" and math.isnan(broken.mean("base", "good")) and "nan" not in grid_html(broken)


def test_html_of_models_and_data_is_escaped():
    hostile = grid([{HOSTILE: 0.1}, {HOSTILE: 0.2}], prompt=HOSTILE)
    hostile.cells[0, "base"] = GridCell(
        HOSTILE, AnswerScores({HOSTILE: 0.1}, {HOSTILE: HOSTILE}), {HOSTILE: HOSTILE}, HOSTILE
    )
    hostile.notes.append(HOSTILE)
    assert "<img src=x" not in grid_html(hostile) + export_page(hostile, "", "")


def test_exported_page_loads_no_resource():
    text = export_page(grid([{"good": 0.1}, {"good": 0.2}]), "", "")
    assert "default-src 'none'" in text and "http" not in text.replace("http-equiv", "") and "<script" not in text


def test_curve_points_link_to_checkpoints(run):
    drawn = reward_curve(read_run(run), "drawn", {10, 20})
    assert drawn.count('class="kept"') == 2 and drawn.count("data-step") == 20
    assert len(curve_points(range(1, 1001), [0.5] * 1000, {7, 1000})) <= 70
    assert dict(curve_points([2, 4], [0.1, 0.9], {3, 5}))[5] == 0.9  # a checkpoint between two lines of the log


def test_prompt_changes_are_sorted_by_change_and_filtered_by_source(run):
    found = prompt_changes(read_run(run))
    changes = [row.change for row in found.rows]
    assert changes == sorted(changes, reverse=True) and found.steps == (0, 20) and min(changes) < 0 < max(changes)
    assert found.rows[0].heldout[0][0] == "shapeworld_heldout"
    only = prompt_changes_html(found, "pair")
    assert ">single<" not in only and ">pair<" in only
    assert prompt_changes_html(found, losses_first=True).index("Lost") < prompt_changes_html(
        found, losses_first=True
    ).index("Won")


def test_runs_without_evaluations_are_reported(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x\n")
    assert "no two evaluations" in prompt_changes_html(prompt_changes(read_run(tmp_path)))


def boxed(space="norm_1000", answer=None):
    rewards, known = (RewardChoice("box_iou", args={"space": space}),), {"space": "pixel", "size": [200, 100]}
    return Sample("s", task="grounding", answer=answer, rewards=rewards, metadata=known)


@pytest.mark.parametrize(
    ("space", "text"),
    [("norm_1000", "[100, 200, 500, 600]"), ("pixel", "[20, 20, 100, 60]"), ("norm_1", "[0.1, 0.2, 0.5, 0.6]")],
)
def test_boxes_of_every_coordinate_space_are_drawn_alike(space, text):
    (box,) = parse_answer(boxed(space), text)[1]
    assert box.box == pytest.approx((0.1, 0.2, 0.5, 0.6))
    (right,) = reference_boxes(boxed(space, [20, 20, 100, 60]))
    assert right.box == pytest.approx((0.1, 0.2, 0.5, 0.6))


def test_malformed_answers_have_no_boxes_and_a_reason():
    text, boxes = parse_answer(boxed(), "it is on the left")
    assert text.startswith("malformed: no box") and boxes == []
    assert parse_answer(Sample("s", prompt="how many?"), "<answer>3</answer>") == ("3", [])


def test_outlines_do_not_cover_the_boxed_region():
    mask = outline_mask((0.25, 0.25, 0.75, 0.75), (80, 40))
    assert mask.shape == (40, 80) and mask[20, 20 + THICKNESS - 1] == 1 and mask[20, 40] == 0 and mask[:10].sum() == 0
    assert outline_mask((0.9, 0.9, 0.901, 0.901), (80, 40)).shape == (40, 80)


def test_clips_are_seekable_and_hold_every_frame():
    frames = [Image.new("RGB", (17, 9), (50 * number, 0, 0)) for number in range(5)]
    with av.open(io.BytesIO(encode_clip("x", frames).content)) as container:
        read = list(container.decode(video=0))
        reds = [np.asarray(frame.to_image())[..., 0].mean() for frame in read]
    assert len(read) == 5 and all(frame.key_frame for frame in read)
    assert reds == pytest.approx([0, 50, 100, 150, 200], abs=4)


def test_only_videos_of_the_samples_of_a_run_are_read(tmp_path):
    (tmp_path / "samples").mkdir()
    clip = encode_clip("x", [Image.new("RGB", (8, 8))] * 2)
    (tmp_path / "secret.mp4").write_bytes(clip.content)
    (tmp_path / "samples" / "a.mp4").write_bytes(clip.content)
    (tmp_path / "samples" / "link.mp4").symlink_to(tmp_path / "secret.mp4")
    (found,) = clip_files(tmp_path)
    assert found.name == "a.mp4" and read_clip("a", found, tmp_path) is not None
    assert read_clip("a", tmp_path / "secret.mp4", tmp_path) is None
    assert read_clip("a", tmp_path / "samples" / ".." / "secret.mp4", tmp_path) is None
    named = encode_clip(HOSTILE, [Image.new("RGB", (8, 8))])
    assert clips_html([clip, named]).count("<video") == 2 and HOSTILE not in clips_html([named])
