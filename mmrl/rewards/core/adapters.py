"""Adapters of rewards to the signatures of other trainers: trl's reward functions and verl's `compute_score`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.suite import RewardSuite

_log = logging.getLogger(__name__)
TrlReward = Callable[..., list[float | None]]
VerlReward = Callable[..., dict[str, float]]


def as_trl(rewards: Reward | RewardSuite, answer: str = "answer") -> TrlReward:
    """Return a reward function for trl's `GRPOTrainer`, `RLOOTrainer` and similar trainers that computes the total.

        GRPOTrainer(model, reward_funcs=as_trl(load("maths"), answer="solution"), args=config)

    The columns of the data set become `references`; `answer` names the column of right answers. An answer that could
    not be scored gets None, which trl leaves out of its means if this is its only reward function. (It adds up several
    functions with None as 0: put all rewards into one suite.) Every reward's mean and every count of failures go to
    trl's log, and schedules follow its progress. Equal consecutive prompts are one group. The first reason of each
    kind for which answers could not be scored is logged as a warning.

    Raises:
        RewardError: in a call: the data set has no column `answer`, where another name than "answer" is given, or the
            completions or this column are not as many as the prompts.
    """
    suite = _suite(rewards)
    warned: set[tuple[str, str]] = set()  # (reward, kind of failure)

    def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]] | None = None,
        trainer_state: Any = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,  # the other arguments of trl's call: the data set's columns, and callbacks
    ) -> list[float | None]:
        for name, column in {"completions": completions, answer: columns.get(answer)}.items():
            if isinstance(column, list | tuple) and len(column) != len(prompts):
                raise RewardError(f"as_trl: {name} has {len(column)} values, and there are {len(prompts)} prompts")
        rows = {name: column for name, column in columns.items() if _is_column(column, len(prompts))}
        if answer != "answer" and answer not in rows:
            known = ", ".join(sorted(rows)) or "none beside the prompt"
            raise RewardError(f"as_trl(answer={answer!r}): the data set has no such column; it has {known}")
        batch = [
            RewardInput(
                id=str(row),
                group=group,
                prompt=_text_of(prompts[row]),
                text=_text_of(completions[row]),
                references=_references({name: column[row] for name, column in rows.items()}, answer),
                metadata={} if completion_ids is None else {"tokens": list(completion_ids[row])},
            )
            for row, group in enumerate(_group_numbers(prompts))
        ]
        output = suite.score(batch, RewardContext(progress=_progress(trainer_state)))
        suite.check_valid_share(output)
        for name in suite.names:
            for failure in filter(None, (output.failure_of(name, row) for row in range(len(batch)))):
                if (name, failure.kind) not in warned:
                    warned.add((name, failure.kind))
                    _log.warning("an answer could not be scored (%s): %s", failure.kind, failure)
        if log_metric is not None:
            for name in suite.names:
                scored = [float(value) for value in output.values[name] if math.isfinite(value)]
                if scored:
                    log_metric(f"reward/{name}", sum(scored) / len(scored))
                for status, count in suite.counts(output).get(name, {}).items():
                    if status != Status.OK:
                        log_metric(f"status/{name}/{status}", float(count))
        return [float(total) if math.isfinite(total) else None for total in output.values["total"]]

    reward.__name__ = "+".join(suite.names)
    return reward


def as_verl(rewards: Reward | RewardSuite) -> VerlReward:
    """Return a `compute_score` for verl: name it in `custom_reward_function` (path of your file, and its name there).

        compute_score = as_verl(load("maths"))

    It returns the total as `score`, every value by name, and `invalid` (1 where the answer was malformed). verl has no
    way to leave an answer out: one that could not be scored raises `ScoringFailed`, after the suite's retries.

    Raises:
        RewardError: the suite compares answers, and verl scores them one by one.
    """
    suite = _suite(rewards)
    if suite.needs_full_groups:
        raise RewardError("verl scores answers one by one: a suite that compares the answers of a group cannot be used")

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


def _suite(rewards: Reward | RewardSuite) -> RewardSuite:
    return RewardSuite([(rewards, 1.0)]) if isinstance(rewards, Reward) else rewards


def _text_of(message: Any) -> str:
    """Return a text, or the text of the last message of a conversation."""
    if isinstance(message, str):
        return message
    content = message[-1].get("content") if message else None
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if part.get("type") == "text")


def _plain(value: Any) -> Any:
    """Replace the arrays that tables are read into by lists."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _references(row: Mapping[str, Any], answer: str) -> dict[str, Any]:
    return {**row, "answer": row[answer]} if answer in row else dict(row)


def _is_column(value: Any, size: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == size


def _group_numbers(prompts: Sequence[Any]) -> list[int]:
    """Return a group number for each prompt; equal consecutive prompts have the same."""
    groups: list[int] = []
    for row, prompt in enumerate(prompts):
        groups.append(groups[-1] + (prompt != prompts[row - 1]) if groups else 0)
    return groups


def _progress(state: Any) -> float:
    steps = getattr(state, "max_steps", 0)
    return min(1.0, state.global_step / steps) if steps and steps > 0 else 0.0
