"""mmrl's rewards in the signatures of other trainers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmrl.rewards.core.base import RewardContext, RewardError, RewardInput, ScoringFailed, Status

if TYPE_CHECKING:
    from mmrl.rewards.core.suite import RewardSuite

TrlReward = Callable[..., list[float | None]]
VerlReward = Callable[..., dict[str, float]]


def as_trl(suite: RewardSuite, answer: str = "answer") -> TrlReward:
    """A reward function for trl's `GRPOTrainer`, `RLOOTrainer` and their kin, giving the suite's total.

        GRPOTrainer(model, reward_funcs=RewardSuite([(load("maths"), 1.0)]).as_trl(answer="solution"), args=config)

    The columns of the data set become `references`; `answer` names the one that holds the right answer. What could not
    be scored is None, which trl leaves out of its means where this is its only reward function. (It adds up several
    with None as 0: put all rewards into one suite.) Every reward's mean and every count of failures go to trl's
    log, and schedules follow its progress. Equal prompts that stand side by side are one group.
    """

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,  # the rest of trl's call: the data set's columns, and callbacks that are none
    ) -> list[float | None]:
        rows = {name: column for name, column in columns.items() if _is_column(column, len(prompts))}
        batch = [
            RewardInput(
                id=str(row),
                group=group,
                prompt=_text_of(prompts[row]),
                text=_text_of(completions[row]),
                references=_references({name: column[row] for name, column in rows.items()}, answer),
                metadata={} if completion_ids is None else {"tokens": list(completion_ids[row])},
            )
            for row, group in enumerate(_runs(prompts))
        ]
        output = suite.score(batch, RewardContext(progress=_progress(trainer_state)))
        suite.refuse_unscored(output)
        if log_metric is not None:
            for name in suite.names:
                scored = [float(value) for value in output.values[name] if math.isfinite(value)]
                if scored:
                    log_metric(f"reward/{name}", sum(scored) / len(scored))
                for status, count in suite.counts(output)[name].items():
                    if status != Status.OK:
                        log_metric(f"status/{name}/{status}", float(count))
        return [float(total) if math.isfinite(total) else None for total in output.values["total"]]

    reward.__name__ = "+".join(suite.names)
    return reward


def as_verl(suite: RewardSuite) -> VerlReward:
    """A `compute_score` for verl: name it in `custom_reward_function` (path of your file, and its name there).

        compute_score = RewardSuite([(load("maths"), 1.0)]).as_verl()

    It returns the total as `score`, every value by name, and `invalid` (1 where the answer was malformed). verl has no
    way to leave an answer out: what could not be scored raises `ScoringFailed`, after the suite's retries.

    Raises:
        RewardError: the suite compares answers, and verl scores them one by one.
    """
    if suite.compares:
        raise RewardError("verl scores answers one by one, so a suite that compares those of a group cannot be used")

    def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        extra = dict(extra_info or {})
        item = RewardInput(
            id=str(extra.get("index", "0")),
            group=0,
            prompt=str(extra.get("question", extra.get("prompt", ""))),
            text=solution_str,
            references=_plain({**extra, "answer": ground_truth}),
            metadata={"source": data_source},
        )
        output = suite.score([item])
        values = {name: float(column[0]) for name, column in output.values.items()}
        if not math.isfinite(values["total"]):
            raise ScoringFailed(f"{data_source}: cannot be scored: {output.detail[0]}", "unscored")
        invalid = any(output.status[name][0] is Status.INVALID for name in suite.names)
        return {"score": values.pop("total"), **values, "invalid": float(invalid)}

    return compute_score


def _text_of(message: Any) -> str:
    """A text, or the text of the last message of a conversation."""
    if isinstance(message, str):
        return message
    content = message[-1].get("content") if message else None
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if part.get("type") == "text")


def _plain(value: Any) -> Any:
    """Lists instead of the arrays that tables are read into."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _references(row: Mapping[str, Any], answer: str) -> dict[str, Any]:
    return {**row, "answer": row[answer]} if answer in row else dict(row)


def _is_column(value: Any, size: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == size


def _runs(prompts: Sequence[Any]) -> list[int]:
    """A number for each run of equal prompts."""
    groups: list[int] = []
    for row, prompt in enumerate(prompts):
        groups.append(groups[-1] + (prompt != prompts[row - 1]) if groups else 0)
    return groups


def _progress(state: Any) -> float:
    steps = getattr(state, "max_steps", 0)
    return min(1.0, state.global_step / steps) if steps and steps > 0 else 0.0
