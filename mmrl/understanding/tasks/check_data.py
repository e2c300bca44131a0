"""`mmrl data check`: problems of a data set, found before training, in lines, media, tasks, answers and boxes.

Each sample is completed by its task, and its reference answer is written as a model would write it and scored by the
sample's own rewards: if the reference does not get the highest score, no model can.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmrl.data.media.bad_media import MediaCheck, decode, find_bad_media
from mmrl.data.media.decode import image_size
from mmrl.data.media.sample_media import media_of
from mmrl.data.media.video import stated_duration
from mmrl.data.sample import RewardChoice, Sample
from mmrl.data.sources import scan_source
from mmrl.errors import DataError
from mmrl.rewards.core.registry import has_code, load, named_by_data, reward_class
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardInput, reward_input
from mmrl.rewards.parsing.boxes import MAX_SIDE, SPACES, Space, boxes_from_json, convert_box, true_boxes
from mmrl.rewards.parsing.final_answer import AnswerFormat
from mmrl.rewards.parsing.spans import parse_spans, spans_from_json
from mmrl.understanding.prompt_encoder import conversation
from mmrl.understanding.tasks.coordinates import CoordinateFormat
from mmrl.understanding.tasks.definitions import apply_task, with_task

_ROUNDING = 1e-6  # of float32
_LATE = 1.0  # seconds by which an answer may end after its video: they are often rounded up


@dataclass(frozen=True)
class Problem:
    """A problem of one line."""

    number: int
    text: str


@dataclass
class Tally:
    """The counts of the lines of one source and task."""

    lines: int = 0
    bad: int = 0
    pictures: int = 0
    videos: int = 0
    answers: int = 0
    scored: int = 0  # answers with the highest score from their own rewards


@dataclass
class Report:
    """The result of `check_data`."""

    problems: list[Problem] = field(default_factory=list)  # by line
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)  # {(source, task): ...}
    not_scored: Counter[str] = field(default_factory=Counter)  # {reward: number of answers that it did not score}
    lines: int = 0


def check_data(
    path: str, media: bool = True, task: str | None = None, columns: Mapping[str, str] | None = None
) -> Report:
    """Check every line of a source.

    Args:
        path: a file or data set, as in `data.path`.
        media: decode images and videos; False opens no file.
        task: the task of lines without one; also `path/to/file.py:Name`.
        columns: {column of a table: key of a sample}.

    Raises:
        DataError: the source cannot be read at all.
    """
    report = Report()
    samples: dict[int, Sample] = {}
    found: dict[int, list[str]] = {}
    for line in scan_source(path, columns):
        report.lines += 1
        found[line.number] = list(line.problems)
        if line.sample is not None:
            samples[line.number] = with_task(line.sample, task)
    if media:
        for number, problems in _bad_media(samples, decode).items():
            found[number] += problems
    completed: dict[int, Sample] = {}
    for number, sample in samples.items():
        sample_of_task, problems = _complete(sample, media and not found[number], task)
        found[number] += problems
        if sample_of_task is not None and not problems:
            completed[number] = sample_of_task
    wrong, scored = _unrewarded(completed, report.not_scored)
    for number, problems in wrong.items():
        found[number] += problems
    for number in sorted(found):
        report.problems += [Problem(number, text) for text in dict.fromkeys(found[number])]
        _count(report, samples.get(number), bool(found[number]), number in scored)
    return report


def _bad_media(samples: Mapping[int, Sample], check: MediaCheck) -> dict[int, list[str]]:
    numbered = [replace(sample, id=str(number)) for number, sample in samples.items()]  # ids need not be unique
    return {
        int(number): [problem.replace(f" (sample {number!r})", "") for problem in problems]
        for number, problems in find_bad_media(numbered, check).items()
    }


def _complete(sample: Sample, open_media: bool, task: str | None) -> tuple[Sample | None, list[str]]:
    """Return the sample completed by its task, in its own coordinates, and its problems apart from media."""
    problems = []
    try:
        conversation(sample)
    except DataError as err:
        problems.append(_bare(str(err), sample))
    if (sample.chosen is None) != (sample.rejected is None):
        problems.append("has one of 'chosen' and 'rejected'; a pair has both")
    if sample.answer is None and (sample.task or sample.rewards) and _only_for_rewards(sample):
        problems.append("has no answer for its reward to compare with")
    space = sample.metadata.get("space")
    problems += _odd_boxes(sample, open_media) if space in SPACES else []
    problems += _late_spans(sample) if open_media and sample.task == "temporal-grounding" else []
    own = CoordinateFormat(space if space in SPACES else "norm_1000")
    try:
        return apply_task(sample if open_media else _with_any_size(sample), own, default_task=task), problems
    except DataError as err:
        return None, [*problems, _bare(str(err), sample)]


def _only_for_rewards(sample: Sample) -> bool:
    return sample.demonstration is None and sample.chosen is None


def _with_any_size(sample: Sample) -> Sample:
    """Return the sample with the largest allowed image size, for a check that does not open the image."""
    largest = {"size": [MAX_SIDE, MAX_SIDE]}
    return replace(sample, metadata=largest | dict(sample.metadata))


def _odd_boxes(sample: Sample, open_media: bool) -> list[str]:
    """Return problems of a stated size that is not the image's, and of coordinates that fit another space."""
    problems = []
    stated = sample.metadata.get("size")
    if open_media and stated is not None and len(sample.images) == 1:
        real = image_size(sample.images[0], sample.id)
        if list(stated) != list(real):
            problems.append(f"its metadata say that the picture is {stated}, and it is {list(real)}")
    try:
        value = sample.answer.get("box") if isinstance(sample.answer, Mapping) and "action" in sample.answer else None
        boxes = boxes_from_json(sample.answer if value is None else value, "pixel")
    except ValueError:
        return problems  # the reward's own message is more precise, or there are no boxes
    ends = [coordinate for found in boxes for coordinate in found.box]
    if sample.metadata["space"] != "norm_1" and ends and max(ends) <= 1:
        problems.append(f"its boxes are stated in {sample.metadata['space']}, and all lie between 0 and 1: norm_1?")
    return problems


