"""`MediaReader`: images and videos within a budget, from their files, or from a cache that `mmrl data prepare` wrote.

In the cache, media are decoded, sampled and resized once, one safetensors file each:

    write_cache(samples, "cache/clips", budget)                # mmrl data prepare clips.jsonl --out cache/clips
    MediaCache("cache/clips", budget).video("clips/7.mp4")     # media.cache=cache/clips

The key of a file is a hash of the content of its source and of the budget. A source that has changed since, or another
budget, is thus not found and raises `DataError`; training never decodes instead.

    cache.json                 the format, the budget, and {source: its size, time and digest}
    media/3f/3fa1....safetensors
        image                  uint8 [H, W, 3]
        frames, timestamps, indices, rates     uint8 [T, H, W, 3], float64 [T], int64 [T], float64 [3]
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.atomic_io import replace_text, replacing
from mmrl.config.media import MediaConfig
from mmrl.data.media.budget import MediaBudget, fit_image
from mmrl.data.media.decode import load_image, media_error
from mmrl.data.media.sample_media import Medium, media_of
from mmrl.data.media.uris import is_data_uri
from mmrl.data.media.video import Decoder, VideoFrames, read_video
from mmrl.data.sample import Sample
from mmrl.errors import DataError

INDEX = "cache.json"
FORMAT = 1


def reader_of(media: MediaConfig) -> MediaReader:
    """Return the reader with the budgets, decoder and cache of a configuration."""
    return cache_of(media) or MediaReader(MediaBudget.of(media), media.video.decoder)


def cache_of(media: MediaConfig) -> MediaCache | None:
    """Return the cache that a configuration names, or None."""
    return MediaCache(media.cache, MediaBudget.of(media)) if media.cache else None


class MediaReader:
    """A reader of media within a budget, from files and data URIs; policies read media only through it.

    reader = MediaReader(MediaBudget())
    reader.image("pets/7.png")     # RGB, upright
    reader.video("clips/7.mp4")    # VideoFrames
    """

    def __init__(self, budget: MediaBudget, decoder: Decoder = "auto") -> None:
        self.budget, self._decoder = budget, decoder
        self.resized_by_model: Callable[[tuple[float, float]], tuple[float, float]] | None = None
        """Maps the size of an image in its file to its size as an input of the model that reads it; None: unknown."""

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height of an image as the model reads it, in whose pixels the model answers.

        They are those within the budget, where nothing is known of the model.
        """
        if self.resized_by_model is None:
            return self.budget.image.size(width, height)
        seen = self.resized_by_model((width, height))
        return round(seen[0]), round(seen[1])

    def image(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """Return an RGB image.

        Raises:
            DataError: it cannot be decoded, or is not in the cache.
        """
        return fit_image(load_image(reference, sample_id), self.budget.image)

    def video(self, reference: str, sample_id: str | None = None) -> VideoFrames:
        """Return the sampled frames of a video.

        Raises:
            DataError: as `image`.
        """
        return read_video(reference, self.budget.video, sample_id, self._decoder)


class MediaCache(MediaReader):
    """A reader of the cache that `write_cache` wrote. It decodes nothing: a medium that is not there is an error.

    Raises:
        DataError: the folder is not such a cache, or was prepared with another budget.
    """

    def __init__(self, folder: Path | str, budget: MediaBudget) -> None:
        super().__init__(budget)
        self.folder = Path(folder)
        index = _read_index(self.folder)
        if index["budget"] != asdict(budget):
            raise DataError(
                f"{self.folder}: was prepared under another budget ({_differences(index['budget'], asdict(budget))}): "
                "run `mmrl data prepare` again into another folder, or train under that budget"
            )
        self._sources: dict[str, list[Any]] = index["sources"]

    def image(self, reference: str, sample_id: str | None = None) -> Image.Image:
        """See `MediaReader.image`."""
        return Image.fromarray(self._read("image", reference, sample_id)["image"])

    def video(self, reference: str, sample_id: str | None = None) -> VideoFrames:
        """See `MediaReader.video`."""
        tensors = self._read("video", reference, sample_id)
        fps, source_fps, source_frames = tensors["rates"].tolist()
        return VideoFrames(
            frames=tensors["frames"],
            timestamps=tensors["timestamps"],
            indices=tuple(tensors["indices"].tolist()),
            fps=fps,
            source_fps=source_fps,
            source_frames=int(source_frames),
        )

    def check(self, medium: Medium, reference: str, sample_id: str) -> None:
        """Raise `DataError` unless the medium is in the cache with its current content."""
        self._file(medium, reference, sample_id)

    def _read(self, kind: Medium, reference: str, sample_id: str | None) -> dict[str, NDArray[Any]]:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self._file(kind, reference, sample_id)
        try:
            return load_file(path)
        except (SafetensorError, OSError) as err:
            raise DataError(f"{path}: is damaged ({err}): delete it and run `mmrl data prepare` again") from None

    def _file(self, kind: Medium, reference: str, sample_id: str | None) -> Path:
        path = _place(self.folder, _key(kind, self._content(reference, sample_id), self.budget))
        if not path.is_file():
            raise media_error(
                reference, sample_id, f"is not in the cache {self.folder} as it is now: run `mmrl data prepare` again"
            )
        return path

    def _content(self, reference: str, sample_id: str | None) -> str:
        """Return the digest of a source; the one in the index if its size and time have not changed."""
        stamp = _stamp(reference, sample_id)
        known = self._sources.get(_name(reference))
        return known[2] if known is not None and stamp is not None and known[:2] == stamp else _digest(reference)


@dataclass
class CacheSummary:
    """The counts of one call of `write_cache`."""

    made: int = 0
    kept: int = 0  # already in the cache
    problems: list[str] = field(default_factory=list)  # media that cannot be decoded, each with its sample
    seconds: float = 0.0
    bytes: int = 0  # of all media that the samples use


def write_cache(
    samples: Iterable[Sample],
    folder: Path | str,
    budget: MediaBudget,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CacheSummary:
    """Prepare every image and video of the samples. Existing files are kept, so an interrupted call can be repeated.

    Raises:
        DataError: the folder contains other files, or a cache of another budget.
    """
    folder = Path(folder)
    index = _read_index(folder) if (folder / INDEX).is_file() else _new_index(folder, budget)
    if index["budget"] != asdict(budget):
        raise DataError(
            f"{folder}: holds media of another budget ({_differences(index['budget'], asdict(budget))}); "
            "take another folder"
        )
    users: dict[tuple[Medium, str], str] = {}
    for sample in samples:
        for medium in media_of(sample):
            users.setdefault(medium, sample.id)
    done = CacheSummary()

    def prepare(medium: tuple[Medium, str]) -> tuple[str, list[Any] | None, bool, int] | str:
        kind, reference = medium
        try:
            stamp = _stamp(reference, users[medium])
            content = _digest(reference)
            path = _place(folder, _key(kind, content, budget))
            if exists := path.is_file():
                pass
            elif kind == "image":
                _save(path, {"image": np.asarray(fit_image(load_image(reference, users[medium]), budget.image))})
            else:
                _save(path, _tensors(read_video(reference, budget.video, users[medium], decoder="pyav")))
            return _name(reference), None if stamp is None else [*stamp, content], exists, path.stat().st_size
        except DataError as err:
            return str(err)

    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for number, made in enumerate(threads.map(prepare, users), start=1):
            progress(number, len(users))
            if isinstance(made, str):
                done.problems.append(made)
                continue
            name, source, there, size = made
            done.made, done.kept, done.bytes = done.made + (not there), done.kept + there, done.bytes + size
            if source is not None:
                index["sources"][name] = source
    replace_text(folder / INDEX, json.dumps(index))
    return done


def _tensors(video: VideoFrames) -> dict[str, NDArray[Any]]:
    return {
        "frames": video.frames,
        "timestamps": video.timestamps,
        "indices": np.array(video.indices, np.int64),
        "rates": np.array([video.fps, video.source_fps, video.source_frames], np.float64),
    }


def _save(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, draft)


def _key(kind: str, content: str, budget: MediaBudget) -> str:
    return hashlib.sha256(f"{FORMAT} {kind} {content} {budget.digest()}".encode()).hexdigest()[:32]


def _place(folder: Path, key: str) -> Path:
    return folder / "media" / key[:2] / f"{key}.safetensors"


def _name(reference: str) -> str:
    return str(Path(reference).absolute())


def _stamp(reference: str, sample_id: str | None) -> list[int] | None:
    """Return [size, modification time in ns] of a file; None for a data URI."""
    if is_data_uri(reference):
        return None
    try:
        found = Path(reference).stat()
    except OSError:
        raise media_error(reference, sample_id, "there is no such file") from None
    return [found.st_size, found.st_mtime_ns]


def _digest(reference: str) -> str:
    if is_data_uri(reference):
        return hashlib.sha256(reference.encode()).hexdigest()
    with Path(reference).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _new_index(folder: Path, budget: MediaBudget) -> dict[str, Any]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder}: exists and is not a cache of `mmrl data prepare`; take another folder")
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {"format": FORMAT, "budget": asdict(budget), "sources": {}}
    replace_text(folder / INDEX, json.dumps(index))
    return index


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{folder}: is not a cache of `mmrl data prepare`: it has no readable {INDEX}") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT or not {"budget", "sources"} <= index.keys():
        raise DataError(f"{folder}: is a cache of another version of mmrl: prepare the media again into a new folder")
    return index


def _differences(theirs: Any, ours: dict[str, Any], above: str = "") -> str:
    """Return a text such as `video.fps 2.0, not 1.0` with all numbers that differ."""
    found = []
    for key, value in ours.items():
        other = theirs.get(key) if isinstance(theirs, dict) else None
        if isinstance(value, dict):
            found.append(_differences(other, value, f"{above}{key}."))
        elif other != value:
            found.append(f"{above}{key} {other}, not {value}")
    return ", ".join(each for each in found if each)
