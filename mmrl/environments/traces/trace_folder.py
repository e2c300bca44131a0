"""`write_traces`: a folder with recorded traces, one sample a line and one file for each screen.

OUT/traces.jsonl
OUT/screens/00000-0.png
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from mmrl.data.jsonl import write_samples
from mmrl.data.media.decode import with_media_in
from mmrl.data.media.uris import is_data_uri, uri_bytes
from mmrl.data.sample import Sample
from mmrl.environments.recorded_steps import steps_of
from mmrl.errors import DataError

log = logging.getLogger(__name__)

LINES = "traces.jsonl"
"""The file of the samples, in the folder of traces."""
SCREENS = "screens"
"""The folder of the pictures, in the folder of traces."""
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "WEBP": ".webp"}


@dataclass(frozen=True)
class Trace:
    """An episode of a published data set."""

    place: str
    """The file and record, for messages."""
    id: str
    goal: str
    source: str
    screens: tuple[bytes, ...]
    """The files of the pictures: one before each step, and possibly one after the last."""
    steps: tuple[dict[str, Any], ...]
    """The steps without their screens (`mmrl.environments.recorded_steps`)."""
    tags: tuple[str, ...] = ()


def write_traces(traces: Iterable[Trace], out: Path) -> int:
    """Write traces, with places in pixels of the screens' files, and return their number.

    Raises:
        DataError: the folder holds traces already, a screen is no picture, or a step is malformed.
    """
    if (out / LINES).exists():
        raise DataError(f"{out / LINES}: is there already; name another folder")
    (out / SCREENS).mkdir(parents=True, exist_ok=True)
    samples = [_sample(trace, number, out) for number, trace in enumerate(traces)]
    if not samples:
        raise DataError(f"{out}: nothing was written: the source holds no traces that can be used")
    write_samples(samples, out / LINES)
    return len(samples)


def trace_of(sample: Sample) -> Trace:
    """Return the trace of a sample whose screens are data URIs or files, such as a scripted annotator's.

    Raises:
        DataError: the sample is no recorded trace, or a screen cannot be read.
    """
    place = f"sample {sample.id!r}"
    steps = steps_of(sample).steps
    names = [sample.images[-1], *(step.screen for step in steps if step.screen is not None)]
    try:
        screens = tuple(uri_bytes(name) if is_data_uri(name) else Path(name).read_bytes() for name in names)
    except (OSError, ValueError) as err:
        raise DataError(f"{place}: a screen cannot be read: {err}") from None
    return Trace(
        place=place,
        id=sample.id,
        goal=sample.prompt,
        source=sample.source,
        screens=screens,
        steps=tuple(step.model_dump(exclude={"screen"}, exclude_none=True) for step in steps),
        tags=tuple(sample.tags),
    )


def _sample(trace: Trace, number: int, out: Path) -> Sample:
    """Write the screens of a trace, and return its sample."""
    names = []
    for each, content in enumerate(trace.screens):
        name = f"{SCREENS}/{number:05d}-{each}{_suffix(content, f'{trace.place}, screen {each}')}"
        (out / name).write_bytes(content)
        names.append(name)
    after = [*names[1:], *[None] * len(trace.steps)]
    steps = [
        {**step, **({} if screen is None else {"screen": screen})}
        for step, screen in zip(trace.steps, after, strict=False)
    ]
    sample = Sample(
        id=trace.id,
        prompt=trace.goal,
        images=(names[0],) if names else (),
        source=trace.source,
        metadata={"tags": list(trace.tags), "space": "pixel", "steps": steps},
    )
    try:
        checked = steps_of(with_media_in(sample, out)).steps
    except DataError as err:
        raise DataError(f"{trace.place}: {err}") from None
    return replace(sample, demonstration={"turns": [step.action_text for step in checked]})


def _suffix(content: bytes, place: str) -> str:
    try:
        with Image.open(BytesIO(content), formats=tuple(_SUFFIXES)) as picture:
            return _SUFFIXES[str(picture.format)]
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as err:
        raise DataError(f"{place}: is no picture in {', '.join(_SUFFIXES)}: {err!s:.80}") from None


def left_out(traces: Iterable[Trace | str], source: Path) -> Iterator[Trace]:
    """Yield the traces; texts in their place say what is wrong with one, and are logged with their number."""
    problems: dict[str, int] = {}
    for each in traces:
        if isinstance(each, Trace):
            yield each
        else:
            problems[each] = problems.get(each, 0) + 1
    for problem, count in problems.items():
        log.warning("%s: %d traces are left out: %s", source, count, problem)
