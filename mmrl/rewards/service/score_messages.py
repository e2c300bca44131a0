"""The JSON that a reward service and its clients exchange: a batch of answers, and their scores.

A request, `{"id": ..., "progress": 0.25, "seed": 7, "answers": [...]}`, has the fields of each `RewardInput`. Images
are PNG files, as data URIs under the single key `$image`, wherever they occur. Files that references name are sent as
data URIs, because a service opens no path that a client names. Float32 scores survive to the bit; NaN is `null`.
"""

from __future__ import annotations

import json
import math
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.data.media.sample_media import CONDITION_KEYS, MediaKind, map_media
from mmrl.data.media.uris import data_uri, is_data_uri, uri_bytes
from mmrl.rewards.core.image_input import BROKEN_IMAGE, MAX_PIXELS
from mmrl.rewards.core.reward_errors import Failure, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, RewardOutput

IMAGE = "$image"
"""The only key of a JSON object that stands for an image."""
MEDIA_KEYS = frozenset({*CONDITION_KEYS, "images", "videos"})
"""The keys of references that hold what a sample shows: files, or data URIs."""
MAX_FRAMES = 1024
"""Images of one answer, those of its references included."""


class BadMessage(ValueError):
    """A message that is not what it should be. The text names the field."""


@dataclass(frozen=True)
class ScoreRequest:
    """A batch to score. Requests of one `id` are one piece of work, however often they are sent."""

    id: str
    answers: tuple[RewardInput, ...]
    context: RewardContext


def encode_request(request: ScoreRequest) -> bytes:
    """Return the body of a request.

    Raises:
        ScoringFailed: an answer holds something that is neither JSON nor an image ("not_sendable"), or a file of its
            references cannot be read ("reference").
    """
    answers = [
        {
            "id": item.id,
            "group": item.group,
            "prompt": item.prompt,
            "image": item.image,
            "video": item.video,
            "text": item.text,
            "references": _sent_references(item.references),
            "metadata": item.metadata,
            "outcome": item.outcome,
        }
        for item in request.answers
    ]
    context = request.context
    message = {"id": request.id, "progress": context.progress, "seed": context.seed, "answers": answers}
    try:
        return json.dumps(message, default=_encoded, allow_nan=False).encode()
    except (TypeError, ValueError) as err:
        raise ScoringFailed(f"an answer cannot be sent: {err}", "not_sendable") from err


def decode_request(body: bytes, max_answers: int) -> ScoreRequest:
    """Return the request of a body.

    Raises:
        BadMessage: it is no request, holds more than `max_answers`, or an image that is broken or too large.
    """
    message = _object(body)
    answers = message.get("answers")
    if not isinstance(answers, list) or not answers:
        raise BadMessage("answers: expected a list with at least one answer")
    if len(answers) > max_answers:
        raise BadMessage(f"answers: {len(answers)} of them; at most {max_answers} are scored in one request")
    progress = message.get("progress", 0.0)
    if not isinstance(progress, int | float) or isinstance(progress, bool) or not 0 <= progress <= 1:
        raise BadMessage("progress: expected a number in [0, 1]")
    seed = message.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise BadMessage("seed: expected a whole number >= 0")
    name = message.get("id")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise BadMessage("id: expected a text of 1 to 200 characters")
    items = tuple(_answer(each, f"answers[{row}]") for row, each in enumerate(answers))
    return ScoreRequest(name, items, RewardContext(progress=float(progress), seed=seed))


def encode_output(output: RewardOutput) -> bytes:
    """Return the body of a response. Of `detail`, what is not JSON is sent as its text."""
    message = {
        "values": {
            name: [float(value) if math.isfinite(value) else None for value in column]
            for name, column in output.values.items()
        },
        "status": {name: [str(each) for each in column] for name, column in output.status.items()},
        "detail": output.detail,
        "events": output.events,
        "seconds": output.seconds,
        "failures": [
            {name: [failure.kind, failure.transient, failure.retry_after_s] for name, failure in row.items()}
            for row in output.failures
        ],
    }
    return json.dumps(message, default=str).encode()