def _late_spans(sample: Sample) -> list[str]:
    """Return problems of time spans that end after the video."""
    lasts = stated_duration(sample.videos[0], sample.id) if len(sample.videos) == 1 else 0.0
    try:
        answer = sample.answer
        ends = [end for _, end in (parse_spans(answer) if isinstance(answer, str) else spans_from_json(answer))]
    except InvalidAnswer:
        return []  # the reward's own message is more precise
    if not lasts or not ends or max(ends) <= lasts + _LATE:
        return []
    return [f"its answer ends at {max(ends):g} s, and its video lasts {lasts:.1f} s"]


def _unrewarded(samples: Mapping[int, Sample], not_scored: Counter[str]) -> tuple[dict[int, list[str]], set[int]]:
    """Return {line: problems} of answers without the highest score, and the lines where all have it."""
    wrong: dict[int, list[str]] = {}
    batches: dict[str, tuple[RewardChoice, list[tuple[int, RewardInput]]]] = {}
    scored: set[int] = set()
    for number, sample in samples.items():
        if sample.answer is None:
            continue
        for choice in sample.rewards:
            try:
                item = _reference_input(sample, choice)
            except (RewardError, ScoringFailed) as err:
                wrong.setdefault(number, []).append(f"{choice.name}: {err}")
                continue
            if item is None:
                if _needs_references(choice):
                    not_scored[choice.name] += 1
                continue
            batches.setdefault(repr((choice.name, choice.args)), (choice, []))[1].append((number, item))
            scored.add(number)
    for choice, rows in batches.values():
        for number, problem in zip(
            [number for number, _ in rows], _scores(choice, [item for _, item in rows]), strict=True
        ):
            if problem:
                wrong.setdefault(number, []).append(problem)
    return wrong, scored - wrong.keys()


def _reference_input(sample: Sample, choice: RewardChoice) -> RewardInput | None:
    """Return the reference answer as input of a reward; None if rules alone cannot score it."""
    if has_code(choice.name):  # checking a data set must not run code that it names
        return None
    reward_class(choice.name)  # raises for an unknown name
    return reference_answer(sample, choice)


def _needs_references(choice: RewardChoice) -> bool:
    return has_code(choice.name) or any(need.startswith("references") for need in reward_class(choice.name).needs)


def _scores(choice: RewardChoice, items: Sequence[RewardInput]) -> list[str | None]:
    """Return the problem of each reference answer, or None if it has the highest score."""
    try:
        with named_by_data("a sample"):
            reward = load(choice.name, **choice.args)
    except (RewardError, TypeError, ValueError) as err:
        return [f"{choice.name}: {err}"] * len(items)
    output = reward.score(items)
    best = reward.range[1] if reward.direction == "higher" else reward.range[0]
    problems: list[str | None] = []
    for row, (value, status) in enumerate(zip(output.values[choice.name], output.status[choice.name], strict=True)):
        detail = output.detail[row].get(choice.name, "")
        if status is not Status.OK:
            problems.append(f"{choice.name} cannot use its answer: {detail}")
        elif abs(float(value) - best) > _ROUNDING:
            problems.append(
                f"{choice.name} gives its own answer, {items[row].text!r:.80}, {value:.4g} and not {best:g}"
            )
        else:
            problems.append(None)
    return problems


