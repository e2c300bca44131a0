"""A grid is what its checkpoints really draw: the same noise, one at a time, stopped on request, broken ones named."""

import shutil
import threading
from html import escape

import gradio as gr
import numpy as np
import pytest

from mmrl.build.datasets import load_samples
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.error_handling import Stopped, with_error_messages
from mmrl.demo.generate import GenerationSettings, generate
from mmrl.demo.grid import grid_html
from mmrl.demo.grid_job import grid_job
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import validate_request
from mmrl.demo.scores import DemoScorer
from mmrl.demo.state import IMAGE_KINDS, VLM_KINDS
from mmrl.rollout_request import RolloutRequest
from mmrl.training.run.run_folder import load_run
from tests.training.joint_run import joint_run

SAMPLE = Sample("s", prompt="a red circle")


def finished(job):
    return list(job.reports())[-1].grid


def wanted(columns, names=None, rows=2, steps=2, guidances="", rlg=1, seed=3):
    return validate_request(
        names or list(columns.chosen), "a red circle", seed, rows, steps, guidances, rlg, columns.names
    )


def pixels(picture):
    return np.asarray(picture, np.int16)


def test_run_columns_are_the_base_and_kept_checkpoints(columns):
    assert columns.names == ["base", "drawn/seed-0@10", "drawn/seed-0@20"]
    assert columns.chosen == ("base", "drawn/seed-0@20")
    assert columns.nearest("drawn/seed-0", 14).step == 10 and columns.nearest("drawn/seed-0", 2).name == "base"


@pytest.mark.integration
def test_columns_share_noise_and_differ_in_parameters(columns, scorer):
    grid = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, names=columns.names)))
    assert grid.rows == ("seed 3 / 0", "seed 3 / 1") and len(grid.cells) == 6
    again = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, names=["drawn/seed-0@20"])))
    base, first, last = (pixels(grid.cells[0, name].media) for name in columns.names)
    assert np.array_equal(pixels(again.cells[0, "drawn/seed-0@20"].media), last)  # whoever drew before
    assert not np.array_equal(first, last) and not np.array_equal(base, last)
    assert grid.distance("drawn/seed-0@20") < grid.diversity("base")  # the same noise: nearer than another draw


def test_provenance_holds_all_settings_of_a_cell(columns, scorer):
    cell = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, rlg=1.5))).cells[1, "drawn/seed-0@20"]
    found = cell.provenance
    assert found["run"] == "drawn/seed-0" and found["iteration"] == "20" and found["seed"] == "3, row 1 of 2"
    assert (found["steps"], found["guidance"], found["RLG strength"], found["prompt"]) == (
        "2",
        "1",
        "1.5",
        "a red circle",
    )
    assert "torch" in found["versions"] and "/" not in found["model"]


@pytest.mark.integration
def test_rl_guidance_of_zero_equals_the_base(columns, scorer):
    grid = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, rlg=0)))
    assert np.array_equal(*(pixels(grid.cells[0, name].media) for name in columns.chosen))
    more = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, rlg=3)))
    assert more.distance("drawn/seed-0@20") > 0


@pytest.mark.integration
def test_rows_can_be_guidance_scales(columns, scorer):
    grid = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, guidances="1, 4")))
    assert grid.rows == ("guidance 1", "guidance 4")
    one, four = (pixels(grid.cells[row, "base"].media) for row in (0, 1))
    assert not np.array_equal(one, four) and grid.cells[1, "base"].provenance["guidance"] == "4"


def test_cancel_stops_before_the_next_denoising_step(columns):
    calls = []

    def work(job):
        def called(*_):
            calls.append(1)
            if len(calls) == 3:
                job.stop()

        with columns.pool.activate("base") as policy:
            handle = policy.pipeline.transformer.register_forward_pre_hook(called)
        try:
            generate(columns.pool, columns.usable("base"), SAMPLE, GenerationSettings(0, steps=50), job)
        finally:
            handle.remove()

    with pytest.raises(Stopped):
        list(StoppableJob(work).reports())
    assert 3 <= len(calls) <= 4
    made = generate(
        columns.pool, columns.usable("base"), SAMPLE, GenerationSettings(0, steps=2), StoppableJob(work)
    )  # still whole
    assert made.media[0].size == (32, 32)


