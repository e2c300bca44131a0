"""Models play a sample in the environment of their run: `mmrl environments watch`, and the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from mmrl.atomic_io import replace_text
from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.datasets import load_samples
from mmrl.build.model_references import ModelRef, resolve_model
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.evaluation.episodes.episode_html import LONGEST, episodes_html
from mmrl.evaluation.episodes.episode_view import EpisodeView, episode_view
from mmrl.evaluation.report.episode_cards import NOTE, zoomable_picture
from mmrl.evaluation.report.page import page, section, shortened
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.tasks.definitions import apply_tasks

if TYPE_CHECKING:
    from mmrl.understanding.vlm_policy import VLMPolicy


def play_episode(
    policy: VLMPolicy, model: ModelRef, sample: Sample, sampling: TokenSamplingConfig, seed: int
) -> EpisodeView:
    """Let a policy play one episode; equal seeds give all checkpoints of a model equal noise.

    Raises:
        ConfigError: the policy plays in no environment.
        DataError: the policy or its environment does not accept the sample.
    """
    if policy.environment is None or model.run is None:
        raise ConfigError(f"{model.name}: the run has no environment, so there are no turns to watch")
    answers = model.run.config.answers
    (fitted,) = apply_tasks(policy, [sample], answers.thinking, answers.space, answers.task)
    with torch.no_grad():
        rollout = policy.rollout([RolloutRequest(fitted, n=1, group=0, sampling=sampling)], seed)
    assert rollout.episodes is not None
    return episode_view(fitted, rollout.episodes[0], policy.reader)


def watch_episodes(
    names: Sequence[str], data: str | None, number: int, seed: int, temperature: float | None, out: Path
) -> list[tuple[str, EpisodeView]]:
    """Let models play one sample, write the page `out` with their episodes side by side, and return the episodes.

    Args:
        names: runs, RUN@best, RUN@40 or RUN@base.
        data: the samples, a file or `package:split`; None: the validation set of the first run, else its data.
        number: the number of the sample, from 0.
        seed: the seed of the noise.
        temperature: of the sampling; None: the run's own.
        out: the HTML file.

    Raises:
        ConfigError: a model is no checkpoint of a run, or its run has no environment.
        DataError: there is no such sample, or an environment does not accept it.
    """
    models = [resolve_model(name, "vlm") for name in dict.fromkeys(names)]
    for model in models:
        if model.run is None or model.environment is None:
            raise ConfigError(f"{model.name}: it is no run with an environment, so there are no turns to watch")
    first = models[0].run
    assert first is not None
    path = data or first.config.data.validation or first.config.data.path
    samples = load_samples(path, first.config.media)
    if not 0 <= number < len(samples):
        raise DataError(f"{path}: there is no sample {number}: there are {len(samples)}, numbered from 0")
    pool = CheckpointPool(models, in_environments=True)
    episodes = []
    for model in models:
        changed = {} if temperature is None else {"temperature": temperature}
        sampling = cast(TokenSamplingConfig, model.sampling.model_copy(update=changed))
        with pool.activate(model.name) as policy:
            played = play_episode(cast("VLMPolicy", policy), model, samples[number], sampling, seed)
        episodes.append((model.name, played))
    title = shortened(samples[number].prompt or samples[number].id, LONGEST)
    body = f'<figure class="card">{episodes_html(episodes, zoomable_picture)}</figure>'
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page(title, section(title, body, NOTE)), errors="backslashreplace")
    return episodes