def _count(report: Report, sample: Sample | None, bad: bool, scored: bool) -> None:
    where = ("", "") if sample is None else (sample.source, sample.task or "")
    tally = report.tallies.setdefault(where, Tally())
    tally.lines, tally.bad, tally.scored = tally.lines + 1, tally.bad + bad, tally.scored + scored
    if sample is not None:
        kinds = [kind for kind, _ in media_of(sample)]
        tally.pictures += kinds.count("image")
        tally.videos += kinds.count("video")
        tally.answers += sample.answer is not None


def _bare(problem: str, sample: Sample) -> str:
    """Return a message without the sample's id, for reports that name the line."""
    return problem.removeprefix(f"sample {sample.id!r}").lstrip(": ").replace(f" (sample {sample.id!r})", "")


def reference_answer(sample: Sample, reward: RewardChoice) -> RewardInput | None:
    """Return the reference answer as a model would write it, as input of one of the sample's rewards.

    None if the format that the reward reads is not known here.

    Raises:
        ScoringFailed: the reward's references are malformed.
    """
    write = _WRITERS.get(reward.name)
    if write is None:
        return None
    item = reward_input(sample, "", group=0, id=sample.id)
    text = write(item.references, reward.args)
    form: AnswerFormat = item.references.get("answer_form", "auto")
    if form == "boxed":
        text = f"\\boxed{{{text}}}"
    return reward_input(sample, f"<answer>{text}</answer>" if form == "tags" else text, group=0, id=sample.id)


References = Mapping[str, Any]
Arguments = Mapping[str, Any]


def _verbatim(references: References, args: Arguments) -> str:
    answer = references["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)


def _boxes(references: References, args: Arguments) -> str:
    """Return the true boxes as JSON in the coordinate space of answers, at full precision."""
    truth = true_boxes(references, args.get("space"))
    rows: list[dict[str, Any]] = []
    for found in truth.boxes:
        row: dict[str, Any] = {
            "bbox_2d": list(convert_box(found.box, truth.reference_space, truth.answer_space, truth.size))
        }
        rows.append(row if found.label is None else row | {"label": found.label})
    return json.dumps(rows, ensure_ascii=False)


def _centre(references: References, space: Space | None) -> list[float]:
    truth = true_boxes(references, space)
    if not truth.boxes:
        raise ScoringFailed("references['answer'] has no box that a point could lie in", "reference")
    x1, y1, x2, y2 = convert_box(truth.boxes[0].box, truth.reference_space, truth.answer_space, truth.size)
    return [(x1 + x2) / 2, (y1 + y2) / 2]


def _point(references: References, args: Arguments) -> str:
    return json.dumps(_centre(references, args.get("space")))


def _action(references: References, args: Arguments) -> str:
    answer = references["answer"]
    if not isinstance(answer, Mapping):
        return _verbatim(references, args)  # the reward's own message is more precise
    action = {"action": answer.get("action")}
    if answer.get("box") is not None:
        action["coordinate"] = _centre({**references, "answer": answer["box"]}, args.get("space"))
    if answer.get("text") is not None:
        action["text"] = answer["text"]
    return json.dumps(action, ensure_ascii=False)


_BOXES = ("box_iou", "box_giou", "box_diou", "box_ciou", "dynamic_iou", "reachable_iou")
_DETECTIONS = ("detection_f1", "detection_map", "od_length", "weighted_pr", "vision_r1", "region_proposals")
_VERBATIM = (
    *("chart_relaxed", "chart_table", "count_exact", "count_graded", "maths", "multiple_choice", "numeric", "ocr_cer"),
    *("ocr_ned", "ocr_wer", "rouge", "teds", "temporal_iou", "tube_iou", "verdict"),
)
_WRITERS: dict[str, Callable[[References, Arguments], str]] = {
    **dict.fromkeys((*_BOXES, *_DETECTIONS), _boxes),
    **dict.fromkeys(_VERBATIM, _verbatim),
    "point_in_box": _point,
    "gui_action": _action,
}