def test_closed_listeners_stop_the_job(columns, scorer):
    job = grid_job(columns, scorer, SAMPLE, wanted(columns, steps=60))
    news = job.reports()
    next(news)
    news.close()
    with pytest.raises(Stopped):
        job.raise_if_stopped()


@pytest.mark.integration
def test_concurrent_jobs_equal_separate_jobs(columns, scorer):
    names = {"one": ["drawn/seed-0@10"], "other": ["drawn/seed-0@20"]}
    alone = {who: finished(grid_job(columns, scorer, SAMPLE, wanted(columns, names[who]))) for who in names}
    together = {who: [] for who in names}

    def visit(who):
        for _ in range(3):
            together[who].append(finished(grid_job(columns, scorer, SAMPLE, wanted(columns, names[who]))))

    threads = [threading.Thread(target=visit, args=[who]) for who in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who, (name,) in names.items():
        expected = [pixels(alone[who].cells[row, name].media) for row in (0, 1)]
        assert len(together[who]) == 3
        for grid in together[who]:
            assert all(np.array_equal(pixels(grid.cells[row, name].media), expected[row]) for row in (0, 1))


@pytest.mark.integration
def test_broken_checkpoints_fail_in_their_cell_alone(run, tmp_path, scorer):
    copy = shutil.copytree(run, tmp_path / "broken" / "seed-0")
    cut, garbled = (next((copy / "checkpoints" / f"step-{step}").glob("*.safetensors")) for step in (20, 10))
    cut.write_bytes(cut.read_bytes()[:100])
    garbled.write_bytes(garbled.read_bytes()[:8] + b"x" * (garbled.stat().st_size - 8))  # of the original size
    columns = CheckpointColumns([f"{copy}@10", str(copy)])
    assert columns.chosen == ("base", "broken/seed-0@10", "broken/seed-0@20")
    grid = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, rows=1)))
    assert "damaged: it has 100 of" in grid.cells[0, "broken/seed-0@20"].problem
    assert "header" in grid.cells[0, "broken/seed-0@10"].problem
    assert all(str(tmp_path) not in cell.problem for cell in grid.cells.values())
    assert grid.cells[0, "base"].media is not None


def test_prompts_without_a_sample_are_generated_and_note_missing_rewards(columns, scorer):
    grid = finished(grid_job(columns, scorer, SAMPLE, wanted(columns, rows=1)))
    assert grid.notes == ["None of the rewards can score this prompt: choose one of the run's."]
    assert "references.answer" in grid.cells[0, "base"].scored.reasons["shapeworld"]
    assert grid.best is None


def test_failed_jobs_report_no_path():
    def work(job):
        raise PermissionError("/home/user/secret is closed")

    @with_error_messages
    def handler():
        yield from StoppableJob(work).reports()

    with pytest.raises(gr.Error, match=r"failed on the server \(PermissionError\)") as raised:
        list(handler())
    assert "secret" not in str(raised.value)


@pytest.mark.slow
def test_a_writer_and_its_painter_are_compared_by_pictures(tmp_path):
    """The pictures are those of the chain, each with the text that it was drawn from; settings are the painter's."""
    folder = joint_run(tmp_path / "joint", "training.iterations=2", "policy.train=lora")
    columns = CheckpointColumns([str(folder)])
    last = columns.chosen[1]
    assert columns.of_kind(*IMAGE_KINDS) == columns.names and not columns.of_kind(*VLM_KINDS)
    sample = next(iter(load_samples("shapeworld:terse-development", load_run(folder).config.media)))
    scorer = DemoScorer([load_run(folder).config])
    as_trained, shorter = (
        finished(grid_job(columns, scorer, sample, wanted(columns, rows=1, steps=n))) for n in (0, 2)
    )
    cells = [grid.cells[0, last] for grid in (as_trained, shorter)]
    assert all(cell.scored.values["shapeworld"] >= 0 for cell in cells)
    assert cells[0].written == cells[1].written != "" and escape(cells[0].written) in grid_html(as_trained)
    assert not np.array_equal(pixels(cells[0].media), pixels(cells[1].media))  # the same text, drawn in fewer steps
    assert [cell.provenance["steps"] for cell in cells] == ["3", "2"]
    with columns.pool.answering(last) as chain:
        request = RolloutRequest(sample, n=1, group=0, sampling=columns.usable(last).sampling)
        alone = chain.rollout([request], 3)
    assert np.array_equal(pixels(alone.media[0]), pixels(cells[0].media))
