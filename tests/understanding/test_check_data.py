"""Every bad line of a data set is found, with its number and with what to do; good lines are left in peace."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.data import DataError
from mmrl.understanding.tasks.check_data import check_data
from tests.data.media_files import moving_square, write_clip
from tests.understanding.test_tasks import LINES, MEDIA

GROUNDING: dict[str, Any] = {
    "task": "grounding",
    "prompt": "the cat",
    "images": ["a.png"],
    "answer": [20, 10, 100, 50],
    "metadata": {"space": "pixel"},
}
COUNTING: dict[str, Any] = {"task": "counting", "prompt": "how many?", "images": ["a.png"], "answer": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A picture of 200 x 100, one that is cut off, and a clip of 2 seconds."""
    found = tmp_path_factory.mktemp("data")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (100, 200, 3), dtype=np.uint8))
    noise.save(found / "a.png")
    content = (found / "a.png").read_bytes()
    (found / "cut.png").write_bytes(content[: len(content) // 2])
    write_clip(found / "a.mp4", moving_square(16))
    return found


def check(folder, *lines, **options):
    path = folder / "lines.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return check_data(str(path), **options)


def test_good_lines_of_every_task_pass(folder):
    lines = []
    for task, line, *_ in LINES:
        kind = MEDIA.get(task, "images")
        media = {kind: ["a.mp4" if kind == "videos" else "a.png"]} if kind else {}
        lines.append({"task": task, "prompt": "x", "source": "mine", "metadata": {"space": "pixel"}} | media | line)
    report = check(folder, *lines)
    assert report.problems == []
    assert sum(tally.scored for tally in report.tallies.values()) == len(lines) == report.lines
    assert report.tallies["mine", "grounding"].pictures == 1 and not report.not_scored
    for thinking_form in ("tags", "boxed"):  # samples that are complete, and answered in another form
        own = {
            "prompt": "x",
            "answer": "7",
            "rewards": [{"name": "numeric"}],
            "metadata": {"answer_form": thinking_form},
        }
        assert check(folder, own).problems == []


@pytest.mark.parametrize(
    "line, problem",
    [
        ("{broken", "is not JSON"),
        ("[]", "is a list; a sample is an object"),
        ({**COUNTING, "promt": "y"}, "'promt' is not a key of Sample: did you mean prompt?"),
        (
            {**COUNTING, "answer": "many"},
            "count_exact cannot use its answer: references['answer']: no number in 'many'",
        ),
        ({**COUNTING, "images": ["none.png"]}, "none.png: there is no such file"),
        ({**COUNTING, "images": ["cut.png"]}, "cut.png: cannot be read as a picture (image file is truncated)"),
        ({**COUNTING, "prompt": "<image> <image>"}, "its text has places for 2 images and 0 videos"),
        ({**COUNTING, "messages": [{"role": "user", "content": 3}]}, "messages.0: its content is neither a text nor"),
        ({"task": "counting", "prompt": "x", "answer": 3}, "the task counting needs an image or a video"),
        ({key: COUNTING[key] for key in ("task", "prompt", "images")}, "has no answer for its reward to compare with"),
        ({**GROUNDING, "task": "groundin"}, "there is no task 'groundin': did you mean grounding"),
        ({**GROUNDING, "metadata": {}}, "does not say what its coordinates count"),
        ({**GROUNDING, "answer": [20, 10, 100, 150]}, "lies outside the picture, which is 200 by 100 in pixel"),
        ({**GROUNDING, "answer": [100, 10, 20, 50]}, "the corners of [100, 10, 20, 50] are swapped"),
        ({**GROUNDING, "answer": [[1, 2, 3, 4], [5, 6, 7, 8]]}, "references['answer'] has 2 boxes, not one"),
        ({**GROUNDING, "answer": [0.1, 0.2, 0.5, 0.6]}, "stated in pixel, and all lie between 0 and 1: norm_1?"),
        ({**GROUNDING, "metadata": {"space": "norm_1"}}, "lies outside the picture, which is 1 by 1 in norm_1"),
        ({**GROUNDING, "metadata": {"space": "pixel", "size": [100, 200]}}, "say that the picture is [100, 200]"),
        ({**GROUNDING, "images": ["a.png", "a.png"]}, "has 2 pictures and boxes in one of them"),
        ({"prompt": "x", "answer": 1, "rewards": [{"name": "numerik"}]}, "there is no reward 'numerik': did you mean"),
        ({"prompt": "x", "answer": 1, "rewards": [{"name": "numeric", "args": {"relative": -1}}]}, "relative is -1"),
        ({"prompt": "x", "answer": "C", "task": "puzzle", "metadata": {"choices": ["a"]}}, "none of the options A"),
        ({"prompt": "x", "chosen": "a"}, "has one of 'chosen' and 'rejected'"),
        ({"task": "ocr", "prompt": "x", "images": ["a.png"], "answer": "a <answer>"}, "ocr_ned cannot use its answer"),
        (
            {"task": "temporal-grounding", "prompt": "x", "videos": ["a.mp4"], "answer": [1, 9]},
            "its answer ends at 9 s, and its video lasts 2.0 s",
        ),
        ({"task": "temporal-grounding", "prompt": "x", "videos": ["a.mp4"], "answer": [2, 1]}, "a span ends after it"),
        ({"task": "table2latex", "prompt": "x", "images": ["a.png"], "answer": "a b"}, "not a table"),
    ],
)
def test_bad_lines_are_found_among_good_ones(folder, line, problem):
    report = check(folder, GROUNDING, line, COUNTING)
    assert {found.number for found in report.problems} == {2}
    assert any(problem in found.text for found in report.problems), report.problems
    assert sum(tally.bad for tally in report.tallies.values()) == 1


def test_references_that_their_reward_rejects_are_reported(folder):
    """`**` is markdown's bold to the reward: what the line says is right can never be answered."""
    line = {"task": "chart", "prompt": "x", "images": ["a.png"], "answer": "**net** 5"}
    (problem,) = check(folder, line).problems
    assert problem.text == "chart_relaxed gives its own answer, '**net** 5', 0 and not 1"


def test_every_problem_of_every_line_is_reported(folder):
    twice = {**COUNTING, "id": "same"}
    both = {**GROUNDING, "images": ["cut.png"], "prompt": "<image> <image>"}
    report = check(folder, twice, twice, both, {**COUNTING, "promt": 1, "imges": 2}, "{")
    assert [found.number for found in report.problems] == [2, 3, 3, 4, 4, 5]
    assert report.problems[0].text == "the id 'same' is already that of line 1"


def test_without_media_no_file_is_opened(folder):
    missing = [{**GROUNDING, "images": ["none.png"]}, {**COUNTING, "images": ["none.png"]}]
    assert check(folder, *missing, media=False).problems == []
    assert len(check(folder, *missing).problems) == 2
    (odd,) = check(folder, {**missing[0], "answer": [100, 10, 20, 50]}, media=False).problems
    assert "swapped" in odd.text


def test_lines_without_a_task_use_that_of_the_run(folder):
    bare = {key: value for key, value in COUNTING.items() if key != "task"}
    assert check(folder, {**bare, "answer": "many"}).problems == []
    assert len(check(folder, {**bare, "answer": "many"}, task="counting").problems) == 1


def test_code_named_by_a_dataset_is_not_run(folder, monkeypatch):
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    monkeypatch.syspath_prepend(folder)
    names = [f"{folder}/evil.py:f", "evil:f", "bmas"]
    line = {"prompt": "x", "answer": 1, "rewards": [{"name": name} for name in names]}
    report = check(folder, line)
    assert report.problems == [] and report.not_scored == dict.fromkeys(names, 1)


def test_unreadable_files_are_one_error(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        check_data(str(tmp_path / "none.jsonl"))


def test_pictures_of_conditions_and_answers_are_counted(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    edit = {"prompt": "make it red", "image": "a.png", "chosen": {"image": "a.png"}, "rejected": {"image": "a.png"}}
    (tmp_path / "edits.jsonl").write_text(json.dumps(edit) + "\n")
    report = check_data(str(tmp_path / "edits.jsonl"))
    assert report.tallies["default", ""].pictures == 3 and not report.problems
