"""Episodes in a run folder.

episodes/step-N/<prompt>-<draw>.json            turns, rewards and outcome
episodes/step-N/<prompt>-<draw>-<picture>.png   what the policy saw

Names of pictures follow from those of episodes, never from what a file says, and links are not followed: a run that
someone else made can name no other file.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.atomic_io import replace_text
from mmrl.errors import EvaluationError
from mmrl.evaluation.episodes.episode_view import (
    MOST_PICTURES,
    MOST_SIDE,
    MOST_TURNS,
    EpisodeView,
    PictureView,
    TurnView,
)
from mmrl.rewards.parsing.boxes import SPACES

MOST_BYTES = 4 * 2**20
"""Bytes of a file of turns that is read."""
_NAME = re.compile(r"([0-9]{4,9})-([0-9]{1,6})\.json")

Place = tuple[int, int]
"""The numbers of a sample and of its draw."""


def save_episodes(folder: Path, step: int, episodes: Mapping[Place, EpisodeView]) -> None:
    """Write the episodes of an evaluation into a run folder, in the place of earlier ones."""
    delete_episodes(folder, step)
    if not episodes:
        return
    here = _folder(folder, step)
    here.mkdir(parents=True)
    for (sample, draw), episode in episodes.items():
        stem = f"{sample:04d}-{draw}"
        pictures = [each for turn in episode.turns for each in turn.pictures]
        for number, each in enumerate(pictures):
            each.image.convert("RGB").save(here / f"{stem}-{number}.png", optimize=True)
        text = json.dumps(_document(episode), ensure_ascii=False, allow_nan=False, indent=1)
        replace_text(here / f"{stem}.json", text + "\n", errors="backslashreplace")


def load_episodes(folder: Path, step: int) -> dict[Place, EpisodeView]:
    """Return the episodes that `save_episodes` wrote, by sample and draw.

    Raises:
        EvaluationError: a file is damaged.
    """
    here = _folder(folder, step)
    found = {}
    for path in sorted(here.glob("*.json")) if here.is_dir() else ():
        if (name := _NAME.fullmatch(path.name)) and not path.is_symlink():
            found[int(name[1]), int(name[2])] = _episode(path)
    return found


def delete_episodes(folder: Path, step: int) -> None:
    """Delete the episodes of a step, if there are some."""
    shutil.rmtree(_folder(folder, step), ignore_errors=True)


def _folder(folder: Path, step: int) -> Path:
    return folder / "episodes" / f"step-{step}"


def _document(episode: EpisodeView) -> dict[str, Any]:
    return {
        "id": episode.id,
        "turns": [
            {
                "observed": turn.observed,
                "pictures": [{"size": list(each.size), "clip_frames": each.clip_frames} for each in turn.pictures],
                "action": turn.action,
                "space": turn.space,
                "rewards": dict(turn.rewards),
                "info": dict(turn.info),
            }
            for turn in episode.turns
        ],
        "outcome": dict(episode.outcome),
        "end": episode.end,
        "left_out": episode.left_out,
    }


def _episode(path: Path) -> EpisodeView:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        turns: list[TurnView] = []
        count = 0
        for turn in document["turns"][:MOST_TURNS]:
            pictures = []
            for picture in turn["pictures"][:MOST_PICTURES]:
                width, height = (int(side) for side in picture["size"])
                image = _picture(path.with_name(f"{path.stem}-{count}.png"))
                pictures.append(PictureView(image, (max(1, width), max(1, height)), int(picture["clip_frames"])))
                count += 1
            turns.append(
                TurnView(
                    observed=str(turn["observed"]),
                    pictures=tuple(pictures),
                    action=str(turn["action"]),
                    space=next((space for space in SPACES if space == turn["space"]), None),
                    rewards=_numbers(turn["rewards"]),
                    info=_numbers(turn["info"]),
                )
            )
        outcome = {
            str(key): value if isinstance(value, int | float | None) else str(value)
            for key, value in document["outcome"].items()
        }
        return EpisodeView(str(document["id"]), tuple(turns), outcome, str(document["end"]), int(document["left_out"]))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError) as err:
        raise EvaluationError(f"{path}: is no episode of an evaluation: {err}") from None


def _picture(path: Path) -> Image.Image:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link")
    with Image.open(path, formats=("PNG",)) as image:
        if max(image.size) > MOST_SIDE:
            raise ValueError(f"{path.name} has a side of more than {MOST_SIDE} pixels")
        return image.convert("RGB")


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items() if math.isfinite(float(value))}
