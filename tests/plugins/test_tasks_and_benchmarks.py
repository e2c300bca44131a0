"""A VLM task and a benchmark from outside the package: from a file, and as entry points of an installed one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from mmrl.benchmarks.metrics import Row, build_metric, measure
from mmrl.benchmarks.protocol import MetricConfig, load_protocol
from mmrl.benchmarks.readers import READERS, read_benchmark
from mmrl.config import load_config
from mmrl.config.recipes import find_recipe
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core import registry
from mmrl.understanding.tasks.coordinates import CoordinateFormat
from mmrl.understanding.tasks.definitions import TASKS, apply_task

TASK = """
from pathlib import Path

from mmrl.data.sample import RewardChoice
from mmrl.rewards import register
from mmrl.understanding.tasks.answer_instructions import AnswerSpec
from mmrl.understanding.tasks.definitions import Task

COLOUR = Task(
    "colour",
    "Name the colour of a thing.",
    AnswerSpec("one colour, in lower case", RewardChoice("same_colour")),
    recipe=str(Path(__file__).with_name("colour.yaml")),
)


@register
def same_colour(text, references):
    return float(references["answer"] in text)
"""
RECIPE = "name: colour\npolicy: {kind: vlm, model: shapeworld}\nalgorithm: {name: grpo}\ndata: {path: colours.jsonl}\n"
READER = """
from mmrl.benchmarks.records import files_in, json_lines
from mmrl.data.sample import Sample


def read(folder):
    records = [record for path in files_in(folder, "*.jsonl") for record in json_lines(path)]
    return [Sample(id=str(n), prompt=each.text("q"), answer=each.text("a")) for n, each in enumerate(records)]


class Length:
    direction = "lower"

    def prepare(self, rows):
        return lambda indices: float(max(len(rows[index].text) for index in indices))
"""
PROTOCOL = """
name: mine
title: Mine
paper: none
suits: [vlm]
format: my_reader.py:read
files: questions.jsonl
rewards: [{name: numeric}]
metrics: [{name: mean, label: accuracy, of: numeric}, {name: "my_reader.py:Length", label: length}]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a task, its recipe and data, and a reader with its protocol and data."""
    files = {"my_task.py": TASK, "colour.yaml": RECIPE, "my_reader.py": READER, "mine.yaml": PROTOCOL}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    lines = [{"id": str(n), "prompt": "Which colour?", "images": ["red.png"], "answer": "red"} for n in range(4)]
    (tmp_path / "colours.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "a.jsonl").write_text('{"q": "1 + 1?", "a": "2"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.REWARDS, "registered", dict(registry.REWARDS.registered))
    return tmp_path


@pytest.fixture
def package(folder, monkeypatch):
    """The same files as an installed distribution with entry points."""
    info = folder / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    groups = {"mmrl.tasks": "colour = my_task:COLOUR", "mmrl.benchmarks": "questions = my_reader:read"}
    (info / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in groups.items()))
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in ("my_task", "my_reader"):
        sys.modules.pop(name, None)


def test_package_tasks_are_found_by_name_with_their_recipe(package):
    assert "colour" in TASKS.names()
    sample = apply_task(Sample("a", "Which?", images=("red.png",), task="colour"), CoordinateFormat("norm_1"))
    assert sample.prompt.endswith("Answer with nothing but one colour, in lower case.")
    assert find_recipe("colour").path == package / "colour.yaml"
    with pytest.raises(DataError, match="the task colour needs an image"):
        apply_task(Sample("a", "Which?", task="colour"), CoordinateFormat("norm_1"))


def test_datasets_cannot_name_code(folder):
    sample = Sample("a", "Which?", images=("red.png",), task="my_task.py:COLOUR")
    with pytest.raises(DataError, match=r"sample 'a': its line names the code my_task\.py:COLOUR, and data may not"):
        apply_task(sample, CoordinateFormat("norm_1"))


@pytest.mark.integration
def test_file_tasks_train(folder):
    from mmrl.workflows.train import train

    settings = ["data.groups=2", "data.group_size=2", "sampling.max_new_tokens=4", "training.iterations=1"]
    quiet = ["run.dir=run", "run.display=quiet", "answers.task=my_task.py:COLOUR"]
    run = train(load_config("my_task.py:COLOUR", [*settings, *quiet]))
    (line, *_) = (json.loads(text) for text in (Path(run) / "metrics.jsonl").read_text().splitlines())
    assert any("same_colour" in name for name in line)


def test_benchmarks_consist_of_a_protocol_and_a_reader(folder):
    protocol = load_protocol("mine.yaml")
    (sample,) = read_benchmark(protocol.format, "questions")
    assert (sample.prompt, sample.answer) == ("1 + 1?", "2")
    metrics = [build_metric(each) for each in protocol.metrics]
    assert [measure(each, [Row(sample, "two", {"numeric": 0.5})]) for each in metrics] == [0.5, 3.0]


def test_package_readers_are_found_by_name(package):
    assert "questions" in READERS.names()
    assert [sample.answer for sample in read_benchmark("questions", "questions")] == ["2"]


def test_unknown_names_raise_with_the_known_ones(folder):
    with pytest.raises(DataError, match="there is no benchmark format 'refcocoo': did you mean refcoco"):
        read_benchmark("refcocoo", folder)
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.yaml"):
        load_protocol("nowhere.yaml")
    with pytest.raises(ValueError, match="metric x: there is no metric 'meen': did you mean mean"):
        build_metric(MetricConfig(name="meen", label="x"))
