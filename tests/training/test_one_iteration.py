"""docs/one-iteration.md names the functions of an iteration in the order in which they are called, and 15 files."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mmrl.build.datasets import load_samples
from mmrl.config import load_config
from mmrl.data import write_samples
from mmrl.training.experience import Experience
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.training_loop import TrainingLoop
from mmrl.workflows.train import train
from mmrl_shapeworld.splits import samples

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "one-iteration.md").read_text(encoding="utf-8")
WALK = re.findall(r"^\| `([\w.]+)` \| `(mmrl/[\w/]+\.py)` \|", PAGE, re.MULTILINE)
"""The functions of the page with their files, in order."""
MOST_FILES = 15
FORWARDERS = {
    "mmrl/generation/diffusion/scheduler_hook.py",
    "mmrl/generation/diffusion/scheduler_families.py",
    "mmrl/rewards/core/executor.py",
    "mmrl/training/objectives/base.py",
    "mmrl/config/algorithms/advantage.py",
}
"""Files on the call stack that the page describes in its last section and that only forward a call."""
GROUPS, ANSWERS, ROWS, DECISIONS = 2, 4, 4, 4


class Trace:
    """The calls of the page's functions, of all threads, in order, and the files of mmrl on their stacks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.on_stack: set[str] = set()

    def during(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, traced with the threads that it starts."""

        def traced(*arguments: Any) -> Any:
            before = sys.getprofile()
            sys.setprofile(self)
            threading.setprofile(self)
            try:
                return function(*arguments)
            finally:
                sys.setprofile(before)
                threading.setprofile(None)

        return traced

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # `join` waits for the threads that score, so it counts when it returns
        if event != ("return" if code.co_qualname == "RewardSuite.join" else "call"):
            return
        if (code.co_qualname, _file(frame)) in WALK:
            self.calls.append((code.co_qualname, _file(frame)))
            self.on_stack |= _files_below_iterate(frame)


def _file(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename).as_posix().removeprefix(f"{ROOT.as_posix()}/")


def _files_below_iterate(frame: FrameType | None) -> set[str]:
    """Return the files of mmrl from a call up to `TrainingLoop.iterate`, or to the start of its thread."""
    files = set()
    while frame is not None:
        if _file(frame).startswith("mmrl/"):
            files.add(_file(frame))
        if frame.f_code.co_qualname == "TrainingLoop.iterate":
            return files
        frame = frame.f_back
    return files if threading.current_thread() is not threading.main_thread() else set()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the trace of an iteration of a small version of the recipe, and its experience."""
    folder, trace = tmp_path_factory.mktemp("iteration"), Trace()
    experiences: list[Experience] = []
    write_samples(samples("development")[:5], folder / "data.jsonl")
    config = load_config(
        "flow-grpo",
        [
            f"data={{path: {folder}/data.jsonl, groups: {GROUPS}, group_size: {ANSWERS}, micro_batch: {ROWS}}}",
            "data.validation=null",
            "data.heldout=null",
            "training.iterations=1",
            "evaluation={}",
            f"run={{dir: {folder}/run, display: quiet, pictures: 0}}",
        ],
    )
    collect = OnlineRollouts.collect

    def keep(*arguments: Any) -> Experience:
        experiences.append(collect(*arguments))
        return experiences[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnlineRollouts, "collect", keep)
        patch.setattr("mmrl.workflows.train.load_samples", trace.during(load_samples))
        patch.setattr(TrainingLoop, "iterate", trace.during(TrainingLoop.iterate))
        train(config)
    return trace, experiences[0]


def test_functions_of_the_page_are_called_in_its_order(traced):
    remaining = iter(traced[0].calls)
    missing = [function for function in WALK if function not in remaining]
    assert not missing, f"not called after those before them: {missing}"


def test_page_lists_at_most_fifteen_files(traced):
    named = {file for _, file in WALK}
    assert named == set(re.findall(r"mmrl/[\w/]+\.py", PAGE)) and len(named) <= MOST_FILES
    assert all((ROOT / file).is_file() for file in named | FORWARDERS)
    assert traced[0].on_stack <= named | FORWARDERS
    assert f"names {len(named)} files" in PAGE


def test_tensors_have_the_shapes_of_the_page(traced):
    _, experience = traced
    assert len(experience.micro_batches) == GROUPS * ANSWERS // ROWS
    for batch in experience.micro_batches:
        rollout = batch.rollout
        assert rollout.log_probs.shape == rollout.mask.shape == batch.step_advantages.shape == (ROWS, DECISIONS)
        assert batch.advantages.shape == batch.scored.shape == rollout.group_index.shape == (ROWS,)
        assert len(rollout.media) == len(rollout.samples) == len(rollout.clean) == ROWS and rollout.clean.ndim == 4
