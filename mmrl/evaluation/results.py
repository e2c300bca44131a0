"""What an evaluation found, in memory and in a run folder.

evaluations/step-N.jsonl            one line a row: id, draw, prompt, source, rewards, status
samples/step-N/<prompt>-<draw>.png  the pictures of the first prompts
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.evaluation.errors import EvaluationError


@dataclass(frozen=True)
class Evaluation:
    """N samples with `draws` rows each, N * draws rows in all: row = sample * draws + draw."""

    step: int
    draws: int
    ids: tuple[str, ...]  # N
    prompts: tuple[str, ...]  # N
    sources: tuple[str, ...]  # N
    values: Mapping[str, NDArray[np.float32]]  # {name: [N * draws]}; NaN where the scorer failed
    status: Mapping[str, Sequence[str]]  # {name: [N * draws]}
    images: Sequence[Image.Image | None] = field(repr=False)  # N * draws; None: a text, or a picture not kept
    diversity_by_sample: Sequence[float] | None = None  # N; None when draws == 1, or for texts

    @property
    def diversity(self) -> float | None:
        """Mean distance between the pictures of a prompt; None where there is one draw, or no picture."""
        return None if self.diversity_by_sample is None else float(np.mean(self.diversity_by_sample))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many rows had which status: {name: {"ok": 60, "error": 4}}."""
        return {name: dict(Counter(status)) for name, status in self.status.items()}

    def mean(self, name: str) -> float:
        """Over the rows that could be scored; NaN if none could. `failed` counts the others."""
        return _mean(self.values[name])

    def failed(self, name: str) -> int:
        """Rows that could not be scored."""
        return int(np.isnan(self.values[name]).sum())

    def by_prompt(self, name: str) -> NDArray[np.float32]:
        """[N, draws]."""
        return self.values[name].reshape(len(self.ids), self.draws)

    def by_source(self) -> dict[str, dict[str, float]]:
        """Means by source and name: {source: {name: mean}}."""
        sources = np.array(self.sources)
        return {
            source: {name: _mean(self.by_prompt(name)[sources == source]) for name in self.values}
            for source in sorted(set(self.sources))
        }

    def metrics(self) -> dict[str, float]:
        """What a tracker logs: `evaluation/<name>`, `evaluation/diversity`, totals by source, failures if any."""
        numbers = {f"evaluation/{name}": self.mean(name) for name in self.values}
        if self.diversity is not None:
            numbers["evaluation/diversity"] = self.diversity
        sources = self.by_source()
        if len(sources) > 1:
            numbers |= {f"evaluation_by_source/{s}": means["total"] for s, means in sources.items() if "total" in means}
        return numbers | {f"evaluation_failed/{name}": float(n) for name in self.values if (n := self.failed(name))}

    def save(self, folder: Path, pictures: int = 16) -> Path:
        """Write into a run folder, with the pictures of the first `pictures` prompts; replaces an earlier one."""
        shown = folder / "samples" / f"step-{self.step}"
        shown.mkdir(parents=True, exist_ok=True)
        for old in shown.glob("*.png"):
            old.unlink()
        for row, image in enumerate(self.images[: pictures * self.draws]):
            if image is not None:
                image.save(_picture(folder, self.step, *divmod(row, self.draws)))
        path = _file(folder, self.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        lines = (json.dumps(self._line(row), ensure_ascii=False) for row in range(len(self.ids) * self.draws))
        draft.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        draft.replace(path)
        return path

    @classmethod
    def load(cls, folder: Path, step: int, images: bool = True) -> Evaluation:
        """Read back what `save` wrote, with the pictures that were kept unless `images` is False.

        Raises:
            EvaluationError: there is no such evaluation, or its file is damaged.
        """
        path = _file(folder, step)
        rows = _read(path)
        draws = 1 + max(row["draw"] for row in rows)
        firsts = rows[::draws]
        if [(row["id"], row["draw"]) for row in rows] != [(f["id"], draw) for f in firsts for draw in range(draws)]:
            raise EvaluationError(f"{path}: its rows are not {draws} draws of each sample in order; evaluate again")
        names = list(firsts[0]["rewards"])
        values = {n: [math.nan if (v := row["rewards"][n]) is None else v for row in rows] for n in names}
        diversity = [row["diversity"] for row in firsts if row.get("diversity") is not None]
        kept = [_picture(folder, step, *divmod(row, draws)) for row in range(len(rows))] if images else []
        return cls(
            step=step,
            draws=draws,
            ids=tuple(row["id"] for row in firsts),
            prompts=tuple(row["prompt"] for row in firsts),
            sources=tuple(row["source"] for row in firsts),
            values={name: np.array(column, np.float32) for name, column in values.items()},
            status={name: [row["status"][name] for row in rows] for name in names},
            images=[_open(path) if path.exists() else None for path in kept] or [None] * len(rows),
            diversity_by_sample=diversity if len(diversity) == len(firsts) else None,
        )

    def _line(self, row: int) -> dict[str, Any]:
        sample, draw = divmod(row, self.draws)
        numbers = {name: float(column[row]) for name, column in self.values.items()}
        line = {
            "id": self.ids[sample],
            "draw": draw,
            "prompt": self.prompts[sample],
            "source": self.sources[sample],
            "rewards": {name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "status": {name: str(column[row]) for name, column in self.status.items()},
        }
        if self.diversity_by_sample is not None:
            line["diversity"] = self.diversity_by_sample[sample]  # of the sample's draws: the same on each of its rows
        return line


def evaluation_steps(folder: Path) -> list[int]:
    """The steps that a run folder has evaluations of, sorted."""
    names = [path.stem.removeprefix("step-") for path in (folder / "evaluations").glob("step-*.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def _file(folder: Path, step: int) -> Path:
    return folder / "evaluations" / f"step-{step}.jsonl"


def forget_evaluations_after(folder: Path, step: int) -> None:
    """Delete evaluations of later steps, which a run that goes on from this one will make again, or never reach."""
    for late in evaluation_steps(folder):
        if late > step:
            _file(folder, late).unlink()
            shutil.rmtree(folder / "samples" / f"step-{late}", ignore_errors=True)


def _picture(folder: Path, step: int, sample: int, draw: int) -> Path:
    return folder / "samples" / f"step-{step}" / f"{sample:04d}-{draw}.png"


def _open(path: Path) -> Image.Image:
    with Image.open(path) as image:
        image.load()
        return image


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise EvaluationError(f"{path}: no such evaluation; there are steps {evaluation_steps(path.parent.parent)}")
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # not splitlines: a prompt may hold U+2028
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            missing = {"id", "draw", "prompt", "source", "rewards", "status"} - row.keys()
            same = not rows or row["rewards"].keys() == rows[0]["rewards"].keys()
        except (ValueError, AttributeError, KeyError) as why:
            raise EvaluationError(f"{path}:{number}: is no line of an evaluation: {why}") from None
        if missing or not same or row["rewards"].keys() != row["status"].keys():
            raise EvaluationError(f"{path}:{number}: differs in its keys from a line of an evaluation")
        rows.append(row)
    return rows


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean(dtype=np.float64)) if scored.size else math.nan
