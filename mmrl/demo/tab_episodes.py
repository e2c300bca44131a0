"""The tab Episodes: one or two checkpoints play a sample of their run in its environment, turn by turn."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import gradio as gr
from PIL import Image
from safetensors import SafetensorError

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.error_handling import DemoError, Stopped, error_text, with_error_messages
from mmrl.demo.generate import GenerationSettings
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import MOST_SEED, heat, whole
from mmrl.demo.state import AppState, labelled, question_of
from mmrl.errors import ConfigError, DataError, RunError
from mmrl.evaluation.episodes.episode_html import episodes_html
from mmrl.evaluation.episodes.episode_view import EpisodeView
from mmrl.evaluation.report.page import picture, shortened
from mmrl.workflows.watch_episode import play_episode

EMPTY = '<p class="mm-empty">Choose one or two checkpoints and a sample of the run, and press Play.</p>'


def episodes_tab(state: AppState) -> None:
    """Build the tab."""
    samples = state.playable()
    names = state.columns.in_environment()
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            chosen = [name for name in names if name in state.columns.chosen][:MOST_PLAYERS]
            columns = gr.CheckboxGroup(names, value=chosen, label="Checkpoints", elem_id="mm-players")
            sample = gr.Dropdown(labelled(samples), value=samples[0].id, label="A sample of the run", filterable=True)
            with gr.Row():
                seed = gr.Number(0, label="Seed", precision=0, min_width=90)
                temperature = gr.Slider(0, 2, 0, step=0.1, label="Temperature", info="0: the likeliest", min_width=110)
            with gr.Row():
                go = gr.Button("Play", variant="primary", elem_id="mm-play", min_width=100)
                cancel = gr.Button("Cancel", variant="stop", min_width=100)
        with gr.Column(scale=3, min_width=320):
            output = gr.HTML(EMPTY, elem_id="mm-episodes")

    @with_error_messages
    def on_go(chosen: Any, sample_id: Any, number: Any, warmth: Any, request: gr.Request) -> Iterator[Any]:
        players = _players(chosen, names)
        found = next((each for each in samples if each.id == sample_id), None)
        if found is None:
            raise DemoError("There is no such sample here.")
        settings = GenerationSettings(whole(number, "The seed", 0, MOST_SEED), temperature=heat(warmth))
        job = episode_job(state.columns, players, found, question_of(found), settings)
        progress = None
        try:
            for progress in state.sessions.of(request).start(job).reports():
                yield progress.html
        except Stopped:
            if progress is not None:
                progress.doing = ""
                yield '<p class="mm-warn" role="status">Stopped.</p>' + progress.html

    private: dict[str, Any] = {"api_visibility": "private"}
    inputs = [columns, sample, seed, temperature]
    go.click(on_go, inputs, output, concurrency_limit=8, show_progress="hidden", **private)
    cancel.click(state.sessions.stop, None, None, queue=False, **private)


def _players(chosen: Any, known: list[str]) -> list[str]:
    """Return the chosen checkpoints.

    Raises:
        DemoError: there are none or too many, or one that does not play here.
    """
    if not isinstance(chosen, list) or not all(isinstance(each, str) for each in chosen):
        raise DemoError("Checkpoints must be a list of names.")
    players = list(dict.fromkeys(chosen))
    if unknown := [each for each in players if each not in known]:
        raise DemoError(f"There is no checkpoint called {unknown[0][:60]!r} here.")
    if not 1 <= len(players) <= MOST_PLAYERS:
        raise DemoError(f"Choose 1 to {MOST_PLAYERS} checkpoints, not {len(players)}.")
    return players


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
