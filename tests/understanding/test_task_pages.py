"""Each task has a page whose data pass `mmrl data check`, and whose command, reward and range are the real ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from mmrl.config import load_config, recipes
from mmrl.rewards.core.registry import reward_class
from mmrl.understanding.tasks.check_data import check_data
from mmrl.understanding.tasks.definitions import BUILT_IN_TASKS, CHOICE
from tests.data.media_files import moving_square, write_clip

PAGES = Path(__file__).parents[2] / "docs" / "tasks"
LOOKING = [PAGES / f"{name}.md" for name in sorted(BUILT_IN_TASKS)]
"""The others are of tasks that draw."""
DATA = re.compile(r"^```json\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def media(tmp_path_factory):
    """Write the media that the pages' lines name: images of 640 x 480 and clips of 2 seconds."""
    folder = tmp_path_factory.mktemp("pages")
    for page in [*LOOKING, PAGES.parent / "data.md"]:
        for line in lines_of(page):
            for path in [folder / name for name in [*line.get("images", []), *line.get("videos", [])]]:
                path.parent.mkdir(exist_ok=True)
                if path.suffix == ".png":
                    Image.new("RGB", (640, 480)).save(path)
                elif not path.exists():
                    write_clip(path, moving_square(16))
    return folder


def lines_of(page: Path) -> list[dict]:
    (block,) = DATA.findall(page.read_text(encoding="utf-8"))
    return [json.loads(line) for line in block.splitlines()]


def test_every_task_has_a_page():
    assert set(BUILT_IN_TASKS) <= {page.stem for page in PAGES.glob("*.md")} <= set(BUILT_IN_TASKS) | set(recipes.TASKS)
    text = (PAGES.parent / "data.md").read_text(encoding="utf-8")
    assert all(f"(tasks/{name}.md)" in text for name in BUILT_IN_TASKS)


@pytest.mark.parametrize("page", [*LOOKING, PAGES.parent / "data.md"], ids=lambda page: page.stem)
def test_page_lines_are_valid_data(page, media):
    path = media / f"{page.stem}.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines_of(page)))
    report = check_data(str(path), task=page.stem if page.parent == PAGES else None)
    assert report.problems == []
    assert sum(tally.scored for tally in report.tallies.values()) == report.lines > 0


@pytest.mark.parametrize("task", BUILT_IN_TASKS.values(), ids=lambda task: task.name)
def test_pages_state_command_reward_and_range(task):
    text = (PAGES / f"{task.name}.md").read_text(encoding="utf-8")
    assert f"mmrl train {task.name} policy.model=Qwen/Qwen2.5-VL-3B-Instruct data.path=my.jsonl" in text
    assert f"mmrl data check my.jsonl --task {task.name}" in text
    formats = [task.answer, *([task.list_answer] if task.list_answer else []), *([CHOICE] if task.options else [])]
    for name in {each.reward.name for each in formats}:
        assert f"`{name}`" in text
        assert reward_class(name).range == (0.0, 1.0)
    assert "from 0 to 1" in text or "0 or 1" in text


@pytest.mark.parametrize("task", BUILT_IN_TASKS)
def test_task_recipes_set_their_task(task):
    config = load_config(task)
    assert (config.name, config.answers.task, config.policy.kind) == (task, task, "vlm")
