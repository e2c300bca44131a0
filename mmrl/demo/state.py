"""All that one running app holds: its checkpoints, their data, its judges, its visitors and their votes."""

from __future__ import annotations

import inspect
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.build.datasets import load_samples
from mmrl.build.policies import resolve_model_path
from mmrl.config.policy import PolicyConfig
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import Columns
from mmrl.demo.grid import Grid
from mmrl.demo.jobs import Job
from mmrl.demo.request_validation import Uploads
from mmrl.demo.scores import Judges
from mmrl.demo.video_clips import kept_clips
from mmrl.demo.votes import Ballot, Rate, VoteFile
from mmrl.training.run.run_folder import load_run

DRAWING, LOOKING = ("pipeline", "image_tokens"), ("vlm",)
Kinds = tuple[str, ...]
SUGGESTED = 200
"""Samples of the validation set that are offered."""


# What the server remembers of each visitor. Nobody sees anybody else's.


MOST = 200
"""Visitors that are remembered; those who came least lately are forgotten first."""


@dataclass
class Session:
    """One visitor."""

    rater: str = field(default_factory=lambda: f"visitor-{uuid.uuid4().hex[:8]}")
    job: Job[Any] | None = None
    grid: Grid | None = None
    ballot: Ballot | None = None
    exported: str | None = None

    def start(self, job: Job[Any]) -> Job[Any]:
        """Take up a job; an earlier one is stopped."""
        self.stop()
        self.job = job
        return job

    def stop(self) -> bool:
        """Ask the present job to stop; whether there was one."""
        if self.job is None:
            return False
        self.job.stop()
        self.job = None
        return True


class Sessions:
    """By the name that the browser's page goes by."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, name: str | None) -> Session:
        """The session of this name, new if need be."""
        key = (name or "")[:64]
        with self._lock:
            found = self._by_name.pop(key, None) or Session()
            self._by_name[key] = found
            while len(self._by_name) > MOST:
                _, old = self._by_name.popitem(last=False)
                old.stop()
            return found

    def forget(self, name: str | None) -> None:
        """A page was closed."""
        with self._lock:
            if found := self._by_name.pop((name or "")[:64], None):
                found.stop()


@dataclass
class Stage:
    """One app."""

    columns: Columns
    votes: VoteFile
    uploads: Uploads
    sessions: Sessions = field(default_factory=Sessions)
    vote_rate: Rate = field(default_factory=lambda: Rate(each=20, together=100))
    pair_rate: Rate = field(default_factory=lambda: Rate(each=30, together=150))
    _samples: dict[Kinds, list[Sample]] = field(default_factory=dict)
    _judges: dict[Kinds, Judges] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self, kinds: Kinds) -> list[str]:
        """The columns of some kinds."""
        return self.columns.of_kind(*kinds)

    def chosen(self, kinds: Kinds) -> list[str]:
        """Of them, those that were asked for when the app was started."""
        return [name for name in self.names(kinds) if name in self.columns.chosen]

    def votable(self, kinds: Kinds) -> list[str]:
        """The columns whose answers can be voted on: nothing learns from pairs of videos."""
        films = self.with_videos()
        return [name for name in self.names(kinds) if name not in films and self.columns.all[name].subject]

    def runs(self, kinds: Kinds) -> dict[str, Path]:
        """{short name: folder} of the runs of some kinds."""
        folders = {self.columns.all[name].run for name in self.names(kinds)}
        return {label: folder for label, folder in self.columns.runs.items() if folder in folders}

    def samples(self, kinds: Kinds) -> list[Sample]:
        """The first of the first run's validation set (of its training data, without one)."""
        with self._lock:
            if kinds not in self._samples:
                config = load_run(next(iter(self.runs(kinds).values()))).config
                path = config.data.validation or config.data.path
                self._samples[kinds] = load_samples(path, config.media)[:SUGGESTED]
            return self._samples[kinds]

    def judges(self, kinds: Kinds) -> Judges:
        """The rewards of the runs."""
        with self._lock:
            if kinds not in self._judges:
                self._judges[kinds] = Judges([load_run(folder).config for folder in self.runs(kinds).values()])
            return self._judges[kinds]

    def sample(self, kinds: Kinds, sample_id: object, prompt: str) -> Sample:
        """The sample of this id if it asks just this, else the first that does, else a new one of the prompt alone."""
        known = self.samples(kinds)
        same = [sample for sample in known if asked_by(sample) == prompt]
        found = next((sample for sample in same if sample.id == sample_id), next(iter(same), None))
        return found or Sample(id="visitor's prompt", prompt=prompt)

    def with_videos(self) -> list[str]:
        """The columns that draw videos."""
        return [name for name in self.names(DRAWING) if self._draws_videos(name)]

    def video_files(self) -> dict[str, list[Path]]:
        """{run: video files in its samples}, of the runs that have any."""
        found = {label: kept_clips(folder) for label, folder in self.columns.runs.items()}
        return {label: files for label, files in found.items() if files}

    def _draws_videos(self, name: str) -> bool:
        subject = self.columns.all[name].subject or self.columns.all[self.columns.all[name].base].subject
        if subject is None or not isinstance(subject.policy, PolicyConfig):
            return False
        if getattr(subject.sampling, "num_frames", None):
            return True
        index = Path(resolve_model_path(subject.policy).model) / "model_index.json"
        return index.is_file() and takes_frames(str(json.loads(index.read_text(encoding="utf-8")).get("_class_name")))


def takes_frames(pipeline: str) -> bool:
    """Whether a pipeline's class of diffusers is asked for a number of frames."""
    import diffusers

    known = getattr(diffusers, pipeline, None)
    return known is not None and "num_frames" in inspect.signature(known.__call__).parameters


def asked_by(sample: Sample) -> str:
    """What a sample asks, as a page shows it."""
    if sample.prompt or not sample.messages:
        return sample.prompt.strip()
    last = next((turn["content"] for turn in reversed(sample.messages) if turn.get("role") == "user"), "")
    return last if isinstance(last, str) else " ".join(str(p["text"]) for p in last if p.get("type") == "text")


def choices(samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """What a list offers: (what is read, id)."""
    tell = len({sample.source for sample in samples}) > 1
    return [(f"{s.source}: {asked_by(s)[:120]}" if tell else asked_by(s)[:120], s.id) for s in samples]
