"""The result of an evaluation, in memory and in a run folder, and the paired change of a reward between two of them.

evaluations/step-N.jsonl            one line per row: id, draw, prompt, source, rewards, status (answer, tokens, ...)
samples/step-N/<prompt>-<draw>.png  the generated pictures of the first prompts
samples/step-N/<prompt>-shown.png   the picture in the prompt, for the first prompts of each source
episodes/step-N/                    some episodes of several turns (`episodes.episode_files`)
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmrl.atomic_io import named_in_errors, replace_text
from mmrl.errors import EvaluationError
from mmrl.evaluation.episodes.episode_files import delete_episodes, load_episodes, save_episodes
from mmrl.evaluation.episodes.episode_view import EpisodeView
from mmrl.evaluation.image_grid import first_of_each_source
from mmrl.rewards.core.reward_errors import Status
from mmrl.statistics.intervals import Interval, paired_difference, paired_means


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of N samples with `draws` rows each, N * draws rows in all: row = sample * draws + draw."""

    step: int
    draws: int
    ids: tuple[str, ...]  # N
    prompts: tuple[str, ...]  # N
    sources: tuple[str, ...]  # N
    values: Mapping[str, NDArray[np.float32]]  # {name: [N * draws]}; NaN where not scored
    status: Mapping[str, Sequence[str]]  # {name: [N * draws]}
    images: Sequence[Image.Image | None] = field(repr=False)  # N * draws; None: a text, or not kept
    diversity_by_sample: Sequence[float] | None = None  # N; None: one draw, or mixed media
    answers: Sequence[str | None] = ()  # N * draws texts; None: a picture; empty: only pictures
    tokens: Sequence[int | None] = ()  # N * draws lengths of texts; None: not known; empty: of none
    expected: Sequence[str | None] = ()  # N right answers, shortened; None: not known; empty: of none
    prompt_images: Sequence[Image.Image | None] = field(default=(), repr=False)  # N; None or empty: not kept
    further: tuple[str, ...] = ()  # further scores of a reward, such as a detection's precision
    failure_reasons: Sequence[Mapping[str, str]] = ()  # N * draws, {reward: reason}; not saved
    episodes: Mapping[int, EpisodeView] = field(default_factory=dict, repr=False)  # {row: episode} of those kept

    @property
    def diversity(self) -> float | None:
        """The mean distance between the pictures (or texts) of a prompt; None with one draw."""
        return None if self.diversity_by_sample is None else float(np.mean(self.diversity_by_sample))

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The number of rows by status, of those that should be scored: {name: {"ok": 60, "error": 4}}."""
        return {
            name: dict(Counter(each for each in column if each != Status.NOT_APPLICABLE))
            for name, column in self.status.items()
        }

    @property
    def has_answers(self) -> bool:
        """True if any answer is a text."""
        return any(answer is not None for answer in self.answers)

    @property
    def mean_tokens(self) -> float | None:
        """The mean length of the texts in tokens; None if unknown."""
        known = [count for count in self.tokens if count is not None]
        return sum(known) / len(known) if known else None

    def requested(self, name: str) -> NDArray[np.bool_]:
        """Return [N]: True for the samples that should be scored by this reward; others name other rewards."""
        rows = np.array([status != Status.NOT_APPLICABLE for status in self.status[name]], bool)
        return np.asarray(rows.reshape(len(self.ids), self.draws).any(axis=1))

    def mean(self, name: str) -> float:
        """Return the mean over the scored rows; NaN if there is none. `failed` counts the others."""
        return _mean(self.values[name])

    def failed(self, name: str) -> int:
        """Return the number of rows that should be scored by a reward and were not."""
        return int(np.isnan(self.by_prompt(name)[self.requested(name)]).sum())

    def failures(self) -> list[str]:
        """Return a text for each reward that could not score some answers, with the most frequent reason."""
        texts = []
        for name in (each for each in self.values if each != "total"):
            missing = [status in (Status.ERROR, Status.TIMEOUT) for status in self.status[name]]
            reasons = Counter(
                reasons[name]
                for reasons, fails in zip(self.failure_reasons, missing, strict=False)
                if fails and name in reasons
            )
            if reasons:
                reason = reasons.most_common(1)[0][0]
                texts.append(
                    f"{name} could not score {sum(missing):,} of {len(missing):,} answers, most often: {reason}"
                )
        return texts

    def answer(self, sample: int, draw: int = 0) -> str | None:
        """Return the text of one row; None for a picture."""
        return self.answers[sample * self.draws + draw] if self.answers else None

    def by_prompt(self, name: str) -> NDArray[np.float32]:
        """Return the values of a reward as [N, draws]."""
        return self.values[name].reshape(len(self.ids), self.draws)

    def by_source(self) -> dict[str, dict[str, float]]:
        """Return {source: {name: mean}}, for the names that samples of the source should be scored by."""
        sources = np.array(self.sources)
        requested = {name: self.requested(name) for name in self.values}
        return {
            source: {n: _mean(self.by_prompt(n)[rows]) for n in self.values if (requested[n] & rows).any()}
            for source in sorted(set(self.sources))
            for rows in [sources == source]
        }

    def metrics(self) -> dict[str, float]:
        """Return the numbers for a tracker: `evaluation/<name>`, `evaluation/diversity`, totals by source, failures if
        any; for texts `evaluation_tokens`, also by source."""
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
        """Write into a run folder, replacing an earlier evaluation of the step, and return the path of its rows.

        With them go the generated pictures of the first `pictures` prompts, the pictures in the first prompts of each
        source, and episodes.
        """
        samples = folder / "samples" / f"step-{self.step}"
        samples.mkdir(parents=True, exist_ok=True)
        for old in samples.glob("*.png"):
            old.unlink()
        with named_in_errors(samples):
            for row, image in enumerate(self.images[: pictures * self.draws]):
                if image is not None:
                    image.save(_picture(folder, self.step, *divmod(row, self.draws)))
            for sample in first_of_each_source(self.sources, pictures):
                if self.prompt_images and (image := self.prompt_images[sample]) is not None:
                    image.save(_picture(folder, self.step, sample, "shown"))
        save_episodes(folder, self.step, {divmod(row, self.draws): each for row, each in self.episodes.items()})
        path = _file(folder, self.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(self._line(row), ensure_ascii=False) for row in range(len(self.ids) * self.draws))
        return replace_text(path, "".join(f"{line}\n" for line in lines), errors="backslashreplace")

    @classmethod
    def load(cls, folder: Path, step: int, images: bool = True) -> Evaluation:
        """Return the evaluation that `save` wrote, with its pictures unless `images` is False.

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
        prompts = [_picture(folder, step, sample, "shown") for sample in range(len(firsts))] if images else []
        episodes = load_episodes(folder, step) if images else {}
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
            prompt_images=[_open(path) for path in prompts] or [None] * len(firsts),
            further=tuple(dict.fromkeys(name for row in rows for name in row.get("further", ()))),
            episodes={sample * draws + draw: each for (sample, draw), each in episodes.items()},
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
            line["diversity"] = self.diversity_by_sample[sample]  # equal on all rows of a sample
        optional = {
            "answer": self.answers[row] if self.answers else None,
            "tokens": self.tokens[row] if self.tokens else None,
            "expected": self.expected[sample] if self.expected else None,
            "further": list(self.further) or None,
        }
        return line | {key: value for key, value in optional.items() if value is not None}

    def _tokens_by_source(self) -> dict[str, float]:
        found: dict[str, list[int]] = {}
        for row, count in enumerate(self.tokens):
            if count is not None:
                found.setdefault(self.sources[row // self.draws], []).append(count)
        return {source: sum(counts) / len(counts) for source, counts in sorted(found.items())}


@dataclass(frozen=True)
class RewardChange:
    """The paired change of one reward on the same prompts and noise; the means are over the pairs that were scored."""

    before: float
    after: float
    difference: Interval
    spread: float = 0.0  # standard deviation over prompts before; 0 where all were equal
    malformed: tuple[int, int] = (0, 0)  # answers that could not be read, before and after

    @property
    def effect_size(self) -> float:
        """The mean difference in standard deviations; NaN without spread."""
        return self.difference.mean / self.spread if self.spread > 0 else math.nan

    @property
    def highest_effect_size(self) -> float:
        """The upper end of the interval in standard deviations; NaN without spread."""
        return self.difference.high / self.spread if self.spread > 0 else math.nan


def reward_change(
    before: Evaluation,
    after: Evaluation,
    name: str,
    samples: NDArray[np.bool_] | None = None,  # [N]; None: all that should be scored by the reward
) -> RewardChange:
    """Return the paired change of one reward, over some samples."""
    mask = before.requested(name) | after.requested(name) if samples is None else samples
    pair = before.by_prompt(name)[mask], after.by_prompt(name)[mask]
    first, last, _ = paired_means(*pair)
    start, end = (float(values.mean()) if values.size else math.nan for values in (first, last))
    spread = float(first.std()) if first.size > 1 and np.ptp(first) > 0 else 0.0
    malformed = (_malformed(before, name, mask), _malformed(after, name, mask))
    return RewardChange(start, end, paired_difference(*pair), spread, malformed)


def evaluation_steps(folder: Path) -> list[int]:
    """Return the evaluated steps of a run folder, sorted."""
    names = [path.stem.removeprefix("step-") for path in (folder / "evaluations").glob("step-*.jsonl")]
    return sorted(int(name) for name in names if name.isdecimal())


def forget_evaluations_after(folder: Path, step: int) -> None:
    """Delete evaluations of later steps, which a run that resumes from this one makes again, or never reaches."""
    for late in evaluation_steps(folder):
        if late > step:
            _file(folder, late).unlink()
            shutil.rmtree(folder / "samples" / f"step-{late}", ignore_errors=True)
            delete_episodes(folder, late)


def _file(folder: Path, step: int) -> Path:
    return folder / "evaluations" / f"step-{step}.jsonl"


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
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # splitlines would split at U+2028
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


def _malformed(evaluation: Evaluation, name: str, samples: NDArray[np.bool_]) -> int:
    rows = np.array([status == Status.INVALID for status in evaluation.status[name]], bool)
    return int(rows.reshape(len(evaluation.ids), evaluation.draws)[samples].sum())


def _mean(values: NDArray[np.float32]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean(dtype=np.float64)) if scored.size else math.nan
