"""The job of the tab Episodes: one or two checkpoints play a sample, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from PIL import Image
from safetensors import SafetensorError

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.error_handling import DemoError, Stopped, error_text
from mmrl.demo.generate import GenerationSettings
from mmrl.demo.jobs import StoppableJob
from mmrl.errors import ConfigError, DataError, RunError
from mmrl.evaluation.episodes.episode_html import episodes_html
from mmrl.evaluation.episodes.episode_view import EpisodeView
from mmrl.evaluation.report.page import picture, shortened
from mmrl.workflows.watch_episode import play_episode

MOST_PLAYERS = 2
"""Checkpoints that play one sample side by side."""
LONGEST = 1200  # characters of a question
log = logging.getLogger(__name__)


@dataclass
class PlayedEpisodes:
    """The episodes so far, by checkpoint, and the checkpoint that plays."""

    question: str
    episodes: dict[str, EpisodeView] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    doing: str = ""

    @property
    def html(self) -> str:
        """The episodes side by side for a page."""
        busy = f'<p class="mm-doing" role="status">{escape(self.doing)} plays …</p>' if self.doing else ""
        broken = "".join(
            f'<p class="mm-broken" role="alert">{escape(name)}: {escape(text)}</p>'
            for name, text in self.problems.items()
        )
        played = episodes_html(list(self.episodes.items()), _zoomable) if self.episodes else ""
        return f'<p class="mm-prompt">{escape(shortened(self.question, LONGEST))}</p>{busy}{broken}{played}'


def episode_job(
    columns: CheckpointColumns, names: Sequence[str], sample: Sample, question: str, settings: GenerationSettings
) -> StoppableJob[PlayedEpisodes]:
    """Return a job that lets checkpoints play a sample, and reports after each."""
    played = PlayedEpisodes(question)

    def work(job: StoppableJob[PlayedEpisodes]) -> Iterator[PlayedEpisodes]:
        for name in names:
            played.doing = name
            yield played
            try:
                played.episodes[name] = _played(columns, name, sample, settings, job)
            except Stopped:
                raise
            except (DemoError, OSError, SafetensorError, ConfigError, DataError, RunError) as err:
                played.problems[name] = error_text(err)
            except Exception as err:  # a server's border: the other checkpoint goes on
                log.exception("%s could not play", name)
                played.problems[name] = f"This failed on the server ({type(err).__name__}); its log says more."
        played.doing = ""
        yield played

    return StoppableJob(work)


def _played(
    columns: CheckpointColumns, name: str, sample: Sample, settings: GenerationSettings, job: StoppableJob[Any]
) -> EpisodeView:
    subject = columns.usable(name)
    sampling = settings.of(subject.sampling)
    assert isinstance(sampling, TokenSamplingConfig)
    policy: Any
    job.raise_if_stopped()
    with columns.pool.activate(name) as policy, job.interruptible(policy.vlm.model.get_input_embeddings()):
        return without_folders(play_episode(policy, subject, sample, sampling, settings.seed))


def without_folders(episode: EpisodeView) -> EpisodeView:
    """Return an episode whose error message, if its environment broke down, names no folder of the server."""
    detail = episode.outcome.get("detail")
    if not isinstance(detail, str) or not detail:
        return episode
    return replace(episode, outcome={**episode.outcome, "detail": error_text(ValueError(detail))})


def _zoomable(caption: str, image: Image.Image, alt: str) -> str:
    return (
        f'<figure class="mm-seen"><button type="button" class="mm-zoom" aria-label="Enlarge">{picture(image, alt)}'
        f"</button><figcaption>{escape(caption)}</figcaption></figure>"
    )