def decode_output(body: bytes, size: int) -> RewardOutput:
    """Return the scores of a response for `size` answers.

    Raises:
        BadMessage: it is no response for `size` answers.
    """
    message = _object(body)
    try:
        output = RewardOutput(
            values={
                str(name): np.array([math.nan if each is None else each for each in column], np.float32)
                for name, column in message["values"].items()
            },
            status={str(name): [Status(each) for each in column] for name, column in message["status"].items()},
            detail=[dict(each) for each in message["detail"]],
            events=[[(int(place), float(value)) for place, value in each] for each in message["events"]],
            seconds=float(message["seconds"]),
            failures=[{name: Failure(*failure) for name, failure in row.items()} for row in message["failures"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise BadMessage(f"no scores: {type(err).__name__}: {err}") from err
    columns: list[Any] = [*output.values.values(), *output.status.values(), output.detail]
    columns += [column for column in (output.events, output.failures) if column]
    if output.values.keys() != output.status.keys() or any(len(column) != size for column in columns):
        raise BadMessage(f"no scores of {size} answers")
    return output


def _answer(value: Any, place: str) -> RewardInput:
    if not isinstance(value, dict):
        raise BadMessage(f"{place}: expected an object")
    images: list[Image.Image] = []
    found = {name: _decoded(value.get(name), f"{place}.{name}", images) for name in ("image", "video")}
    maps = {name: value.get(name) or {} for name in ("references", "metadata", "outcome")}
    for name, each in maps.items():
        if not isinstance(each, dict):
            raise BadMessage(f"{place}.{name}: expected an object")
        maps[name] = _decoded(each, f"{place}.{name}", images)
    for name, kinds in (("id", str), ("group", int), ("prompt", str), ("text", str | None)):
        if not isinstance(value.get(name), kinds) or isinstance(value.get(name), bool):
            raise BadMessage(f"{place}.{name} is {value.get(name)!r:.60}")
    if found["image"] is not None and not isinstance(found["image"], Image.Image):
        raise BadMessage(f"{place}.image: expected an image")
    video = found["video"]
    if video is not None and not (isinstance(video, list) and all(isinstance(each, Image.Image) for each in video)):
        raise BadMessage(f"{place}.video: expected a list of images")
    return RewardInput(
        id=value["id"],
        group=value["group"],
        prompt=value["prompt"],
        image=found["image"],
        video=video,
        text=value["text"],
        references=maps["references"],
        metadata=maps["metadata"],
        outcome=maps["outcome"],
    )


def _decoded(value: Any, place: str, images: list[Image.Image]) -> Any:
    """Return a JSON value with its images decoded; `images` collects those of one answer."""
    if isinstance(value, list):
        return [_decoded(each, place, images) for each in value]
    if not isinstance(value, dict):
        return value
    if list(value) != [IMAGE]:
        return {name: _decoded(each, f"{place}.{name}", images) for name, each in value.items()}
    if len(images) >= MAX_FRAMES:
        raise BadMessage(f"{place}: more than {MAX_FRAMES} images in one answer")
    if not isinstance(value[IMAGE], str):
        raise BadMessage(f"{place}: an image is a data URI")
    try:
        with Image.open(BytesIO(uri_bytes(value[IMAGE])), formats=("PNG",)) as image:
            if image.size[0] * image.size[1] > MAX_PIXELS:
                raise BadMessage(f"{place}: {image.size[0]} x {image.size[1]} pixels; at most {MAX_PIXELS} are scored")
            image.load()
            images.append(image)
            return image
    except (*BROKEN_IMAGE, Image.DecompressionBombWarning) as err:
        if isinstance(err, BadMessage):
            raise
        raise BadMessage(f"{place}: the image cannot be read: {err or type(err).__name__}") from err


def _encoded(value: Any) -> Any:
    """Return JSON for what `json` does not know: images, numbers and arrays of numpy, tuples in mappings."""
    if isinstance(value, Image.Image):
        buffer = BytesIO()
        try:
            (value if value.mode in ("L", "RGB", "RGBA", "I;16") else value.convert("RGBA")).save(
                buffer, "PNG", compress_level=1
            )
        except BROKEN_IMAGE as err:
            raise TypeError(f"an image of the mode {value.mode}: {err}") from err
        return {IMAGE: data_uri(buffer.getvalue(), "image/png")}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is neither JSON nor an image")


def _sent_references(references: Mapping[str, Any]) -> dict[str, Any]:
    """Return references with the files that they name as data URIs.

    What a sample shows (`image`, `images`, ...) must be there; another key with such a word, as `image_id` of a data
    set's metadata, may be no file, and is sent as it is then.
    """
    return {
        name: map_media({name: value}, _file_as_uri if name in MEDIA_KEYS else _file_as_uri_if_there)[name]
        for name, value in references.items()
    }


def _file_as_uri_if_there(kind: MediaKind, text: str) -> str:
    try:
        return _file_as_uri(kind, text) if Path(text).is_file() else text
    except (OSError, ValueError):  # no name that a file could have
        return text


def _file_as_uri(kind: MediaKind, path: str) -> str:
    """Return a file that a client's references name, as a data URI; one that is a data URI already is unchanged."""
    if is_data_uri(path):
        return path
    try:
        return data_uri(Path(path).read_bytes(), mimetypes.guess_type(path)[0] or "application/octet-stream")
    except OSError as err:
        raise ScoringFailed(f"references: {err}", "reference") from err


def _object(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as err:
        raise BadMessage(f"no JSON: {err}") from err
    if not isinstance(message, dict):
        raise BadMessage("expected a JSON object")
    return message
