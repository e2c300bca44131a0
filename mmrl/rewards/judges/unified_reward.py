"""UnifiedReward 2.0: scores and comparisons of images and videos by a vision-language model that was trained for it.

The model runs on a server, as its authors run it: `vllm serve CodeGoat24/UnifiedReward-2.0-qwen3vl-8b`. Requests have
the published prompts, which name the form of the reply (CodeGoat24/UnifiedReward@ff6f520
inference_qwen/UnifiedReward-2.0-inference and benchmark_evaluation/vLLM_evaluation).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Scored
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.images.video_consistency import answer_frames
from mmrl.rewards.judges.judge import JudgePairs
from mmrl.rewards.judges.judge_base import JudgeBase
from mmrl.rewards.judges.templates import JudgePrompt, MessagePart, escape_tags

Medium = Literal["image", "video"]
POINT_AXES = {"image": ("alignment", "coherence", "style"), "video": ("alignment", "physics", "style")}
PAIR_AXES = ("alignment", "coherence", "style")
POINT_FRAMES, PAIR_FRAMES = 16, 8
"""Frames of a video in a request, as published: of one video, and of each of two."""
LOW, HIGH = 1.0, 5.0
SUM_TOLERANCE = 0.01  # of the two relative scores of a pair, which sum to 1

_FOLDER = Path(__file__).with_name("unified_prompts")
_NUMBER = r"([0-9]{1,3}(?:\.[0-9]{1,30})?)"
_END = r"[ \t]*$"


@dataclass(kw_only=True, eq=False)
class UnifiedReward(JudgeBase):
    """Mean of UnifiedReward 2.0's scores of an image or video, each from 1 to 5, or of those of `axes`.

    An image has the scores alignment, coherence and style, a video alignment, physics and style. Each stands beside the
    reward, as `unified_reward_style`. The model writes them as numbers; a reply of another form is a failure.

        load("unified_reward", model="UnifiedReward", base_url="http://127.0.0.1:8080/v1")
    """

    name, kind, default_prompt = "unified_reward", "point", "alignment"
    range = (LOW, HIGH)
    source = "UnifiedReward 2.0, arXiv:2503.05236; CodeGoat24/UnifiedReward@ff6f520"
    licence = "MIT"

    axes: Sequence[str] = ()
    """The scores of which the reward is the mean; empty means all."""
    max_tokens: int = 4096
    longest_side: int = 4096
    max_frames: int = POINT_FRAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_prompt_unset(self.name, self.prompt)
        known = dict.fromkeys(axis for axes in POINT_AXES.values() for axis in axes)
        if unknown := [axis for axis in self.axes if axis not in known]:
            raise RewardError(f"axes has {unknown[0]!r}; there are {', '.join(known)}")
        self._prompts = {medium: read_prompt(f"point_{medium}") for medium in POINT_AXES}

    def score_one(self, item: RewardInput) -> dict[str, float]:
        medium = medium_of(item, self.name)
        if missing := [axis for axis in self.axes if axis not in POINT_AXES[medium]]:
            raise ScoringFailed(f"{self.name} has no score {missing[0]!r} of a {medium}", "axis")
        parts = media_parts(self, item, medium)
        reply = self.judge_text(self._prompts[medium].messages({"prompt": escape_tags(item.prompt)}, parts))
        scores = parse_point_scores(reply, POINT_AXES[medium])
        chosen = self.axes or POINT_AXES[medium]
        mean = sum(scores[axis] for axis in chosen) / len(chosen)
        return {self.name: mean} | {f"{self.name}_{axis}": value for axis, value in scores.items()}

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[Scored]:
        return self._endpoint.run_all([partial(self.score_one, item) for item in items])


@dataclass(kw_only=True, eq=False)
class UnifiedRewardPairs(JudgePairs):
    """Mean share by which UnifiedReward 2.0 prefers an image or video to the others of its group, in both orders.

    In [0, 1]. Two answers get relative scores that sum to 1 for alignment, coherence and style; the share is their
    mean, or that of `axes`. With `verdict: true` the model writes a verdict instead: 1 for the better answer, 0 for the
    worse, 0.5 for equally good ones. The only answer in a group is not scored.
    """

    name, kind, default_prompt = "unified_reward_pairs", "pair", "pair_alignment"
    source = "UnifiedReward 2.0, arXiv:2503.05236; CodeGoat24/UnifiedReward@ff6f520"
    licence = "MIT"

    axes: Sequence[str] = ()
    """The scores of which the share is the mean; empty means all three."""
    verdict: bool = False
    max_tokens: int = 4096
    longest_side: int = 4096
    max_frames: int = PAIR_FRAMES

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_prompt_unset(self.name, self.prompt)
        if unknown := [axis for axis in self.axes if axis not in PAIR_AXES]:
            raise RewardError(f"axes has {unknown[0]!r}; there are {', '.join(PAIR_AXES)}")
        if self.verdict and self.axes:
            raise RewardError("axes chooses among scores, and with verdict: true there are none; leave one of them out")
        form = "verdict" if self.verdict else "pair"
        self._prompts = {medium: read_prompt(f"{form}_{medium}") for medium in POINT_AXES}

    def answer_parts(self, item: RewardInput) -> list[MessagePart]:
        """Return the image, or the frames of the video, of an answer as parts of a message."""
        return media_parts(self, item, medium_of(item, self.name))

    def _preference(self, item: RewardInput, first: Sequence[MessagePart], second: Sequence[MessagePart]) -> float:
        medium = medium_of(item, self.name)
        messages = self._prompts[medium].messages({"prompt": escape_tags(item.prompt)}, [*first, *second])
        reply = self.judge_text(messages)
        if self.verdict:
            return parse_verdict(reply, medium)
        shares = parse_pair_scores(reply, medium)
        chosen = self.axes or PAIR_AXES
        return sum(shares[axis] for axis in chosen) / len(chosen)


def read_prompt(name: str) -> JudgePrompt:
    """Return a published prompt, with the pictures before the text."""
    text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    return JudgePrompt(name, "point" if name.startswith("point") else "pair", "", f"$shown{text}")


def medium_of(item: RewardInput, name: str) -> Medium:
    """Return what an answer is.

    Raises:
        ScoringFailed: "missing": it is neither an image nor a video.
    """
    if item.video is not None:
        return "video"
    if item.image is not None:
        return "image"
    raise ScoringFailed(f"{name} needs an image or a video to judge", "missing")


def media_parts(judge: JudgeBase, item: RewardInput, medium: Medium) -> list[MessagePart]:
    """Return the image of an answer, or frames of its video, as parts of a message."""
    if medium == "image":
        return [judge.picture_part(answer_image(item.image))]
    frames = answer_frames(item.video)
    return [judge.picture_part(frames[place]) for place in published_frames(len(frames), judge.max_frames)]


def published_frames(total: int, wanted: int) -> list[int]:
    """Return the places of frames as published: the first of each of `wanted` equal parts; all, if there are fewer.

    >>> published_frames(49, 8)
    [0, 6, 12, 18, 24, 30, 36, 42]
    """
    return sorted({part * total // wanted for part in range(wanted)})


def parse_point_scores(text: str, axes: Sequence[str]) -> dict[str, float]:
    """Return the score of each axis, in [1, 5], from lines such as "Style Score (1-5): 2.8".

    Raises:
        ScoringFailed: "unparseable": an axis has no score, two, or one out of the range.
    """
    found = {}
    for axis in axes:
        values = re.findall(rf"^[ \t]*{axis.title()} Score \(1-5\):[ \t]*{_NUMBER}{_END}", text, re.MULTILINE)
        if len(values) != 1 or not LOW <= float(values[0]) <= HIGH:
            raise _unparseable(text, f"one score from 1 to 5 of {', '.join(axes)}")
        found[axis] = float(values[0])
    return found


def parse_pair_scores(text: str, medium: Medium) -> dict[str, float]:
    """Return the first answer's share of each axis, in [0, 1], from "Style Score:", " Image 1: 0.4", " Image 2: 0.6".

    Raises:
        ScoringFailed: "unparseable": an axis has no two scores in [0, 1] that sum to 1.
    """
    found = {}
    for axis in PAIR_AXES:
        first, second = (rf"\n[ \t]*{medium.title()} {number}:[ \t]*{_NUMBER}{_END}" for number in (1, 2))
        values = re.findall(rf"^[ \t]*{axis.title()} Score:{_END}{first}{second}", text, re.MULTILINE)
        if len(values) != 1:
            raise _unparseable(text, f"two scores of {', '.join(PAIR_AXES)}")
        one, other = map(float, values[0])
        if max(one, other) > 1 or abs(one + other - 1) > SUM_TOLERANCE:
            raise _unparseable(text, "two scores that sum to 1")
        found[axis] = one / (one + other)
    return found


def parse_verdict(text: str, medium: Medium) -> float:
    """Return 1 if the text says that the first answer is better, 0 for the second, 0.5 if both are equally good.

    Raises:
        ScoringFailed: "unparseable": it says none of the three, or several.
    """
    noun = medium.title()
    forms = {f"{noun} 1 is better": 1.0, f"{noun} 2 is better": 0.0, f"Both {medium}s are equally good": 0.5}
    found = [value for form, value in forms.items() if form in text]
    if len(found) != 1:
        raise _unparseable(text, f"one of {', '.join(forms)}")
    return found[0]


def _check_prompt_unset(name: str, prompt: str) -> None:
    if prompt:
        raise RewardError(f"{name} has the prompts that its model was trained with; leave out prompt: {prompt!r}")


def _unparseable(text: str, expected: str) -> ScoringFailed:
    return ScoringFailed(f"the model said {text.strip()[:120]!r}, not {expected}", "unparseable")
