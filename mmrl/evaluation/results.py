"""What an evaluation found, in memory and in a run folder.

evaluations/step-N.jsonl            a line a row: id, draw, prompt, source, rewards, status (answer, tokens, ...)
samples/step-N/<prompt>-<draw>.png  the pictures that were made of the first prompts
samples/step-N/<prompt>-shown.png   the picture that was shown with the first prompts of each source
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

from mmrl.errors import EvaluationError
from mmrl.evaluation.image_grid import first_of_each_source
from mmrl.rewards.core.reward_errors import Status


@dataclass(frozen=True)
class Evaluation:
    """N samples with `draws` rows each, N * draws rows in all: row = sample * draws + draw."""

    step: int
    draws: int
    ids: tuple[str, ...]  # N
    prompts: tuple[str, ...]  # N
    sources: tuple[str, ...]  # N
    values: Mapping[str, NDArray[np.float32]]  # {name: [N * draws]}; NaN where the scorer failed or was not asked
    status: Mapping[str, Sequence[str]]  # {name: [N * draws]}
    images: Sequence[Image.Image | None] = field(repr=False)  # N * draws; None: a text, or a picture not kept
    diversity_by_sample: Sequence[float] | None = None  # N; None when draws == 1, or where some made no picture or text
    answers: Sequence[str | None] = ()  # N * draws texts; None: a picture; empty: pictures alone
    tokens: Sequence[int | None] = ()  # N * draws, how many each text has; None: not known; empty: of none
    expected: Sequence[str | None] = ()  # N, what would be right, in short; None: not known; empty: of none
    shown: Sequence[Image.Image | None] = field(default=(), repr=False)  # N, with the prompt; None or empty: not kept
    further: tuple[str, ...] = ()  # names that a reward gave besides its own, such as a detection's precision
    failure_reasons: Sequence[Mapping[str, str]] = ()  # N * draws, {reward: reason}; not saved

    @property
    def diversity(self) -> float | None:
        """Mean distance between the pictures (or texts) of a prompt; None where there is one draw."""
        return None if self.diversity_by_sample is None else float(np.mean(self.diversity_by_sample))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many of the rows that a reward was asked for had which status: {name: {"ok": 60, "error": 4}}."""
        asked = {
            name: [each for each in column if each != Status.NOT_APPLICABLE] for name, column in self.status.items()
        }
        return {name: dict(Counter(column)) for name, column in asked.items()}

    @property
    def has_answers(self) -> bool:
        """Whether texts were written."""
        return any(answer is not None for answer in self.answers)

    @property
    def mean_tokens(self) -> float | None:
        """Mean length of the texts in tokens; None where it is not known."""
        known = [count for count in self.tokens if count is not None]
        return sum(known) / len(known) if known else None

    def asked(self, name: str) -> NDArray[np.bool_]:
        """[N]: the samples that were to be scored by this reward. Others asked for other rewards."""
        rows = np.array([status != Status.NOT_APPLICABLE for status in self.status[name]], bool)
        return np.asarray(rows.reshape(len(self.ids), self.draws).any(axis=1))

    def mean(self, name: str) -> float:
        """Over the rows that could be scored; NaN if none could. `failed` counts the others."""
        return _mean(self.values[name])

    def failed(self, name: str) -> int:
        """Rows that a reward was asked for and could not score."""
        return int(np.isnan(self.by_prompt(name)[self.asked(name)]).sum())

    def answer(self, sample: int, draw: int = 0) -> str | None:
        """The text of one row; None where a picture was made."""
        return self.answers[sample * self.draws + draw] if self.answers else None

    def by_prompt(self, name: str) -> NDArray[np.float32]:
        """[N, draws]."""
        return self.values[name].reshape(len(self.ids), self.draws)

    def by_source(self) -> dict[str, dict[str, float]]:
        """Means by source and name, for the names that the source was to be scored by: {source: {name: mean}}."""
        sources = np.array(self.sources)
        asked = {name: self.asked(name) for name in self.values}
        return {
            source: {n: _mean(self.by_prompt(n)[rows]) for n in self.values if (asked[n] & rows).any()}
            for source in sorted(set(self.sources))
            for rows in [sources == source]
        }

    def metrics(self) -> dict[str, float]:
        """What a tracker logs: `evaluation/<name>`, `evaluation/diversity`, totals by source, failures if any; of texts
        `evaluation_tokens`, also by source."""
        numbers = {f"evaluation/{name}": self.mean(name) for name in self.values}
        if self.diversity is not None:
            numbers["evaluation/diversity"] = self.diversity
        sources = self.by_source()
        if len(sources) > 1:
            numbers |= {f"evaluation_by_source/{s}": means["total"] for s, means in sources.items() if "total" in means}
        if self.mean_tokens is not None:
            numbers["evaluation_tokens"] = self.mean_tokens
        if len(sources) > 1:
            numbers |= {f"evaluation_tokens_by_source/{s}": mean for s, mean in self._tokens_by_source().items()}
        return numbers | {f"evaluation_failed/{name}": float(n) for name in self.values if (n := self.failed(name))}

    def save(self, folder: Path, pictures: int = 16) -> Path:
        """Write into a run folder, with the pictures that were made of the first `pictures` prompts, or shown with
        the first of each source; replaces an earlier one.
        """
        shown = folder / "samples" / f"step-{self.step}"
        shown.mkdir(parents=True, exist_ok=True)
        for old in shown.glob("*.png"):
            old.unlink()
        for row, image in enumerate(self.images[: pictures * self.draws]):
            if image is not None:
                image.save(_picture(folder, self.step, *divmod(row, self.draws)))
        for sample in first_of_each_source(self.sources, pictures):
            if self.shown and (image := self.shown[sample]) is not None:
                image.save(_picture(folder, self.step, sample, "shown"))
        path = _file(folder, self.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        lines = (json.dumps(self._line(row), ensure_ascii=False) for row in range(len(self.ids) * self.draws))
        with draft.open("w", encoding="utf-8", errors="backslashreplace") as file:  # half a letter: JSON's escape
            file.writelines(line + "\n" for line in lines)
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
        shown = [_picture(folder, step, sample, "shown") for sample in range(len(firsts))] if images else []
        return cls(
            step=step,
            draws=draws,
            ids=tuple(row["id"] for row in firsts),
            prompts=tuple(row["prompt"] for row in firsts),
            sources=tuple(row["source"] for row in firsts),
            values={name: np.array(column, np.float32) for name, column in values.items()},
            status={name: [row["status"][name] for row in rows] for name in names},
            images=[_open(path) for path in kept] or [None] * len(rows),
            diversity_by_sample=diversity if len(diversity) == len(firsts) else None,
            answers=[row.get("answer") for row in rows],
            tokens=[row.get("tokens") for row in rows],
            expected=[row.get("expected") for row in firsts],
            shown=[_open(path) for path in shown] or [None] * len(firsts),
            further=tuple(dict.fromkeys(name for row in rows for name in row.get("further", ()))),
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
        told = {
            "answer": self.answers[row] if self.answers else None,
            "tokens": self.tokens[row] if self.tokens else None,
            "expected": self.expected[sample] if self.expected else None,
            "further": list(self.further) or None,
        }
        return line | {key: value for key, value in told.items() if value is not None}

    def _tokens_by_source(self) -> dict[str, float]:
        found: dict[str, list[int]] = {}
        for row, count in enumerate(self.tokens):
            if count is not None:
                found.setdefault(self.sources[row // self.draws], []).append(count)
        return {source: sum(counts) / len(counts) for source, counts in sorted(found.items())}


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


def _picture(folder: Path, step: int, sample: int, draw: int | str) -> Path:
    return folder / "samples" / f"step-{step}" / f"{sample:04d}-{draw}.png"


def _open(path: Path) -> Image.Image | None:
    if not path.exists():
        return None
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
            texts = all(isinstance(row.get(key), str | None) for key in ("answer", "expected"))
        except (ValueError, AttributeError, KeyError) as err:
            raise EvaluationError(f"{path}:{number}: is no line of an evaluation: {err}") from None
        if missing or not same or not texts or row["rewards"].keys() != row["status"].keys():
            raise EvaluationError(f"{path}:{number}: differs in its keys from a line of an evaluation")
        rows.append(row)
    return rows


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean(dtype=np.float64)) if scored.size else math.nan
