"""Rewards by name: those that mmrl ships, those of other packages, and those of a user's file.

A package registers rewards as entry points of the group `mmrl.rewards`:

    [project.entry-points."mmrl.rewards"]
    sharpness = "my_package.rewards:Sharpness"

Listing names imports no reward; loading or describing one imports its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard, TypeVar

from mmrl.components import Registry, is_reference, place_of
from mmrl.rewards.core.cache import digest_of_source
from mmrl.rewards.core.reward import Reward, purpose_of, spec_of
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import INPUT_FIELDS, RewardInput

Scorer = TypeVar("Scorer", bound=Callable[..., Any])  # a Reward class, or a function that scores one answer

MEDIA = ("image", "video", "text")

BUILT_IN = {
    # regions
    "box_iou": "mmrl.rewards.rules.region_iou:BoxIoU",
    "box_giou": "mmrl.rewards.rules.region_iou:BoxGIoU",
    "box_diou": "mmrl.rewards.rules.region_iou:BoxDIoU",
    "box_ciou": "mmrl.rewards.rules.region_iou:BoxCIoU",
    "mask_iou": "mmrl.rewards.rules.region_iou:MaskIoU",
    "detection_f1": "mmrl.rewards.rules.detection:DetectionF1",
    "detection_map": "mmrl.rewards.rules.detection:DetectionMAP",
    "od_length": "mmrl.rewards.rules.detection:ODLength",
    "weighted_pr": "mmrl.rewards.rules.detection:WeightedPrecisionRecall",
    "uncertain_look": "mmrl.rewards.rules.uncertain_look:UncertainLook",
    "dynamic_iou": "mmrl.rewards.rules.scheduled_detection:DynamicIoU",
    "reachable_iou": "mmrl.rewards.rules.scheduled_detection:ReachableIoU",
    "vision_r1": "mmrl.rewards.rules.scheduled_detection:VisionR1",
    "region_proposals": "mmrl.rewards.rules.region_proposals:RegionProposals",
    # moments, clicks, calls
    "temporal_iou": "mmrl.rewards.rules.moments:TemporalIoU",
    "tube_iou": "mmrl.rewards.rules.moments:TubeIoU",
    "gui_action": "mmrl.rewards.rules.gui:GUIAction",
    "tool_call_match": "mmrl.rewards.rules.tool_call_match:ToolCallMatch",
    "point_in_box": "mmrl.rewards.rules.gui:PointInBox",
    "meta_actions": "mmrl.rewards.rules.meta_actions:MetaActions",
    "agent_plan": "mmrl.rewards.rules.agent_plan:AgentPlan",
    # answers with a value
    "multiple_choice": "mmrl.rewards.rules.multiple_choice:MultipleChoice",
    "verdict": "mmrl.rewards.rules.verdicts:Verdict",
    "both_orders": "mmrl.rewards.rules.verdicts:BothOrders",
    "maths": "mmrl.rewards.rules.maths:Maths",
    "numeric": "mmrl.rewards.rules.numeric:Numeric",
    "count_exact": "mmrl.rewards.rules.numeric:CountExact",
    "count_graded": "mmrl.rewards.rules.numeric:CountGraded",
    "chart_relaxed": "mmrl.rewards.rules.chart_answers:ChartRelaxed",
    "chart_table": "mmrl.rewards.rules.chart_answers:ChartTable",
    "mathvista": "mmrl.rewards.rules.chart_answers:MathVista",
    # texts and their form
    "ocr_ned": "mmrl.rewards.rules.text_similarity:OCRNED",
    "ocr_cer": "mmrl.rewards.rules.text_similarity:OCRCER",
    "ocr_wer": "mmrl.rewards.rules.text_similarity:OCRWER",
    "rouge": "mmrl.rewards.rules.text_similarity:Rouge",
    "bleu": "mmrl.rewards.rules.text_similarity:BLEU",
    "bmas": "mmrl.rewards.rules.text_similarity:BMAS",
    "teds": "mmrl.rewards.rules.teds:TEDS",
    "rendered_cw_ssim": "mmrl.rewards.images.cw_ssim:RenderedSimilarity",
    "format": "mmrl.rewards.rules.formats:Format",
    "leading_tag": "mmrl.rewards.rules.formats:LeadingTag",
    "parseable": "mmrl.rewards.rules.milestones:Parseable",
    "progressive": "mmrl.rewards.rules.milestones:Progressive",
    "reached": "mmrl.rewards.rules.milestones:Reached",
    "adaptive_spread": "mmrl.rewards.rules.adaptive_spread:AdaptiveSpread",
    "length": "mmrl.rewards.rules.lengths:Length",
    "cosine_length": "mmrl.rewards.rules.lengths:CosineLength",
    "soft_overlong": "mmrl.rewards.rules.lengths:SoftOverlong",
    "gated_length": "mmrl.rewards.rules.group_lengths:GatedLength",
    "dynamic_length": "mmrl.rewards.rules.group_lengths:DynamicLength",
    "shortest_right": "mmrl.rewards.rules.group_lengths:ShortestRight",
    "repetition": "mmrl.rewards.rules.lengths:Repetition",
    "thinking_mode": "mmrl.rewards.rules.thinking_modes:ThinkingMode",
    "thinks": "mmrl.rewards.rules.thinking_modes:Thinks",
    "path_coverage": "mmrl.rewards.rules.path_coverage:PathCoverage",
    "legible_text": "mmrl.rewards.rules.legible_text:LegibleText",
    "hallucinated_text": "mmrl.rewards.rules.legible_text:HallucinatedText",
    # the likelihood of answers under models of the run
    "reference_likelihood": "mmrl.rewards.rules.reference_likelihood:ReferenceLikelihood",
    "reasoning_reflection": "mmrl.rewards.rules.reference_likelihood:ReasoningReflection",
    "critical_entropy": "mmrl.rewards.rules.critical_entropy:CriticalEntropy",
    "likely_answer": "mmrl.rewards.rules.reference_likelihood:LikelyAnswer",
    "own_votes": "mmrl.rewards.rules.own_votes:OwnVotes",
    "majority": "mmrl.rewards.rules.majority:Majority",
    "direct_verdict": "mmrl.rewards.rules.verdicts:DirectVerdict",
    # episodes of an environment
    "outcome": "mmrl.rewards.rules.outcome:EpisodeOutcome",
    "tool_calls": "mmrl.rewards.rules.outcome:ToolCalls",
    "attempt_gain": "mmrl.rewards.rules.reflection:AttemptGain",
    "reflection_effect": "mmrl.rewards.rules.reflection:ReflectionEffect",
    "reflection_length": "mmrl.rewards.rules.reflection:ReflectionLength",
    # pictures
    "geneval": "mmrl.rewards.images.geneval:GenEval",
    "rendered_text": "mmrl.rewards.images.rendered_text:RenderedText",
    "compressibility": "mmrl.rewards.images.image_quality:Compressibility",
    "artefacts": "mmrl.rewards.images.image_quality:Artefacts",
    "ssim": "mmrl.rewards.images.similarity:SSIM",
    "ms_ssim": "mmrl.rewards.images.similarity:MSSSIM",
    "lpips": "mmrl.rewards.images.lpips:LPIPS",
    "diversity": "mmrl.rewards.images.image_diversity:Diversity",
    # videos
    "background_consistency": "mmrl.rewards.images.video_consistency:BackgroundConsistency",
    "subject_consistency": "mmrl.rewards.images.video_consistency:SubjectConsistency",
    "reference_identity": "mmrl.rewards.images.video_consistency:ReferenceIdentity",
    "appearance_style": "mmrl.rewards.images.appearance_style:AppearanceStyle",
    "temporal_flickering": "mmrl.rewards.images.video_consistency:TemporalFlickering",
    # models
    "clip_score": "mmrl.rewards.models.clip_rewards:CLIPScore",
    "siglip_score": "mmrl.rewards.models.clip_rewards:SigLIPScore",
    "goal_baseline": "mmrl.rewards.models.clip_rewards:GoalBaseline",
    "anchor_margin": "mmrl.rewards.models.anchor_margin:AnchorMargin",
    "transported_clip": "mmrl.rewards.models.transported_clip:TransportedCLIP",
    "goal_contrast": "mmrl.rewards.models.clip_rewards:GoalContrast",
    "pickscore": "mmrl.rewards.models.clip_rewards:PickScore",
    "hps_v2": "mmrl.rewards.models.clip_rewards:HPSv2",
    "hps_v21": "mmrl.rewards.models.clip_rewards:HPSv21",
    "hps_v3": "mmrl.rewards.models.hps_v3:HPSv3",
    "aesthetic": "mmrl.rewards.models.clip_rewards:Aesthetic",
    "image_reward": "mmrl.rewards.models.image_reward:ImageReward",
    "video_reward": "mmrl.rewards.models.video_reward:VideoReward",
    "vqa_score": "mmrl.rewards.models.vqa_score:VQAScore",
    "reconstruction": "mmrl.rewards.models.reconstruction:Reconstruction",
    "picture_questions": "mmrl.rewards.models.picture_questions:PictureQuestions",
    "diffusion_likelihood": "mmrl.rewards.models.diffusion_likelihood:DiffusionLikelihood",
    "learned": "mmrl.rewards.learned.learned_reward:LearnedReward",
    "learned_wins": "mmrl.rewards.learned.learned_wins:LearnedWins",
    "learned_latents": "mmrl.rewards.learned.learned_latents:LearnedLatentsReward",
    "remote": "mmrl.rewards.service.remote_reward:RemoteReward",
    "learned_text": "mmrl.rewards.learned.learned_text:LearnedTextReward",
    "cotrained": "mmrl.rewards.learned.cotrained:CotrainedReward",
    "cotrained_pictures": "mmrl.rewards.learned.cotrained_pictures:CotrainedPicturesReward",
    "hybrid": "mmrl.rewards.learned.hybrid:HybridReward",
    "demonstrated_steps": "mmrl.rewards.learned.demonstrated_steps:DemonstratedSteps",
    # judges
    "judge": "mmrl.rewards.judges.judge:Judge",
    "judge_pairs": "mmrl.rewards.judges.judge:JudgePairs",
    "judge_checklist": "mmrl.rewards.judges.judge:JudgeChecklist",
    "trained_judge": "mmrl.rewards.judges.trained_judge:TrainedJudge",
    "judge_ranking": "mmrl.rewards.judges.judge:JudgeRanking",
    "unified_reward": "mmrl.rewards.judges.unified_reward:UnifiedReward",
    "unified_reward_pairs": "mmrl.rewards.judges.unified_reward:UnifiedRewardPairs",
}
"""{name: "module:Class"} of the rewards that mmrl ships; a module is imported when a reward of it is loaded."""

REWARDS: Registry[Any] = Registry("mmrl.rewards", "reward", BUILT_IN, error=RewardError)

_data: ContextVar[str] = ContextVar("data", default="")
"""The data that names the rewards which `load` builds now; "": the user does."""


@contextmanager
def named_by_data(source: str) -> Iterator[None]:
    """While open, `load` refuses code of a file and rewards that send answers to a server.

    A data set may come from anywhere, and what it names may itself load other rewards that its arguments name: those
    are refused here, too, before anything is imported or built. `source` stands for the data in messages.
    """
    before = _data.set(source)
    try:
        yield
    finally:
        _data.reset(before)


def load(name: str, **args: Any) -> Reward:
    """Return a reward, built with the given arguments.

    `name` is one of `available()`, or `path/to/file.py:thing` where the thing is a `Reward` class or a function that
    scores one answer (see `reward_factory`). Loading runs that file or package: name only code that you trust.

        load("compressibility", quality=80)
        load("my_rewards.py:redness", threshold=0.7)

    Raises:
        RewardError: there is no such reward, it cannot be imported, the arguments do not fit its signature, or data
            asks for what only a user may name (`named_by_data`).
    """
    if not isinstance(name, str):
        raise RewardError(f"load takes the name of a reward, not {name!r:.60}: `register` a class or function of "
                          "yours, and load it by its name")  # fmt: skip
    if source := _data.get():
        check_no_code(name, source)
    factory = reward_class(name, args)
    if source:
        check_no_server(factory, source)
    return factory(**args)


def register(scorer: Scorer) -> Scorer:
    """Register a `Reward` class under its `name`, or a function that scores one answer under its `__name__`.

    Raises:
        RewardError: another reward has the name, or the function has nothing to score.
    """
    name = scorer.name if _is_reward(scorer) else scorer.__name__
    if not _is_reward(scorer):
        reward_factory(scorer, name)  # raises now rather than at the first load
    REWARDS.register(name, scorer)
    return scorer


def available() -> list[str]:
    """Return the sorted names that `load` takes."""
    return REWARDS.available()


def describe(name: str) -> str:
    """Return a text with the purpose, range, needs and arguments of a reward."""
    factory = reward_class(name)
    known = spec_of(factory)
    low, high = known.range
    arguments = ", ".join(_argument(p) for p in _signature(factory).parameters.values())
    facts = [
        f"{name}: {purpose_of(factory)}",
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


def has_code(name: str) -> bool:
    """Return True if a name of a reward is code of a file or module, in whole or in part."""
    return any(mark in name for mark in (".py", ":", "/", "\\"))


def check_no_code(name: str, source: str) -> None:
    """Raise `RewardError` if the name of a reward is code: a data set may come from anywhere, and must not run any.

    `source` names the sample in the message.
    """
    if has_code(name):
        raise RewardError(
            f"{source} asks for the reward {name!r}: data sets may ask for rewards by name alone, not for "
            "code of a file. Name it in the run's own 'rewards'"
        )


def check_no_server(reward: Reward | type[Reward], source: str) -> None:
    """Raise `RewardError` if a reward waits for a server.

    A data set must not decide where answers, and the key of a judge, are sent. `source` names the sample in the
    message.
    """
    if reward.concurrency > 1:
        raise RewardError(
            f"{source} asks for the reward {reward.name!r}, which sends answers to a server: name it in the run's own "
            "'rewards', with the same arguments (and weight 0, if only those samples are to be scored by it)"
        )


def reward_class(name: str, args: Mapping[str, Any] | None = None) -> type[Reward]:
    """Return the class of a reward by a name that `load` takes, without building the reward.

    Raises:
        RewardError: there is no such reward, it cannot be imported, its class lacks what every reward has, or `args`
            are given and do not fit its signature.
    """
    found = REWARDS.load(name)
    if is_reference(name):
        reward = _as_reward(found, name.rpartition(":")[2])
    else:
        reward = _as_reward(found, name)
        if getattr(reward, "name", None) != name:
            raise RewardError(
                f"reward {name!r} is {place_of(found)}, which calls itself {getattr(found, 'name', None)!r}"
            )
    if lacking := _lacking(reward):
        raise RewardError(f"{name}: the class {reward.__name__} lacks {' and '.join(lacking)}")
    if args is not None:
        signature = _signature(reward)
        try:
            signature.bind(**args)
        except TypeError as err:
            raise RewardError(f"{name}{signature}: {err}") from None
    return reward


def _lacking(reward: type[Reward]) -> list[str]:
    """Return what a class must define and does not: its name, its range, and the methods that score."""
    wanted = {"name": 'a name, as in name = "mine"', "range": "its lowest and highest value, as in range = (0.0, 1.0)"}
    methods = sorted(getattr(reward, "__abstractmethods__", ()))
    return [text for each, text in wanted.items() if not hasattr(reward, each)] + [f"the method {m}" for m in methods]


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
        licence = getattr(function, "licence", "not stated")

        def __init__(self, **args: Any) -> None:
            self.args = args

        @classmethod
        def source_digest(cls) -> str:
            return digest_of_source(function)

        def score_one(self, item: RewardInput) -> float | Mapping[str, float]:
            filled = {field: getattr(item, field) for field in fields} | ({"item": item} if takes_item else {})
            return function(**filled, **self.args)

    FunctionReward.name = name
    FunctionReward.__doc__ = inspect.getdoc(function)
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


def _signature(factory: type[Reward]) -> inspect.Signature:
    """Return the arguments of a class: none without an `__init__`, where `inspect` reads `Reward.__new__`."""
    return inspect.Signature() if factory.__init__ is object.__init__ else inspect.signature(factory)


def _argument(parameter: inspect.Parameter) -> str:
    """Return a parameter as in the source: annotations are strings there, which `str` would quote."""
    kind = parameter.annotation if isinstance(parameter.annotation, str) else None
    text = str(parameter) if kind is None else f"{parameter.name}: {kind}"
    if kind is None or parameter.default is parameter.empty:
        return text
    return f"{text} = {parameter.default!r}"
