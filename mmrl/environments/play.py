"""`play`: one episode with a person in the place of the policy, whose pictures are saved as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Observation
from mmrl.environments.episode_batch import EpisodeBatch


def play(
    environment: Environment,
    sample: Sample,
    reader: MediaReader,
    folder: Path,
    read: Callable[[int], str | None],
    write: Callable[[str], None],
) -> dict[str, Any]:
    """Play an episode and return its outcome.

    Args:
        environment: the environment.
        sample: the sample whose prompt begins the episode.
        reader: the reader of its media.
        folder: where `turn-0-picture-0.png` and all later pictures and clips are saved; it is made if needed.
        read: returns the action of a turn (from 1); None ends the turn without an action.
        write: prints a text.

    Raises:
        DataError: see `Environment.begin`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if environment.instructions:
        write(environment.instructions)
    batch = EpisodeBatch(environment, [sample], reader)
    _present(first_observation(sample, reader), folder, 0, write)
    while batch.live:
        turn = batch.turns[0] + 1
        step = batch.step({0: read(turn)})[0]
        for kind, values in (("rewards", step.rewards), ("info", step.info)):
            if values:
                write(f"{kind}: " + ", ".join(f"{name} {value:g}" for name, value in values.items()))
        if step.observation is not None:
            _present(step.observation, folder, turn, write)
    outcome = batch.outcomes()[0]
    write("The episode is over: " + json.dumps(outcome, ensure_ascii=False, default=str))
    return outcome


def first_observation(sample: Sample, reader: MediaReader) -> Observation:
    """Return what begins an episode: the text of a sample with its pictures and clips.

    Raises:
        DataError: a picture or clip cannot be read.
    """
    parts = [sample.prompt] if sample.prompt else []
    text = "\n".join(parts + [str(message.get("content", "")) for message in sample.messages])
    images = tuple(reader.image(path, sample.id) for path in sample.images)
    videos = tuple(reader.video(path, sample.id) for path in sample.videos)
    return Observation(text, images, videos)


def _present(observation: Observation, folder: Path, turn: int, write: Callable[[str], None]) -> None:
    if observation.text:
        write(observation.text)
    for number, image in enumerate(observation.images):
        path = folder / f"turn-{turn}-picture-{number}.png"
        image.save(path)
        write(f"{path} ({image.width} x {image.height})")
    for number, clip in enumerate(observation.videos):
        path = folder / f"turn-{turn}-clip-{number}.gif"
        _save_clip(clip, path)
        write(f"{path} ({len(clip.frames)} frames of {clip.size[0]} x {clip.size[1]})")


def _save_clip(clip: VideoFrames, path: Path) -> None:
    first, *others = [Image.fromarray(frame) for frame in clip.frames]
    first.save(path, save_all=True, append_images=others, duration=round(1000 / clip.fps), loop=0)
