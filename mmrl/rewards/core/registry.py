"""Rewards by name: those that mmrl ships, those of other packages, and those of a user's file.

A package registers rewards as entry points of the group `mmrl.rewards`:

    [project.entry-points."mmrl.rewards"]
    sharpness = "my_package.rewards:Sharpness"

Listing names imports no reward; loading or describing one imports its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard, TypeVar

from mmrl.components import Registry, is_reference
from mmrl.rewards.core.cache import digest_of_source
from mmrl.rewards.core.reward import Reward, spec_of
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import INPUT_FIELDS, RewardInput

Scorer = TypeVar("Scorer", bound=Callable[..., Any])  # a Reward class, or a function that scores one answer

MEDIA = ("image", "video", "text")

_BUILT_IN_BY_MODULE = {
    # regions
    "mmrl.rewards.rules.region_iou": {
        "box_iou": "BoxIoU",
        "box_giou": "BoxGIoU",
        "box_diou": "BoxDIoU",
        "box_ciou": "BoxCIoU",
        "mask_iou": "MaskIoU",
    },
    "mmrl.rewards.rules.detection": {
        "detection_f1": "DetectionF1",
        "detection_map": "DetectionMAP",
        "od_length": "ODLength",
        "weighted_pr": "WeightedPrecisionRecall",
    },
    "mmrl.rewards.rules.scheduled_detection": {
        "dynamic_iou": "DynamicIoU",
        "reachable_iou": "ReachableIoU",
        "vision_r1": "VisionR1",
    },
    # moments, clicks
    "mmrl.rewards.rules.moments": {"temporal_iou": "TemporalIoU", "tube_iou": "TubeIoU"},
    "mmrl.rewards.rules.gui": {"gui_action": "GUIAction", "point_in_box": "PointInBox"},
    # answers with a value
    "mmrl.rewards.rules.multiple_choice": {"multiple_choice": "MultipleChoice"},
    "mmrl.rewards.rules.maths": {"maths": "Maths"},
    "mmrl.rewards.rules.numeric": {"numeric": "Numeric", "count_exact": "CountExact", "count_graded": "CountGraded"},
    "mmrl.rewards.rules.chart_answers": {
        "chart_relaxed": "ChartRelaxed",
        "chart_table": "ChartTable",
        "mathvista": "MathVista",
    },
    # texts and their form
    "mmrl.rewards.rules.text_similarity": {
        "ocr_ned": "OCRNED",
        "ocr_cer": "OCRCER",
        "ocr_wer": "OCRWER",
        "rouge": "Rouge",
        "bmas": "BMAS",
    },
    "mmrl.rewards.rules.teds": {"teds": "TEDS"},
    "mmrl.rewards.rules.formats": {"format": "Format"},
    "mmrl.rewards.rules.lengths": {
        "length": "Length",
        "cosine_length": "CosineLength",
        "soft_overlong": "SoftOverlong",
        "repetition": "Repetition",
    },
    # pictures
    "mmrl.rewards.images.geneval": {"geneval": "GenEval"},
    "mmrl.rewards.images.rendered_text": {"rendered_text": "RenderedText"},
    "mmrl.rewards.images.image_quality": {"compressibility": "Compressibility", "artefacts": "Artefacts"},
    "mmrl.rewards.images.similarity": {"ssim": "SSIM", "ms_ssim": "MSSSIM"},
    "mmrl.rewards.images.lpips": {"lpips": "LPIPS"},
    "mmrl.rewards.images.image_diversity": {"diversity": "Diversity"},
    # videos
    "mmrl.rewards.images.video_consistency": {
        "background_consistency": "BackgroundConsistency",
        "subject_consistency": "SubjectConsistency",
        "temporal_flickering": "TemporalFlickering",
    },
    # models
    "mmrl.rewards.models.clip_score": {
        "clip_score": "CLIPScore",
        "siglip_score": "SigLIPScore",
        "goal_baseline": "GoalBaseline",
        "goal_contrast": "GoalContrast",
    },
    "mmrl.rewards.models.preference_scores": {
        "pickscore": "PickScore",
        "hps_v2": "HPSv2",
        "hps_v21": "HPSv21",
        "aesthetic": "Aesthetic",
    },
    "mmrl.rewards.models.image_reward": {"image_reward": "ImageReward"},
    "mmrl.rewards.models.vqa_score": {"vqa_score": "VQAScore"},
    # judges
    "mmrl.rewards.judges.judge": {
        "judge": "Judge",
        "judge_pairs": "JudgePairs",
        "judge_checklist": "JudgeChecklist",
        "judge_ranking": "JudgeRanking",
    },
}
BUILT_IN = {
    name: f"{module}:{thing}" for module, rewards in _BUILT_IN_BY_MODULE.items() for name, thing in rewards.items()
}
"""{name: "module:Class"} of the rewards that mmrl ships; a module is imported when a reward of it is loaded."""

REWARDS: Registry[Any] = Registry("mmrl.rewards", "reward", BUILT_IN, error=RewardError)

_registered: dict[str, Callable[..., Any]] = {}


def load(name: str, **args: Any) -> Reward:
    """Return a reward, built with the given arguments.

    `name` is one of `available()`, or `path/to/file.py:thing` where the thing is a `Reward` class or a function that
    scores one answer (see `reward_factory`). Loading runs that file or package: name only code that you trust.

        load("compressibility", quality=80)
        load("my_rewards.py:redness", threshold=0.7)

    Raises:
        RewardError: there is no such reward, it cannot be imported, or the arguments do not fit its signature.
    """
    factory = reward_class(name)
    try:
        inspect.signature(factory).bind(**args)
    except TypeError as err:
        raise RewardError(f"{name}{inspect.signature(factory)}: {err}") from None
    return factory(**args)


def register(scorer: Scorer) -> Scorer:
    """Register a `Reward` class under its `name`, or a function that scores one answer under its `__name__`.

    Raises:
        RewardError: another reward has the name, or the function has nothing to score.
    """
    name = scorer.name if _is_reward(scorer) else scorer.__name__
    if _place(_registered.get(name, scorer)) != _place(scorer):  # equal after a notebook cell was run again
        raise RewardError(f"there is already a reward {name!r}: {_place(_registered[name])}")
    if name in REWARDS.names() and (place := REWARDS.place(name)) != _place(scorer):
        raise RewardError(f"there is already a reward {name!r}: {place}")
    if not _is_reward(scorer):
        reward_factory(scorer, name)  # raises now rather than at the first load
    _registered[name] = scorer
    return scorer


def available() -> list[str]:
    """Return the sorted names that `load` takes."""
    return sorted({*_registered, *REWARDS.names()})


def describe(name: str) -> str:
    """Return a text with the purpose, range, needs and arguments of a reward."""
    factory = reward_class(name)
    known = spec_of(factory)
    low, high = known.range
    arguments = ", ".join(_argument(p) for p in inspect.signature(factory).parameters.values())
    facts = [
        f"{name}: {inspect.getdoc(factory) or 'no description'}",
        "",
        f"range      {low:g} to {high:g}, {known.direction} is better",
        f"scope      {known.scope}",
        f"needs      {', '.join(known.needs) or 'nothing in particular'}",
        f"gradients  {'yes' if known.differentiable else 'no'}",
        f"source     {known.source or 'not stated'}",
        f"licence    {known.licence}",
        f"arguments  {arguments or 'none'}",
    ]
    return "\n".join(facts)


def reward_class(name: str) -> type[Reward]:
    """Return the class of a reward by a name that `load` takes, without building the reward."""
    found = _registered[name] if name in _registered else REWARDS.load(name)
    if is_reference(name):
        return _as_reward(found, name.rpartition(":")[2])
    found = _as_reward(found, name)
    if getattr(found, "name", None) != name:
        raise RewardError(f"reward {name!r} is {_place(found)}, which calls itself {getattr(found, 'name', None)!r}")
    return found


def reward_factory(function: Callable[..., float | Mapping[str, float]], name: str) -> type[Reward]:
    """Return a `Reward` class that calls a function to score one answer.

    Parameters are filled by name: `item` with the whole `RewardInput`, `image`, `video`, `text`, `prompt`,
    `references`, `metadata`, `group` and `id` with its fields; all others are arguments of the class. The function's
    attribute `range` states its lowest and highest value; without one, a malformed answer cannot be scored.

        def redness(image, prompt, threshold=0.5): ...

        redness.range = (0.0, 1.0)
        reward_factory(redness, "redness")(threshold=0.7)

    Raises:
        RewardError: a parameter cannot be filled by name, or none takes anything of an answer.
    """
    parameters = inspect.signature(function).parameters.values()
    if loose := [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL, p.VAR_KEYWORD)]:
        raise RewardError(f"{name}: parameters are filled by name, but {', '.join(loose)} cannot be")
    fields = [p.name for p in parameters if p.name in INPUT_FIELDS]
    settings = [p for p in parameters if p.name not in (*INPUT_FIELDS, "item")]
    takes_item = any(p.name == "item" for p in parameters)
    if not fields and not takes_item:
        raise RewardError(
            f"{name}({', '.join(p.name for p in parameters)}) takes nothing to score: "
            f"name a parameter `item` or one of {', '.join(INPUT_FIELDS)}"
        )
    bounds = getattr(function, "range", (-float("inf"), float("inf")))
    required = tuple(p.name for p in parameters if p.name in MEDIA and p.default is p.empty)

    class FunctionReward(Reward):
        needs, range = required, bounds

        def __init__(self, **args: Any) -> None:
            self.args = args

        @classmethod
        def source_digest(cls) -> str:
            return digest_of_source(function)

        def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
            filled = {field: getattr(item, field) for field in fields} | ({"item": item} if takes_item else {})
            return function(**filled, **self.args)

    FunctionReward.name = name
    FunctionReward.__doc__ = function.__doc__
    FunctionReward.__name__ = FunctionReward.__qualname__ = name
    # `load` checks arguments against the signature and `describe` prints it.
    FunctionReward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in settings]
    )
    return FunctionReward


def _as_reward(thing: Any, name: str) -> type[Reward]:
    if _is_reward(thing):
        return thing
    if inspect.isfunction(thing):
        return reward_factory(thing, name)
    raise RewardError(f"{name} is a {type(thing).__name__}; a reward is a Reward class or a function")


def _is_reward(thing: Any) -> TypeGuard[type[Reward]]:
    return inspect.isclass(thing) and issubclass(thing, Reward)


def _place(scorer: Any) -> str:
    return f"{scorer.__module__}:{scorer.__qualname__}"


def _argument(parameter: inspect.Parameter) -> str:
    """Return a parameter as in the source: annotations are strings there, which `str` would quote."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else None
    text = str(parameter) if kind is None else f"{parameter.name}: {kind}"
    if kind is None or parameter.default is parameter.empty:
        return text
    return f"{text} = {parameter.default!r}"
