"""The state of one running app: checkpoints, samples, scorers, sessions of users, votes."""

from __future__ import annotations

import inspect
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr

from mmrl.build.datasets import load_samples
from mmrl.build.policies import resolve_model_path
from mmrl.config.policy import PolicyConfig
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.grid import Grid
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import Uploads
from mmrl.demo.scores import DemoScorer
from mmrl.demo.video_clips import clip_files
from mmrl.demo.votes import Ballot, RateLimiter, VoteFile
from mmrl.training.run.run_folder import load_run

IMAGE_KINDS, VLM_KINDS = ("pipeline", "image_tokens"), ("vlm",)
Kinds = tuple[str, ...]
T = TypeVar("T")
SUGGESTED = 200
"""Samples of the validation set that pages offer."""
MOST_SESSIONS = 200
"""Sessions in memory; the least recently used are dropped first."""


@dataclass
class Session:
    """The session of one user: a page open in a browser."""

    rater: str = field(default_factory=lambda: f"user-{uuid.uuid4().hex[:8]}")
    job: StoppableJob[Any] | None = None
    grid: Grid | None = None
    ballot: Ballot | None = None
    exported: str | None = None

    def start(self, job: StoppableJob[T]) -> StoppableJob[T]:
        """Keep a job as the current one; an earlier one is stopped."""
        self.stop()
        self.job = job
        return job

    def stop(self) -> None:
        """Stop the current job, if there is one."""
        if self.job is not None:
            self.job.stop()
            self.job = None


class Sessions:
    """The sessions by Gradio's session hash; no user sees another's."""

    def __init__(self) -> None:
        self._by_name: OrderedDict[str, Session] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, request: gr.Request) -> Session:
        """Return the session of a request, a new one if there is none."""
        key = _session_key(request)
        with self._lock:
            found = self._by_name.pop(key, None) or Session()
            self._by_name[key] = found
            while len(self._by_name) > MOST_SESSIONS:
                _, old = self._by_name.popitem(last=False)
                old.stop()
            return found

    def stop(self, request: gr.Request) -> None:
        """Stop the current job of the session."""
        self.of(request).stop()

    def forget(self, request: gr.Request) -> None:
        """Drop the session of a closed page and stop its job."""
        with self._lock:
            if found := self._by_name.pop(_session_key(request), None):
                found.stop()


def _session_key(request: gr.Request) -> str:
    return (request.session_hash or "")[:64]


@dataclass
class AppState:
    """The state of an app, shared by its handlers."""

    columns: CheckpointColumns
    votes: VoteFile
    uploads: Uploads
    sessions: Sessions = field(default_factory=Sessions)
    vote_rate: RateLimiter = field(default_factory=lambda: RateLimiter(each=20, together=100))
    pair_rate: RateLimiter = field(default_factory=lambda: RateLimiter(each=30, together=150))
    _samples: dict[Kinds, list[Sample]] = field(default_factory=dict)
    _scorers: dict[Kinds, DemoScorer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self, kinds: Kinds) -> list[str]:
        """Return the columns of some kinds of policies."""
        return self.columns.of_kind(*kinds)

    def votable(self, kinds: Kinds) -> list[str]:
        """Return the columns whose answers can be voted on; no algorithm learns from pairs of videos."""
        videos = self.with_videos()
        return [name for name in self.names(kinds) if name not in videos and self.columns.all[name].subject]

    def runs(self, kinds: Kinds) -> dict[str, Path]:
        """Return {short name: folder} of the runs of some kinds."""
        folders = {self.columns.all[name].run for name in self.names(kinds)}
        return {label: folder for label, folder in self.columns.runs.items() if folder in folders}

    def samples(self, kinds: Kinds) -> list[Sample]:
        """Return the first samples of the first run's validation set (else of its training data)."""
        with self._lock:
            if kinds not in self._samples:
                self._samples[kinds] = _suggested(next(iter(self.runs(kinds).values())))
            return self._samples[kinds]

    def playable(self) -> list[Sample]:
        """Return the first samples of the run whose environment the columns play in."""
        return _suggested(self.columns.all[self.columns.in_environment()[0]].run)

    def question(self, kinds: Kinds, sample_id: object) -> str:
        """Return the prompt of an offered sample, of the first one if there is no such id."""
        known = self.samples(kinds)
        return question_of(next((sample for sample in known if sample.id == sample_id), known[0]))

    def scorer(self, kinds: Kinds) -> DemoScorer:
        """Return the scorer with the rewards of the runs."""
        with self._lock:
            if kinds not in self._scorers:
                self._scorers[kinds] = DemoScorer([load_run(folder).config for folder in self.runs(kinds).values()])
            return self._scorers[kinds]

    def sample(self, kinds: Kinds, sample_id: object, prompt: str) -> Sample:
        """Return the sample with this prompt, preferably of this id, else a new one with the prompt only."""
        known = self.samples(kinds)
        same = [sample for sample in known if question_of(sample) == prompt]
        found = next((sample for sample in same if sample.id == sample_id), next(iter(same), None))
        return found or Sample(id="user's prompt", prompt=prompt)

    def with_videos(self) -> list[str]:
        """Return the columns that generate videos."""
        return [name for name in self.names(IMAGE_KINDS) if self._generates_videos(name)]

    def video_files(self) -> dict[str, list[Path]]:
        """Return {run: video files in its samples}, for the runs that have any."""
        found = {label: clip_files(folder) for label, folder in self.columns.runs.items()}
        return {label: files for label, files in found.items() if files}

    def _generates_videos(self, name: str) -> bool:
        """Return True if a run samples frames, or its pipeline takes a number of them."""
        subject = self.columns.all[name].subject or self.columns.all[self.columns.all[name].base].subject
        if subject is None or not isinstance(subject.policy, PolicyConfig):
            return False
        if getattr(subject.sampling, "num_frames", None):
            return True
        index = Path(resolve_model_path(subject.policy).model) / "model_index.json"
        if not index.is_file():
            return False
        import diffusers

        pipeline = getattr(diffusers, str(json.loads(index.read_text(encoding="utf-8")).get("_class_name")), None)
        return pipeline is not None and "num_frames" in inspect.signature(pipeline.__call__).parameters


def _suggested(run: Path) -> list[Sample]:
    """Return the first samples of a run's validation set (else of its training data)."""
    config = load_run(run).config
    return load_samples(config.data.validation or config.data.path, config.media)[:SUGGESTED]


def question_of(sample: Sample) -> str:
    """Return the prompt of a sample, or the last user turn of its messages, for a page."""
    if sample.prompt or not sample.messages:
        return sample.prompt.strip()
    last = next((turn["content"] for turn in reversed(sample.messages) if turn.get("role") == "user"), "")
    return last if isinstance(last, str) else " ".join(str(p["text"]) for p in last if p.get("type") == "text")


def labelled(samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """Return (label, id) of each sample; the label names the source if there are several."""
    several = len({sample.source for sample in samples}) > 1
    return [(f"{s.source}: {question_of(s)[:120]}" if several else question_of(s)[:120], s.id) for s in samples]
