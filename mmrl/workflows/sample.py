"""A policy that draws for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.generation.diffusion.call_arguments import check_samples
from mmrl.policy import batch_requests
from mmrl.rewards import Reward, RewardSuite, WeightedReward, load
from mmrl.rewards.core.suite import TooFewScored
from mmrl.training.run.run_folder import CONFIG, load_run


@dataclass(frozen=True)
class InferenceOptions:
    """How far a trained model is turned up, what it is guided by, and what is kept of what it draws."""

    rlg: float | None = None
    """RL guidance: base + rlg * (tuned - base); None: off."""
    lora_strength: float | None = None
    """How much the LoRA counts; None: as it was trained."""
    guide: Mapping[str, float] = field(default_factory=dict)
    """Rewards whose gradient steers the sampler, with their weights."""
    best_of: int | None = None
    """Pictures drawn of each prompt, of which the best are kept; None: as many as are kept."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """What says which are best, with weights; empty: the run's own rewards."""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of rewards, by name; those of the run's own rewards need not be said again."""


@dataclass(frozen=True)
class Picture:
    """One picture, or a video as a list of frames."""

    prompt: int  # the number of its prompt
    rank: int  # 0 is the best of its prompt; without scores, as it was drawn
    image: Image.Image | list[Image.Image]
    scores: dict[str, float]  # by reward; empty without rewards


def sample_images(
    target: str,
    prompts: list[str],
    n: int,
    seed: int,
    steps: int | None = None,
    guidance: float | None = None,
    base: bool = False,
    conditions: Mapping[str, Any] | None = None,
) -> list[Image.Image | list[Image.Image]]:
    """n images (or videos, as lists of frames) of each prompt, prompt by prompt: see `draw`."""
    return [picture.image for picture in draw(target, prompts, n, seed, steps, guidance, base, conditions)]


def draw(
    target: str,
    prompts: list[str],
    n: int,
    seed: int,
    steps: int | None = None,
    guidance: float | None = None,
    base: bool = False,
    conditions: Mapping[str, Any] | None = None,
    steering: InferenceOptions | None = None,
) -> list[Picture]:
    """All that was drawn, prompt by prompt, the best first: n of each prompt, or `steering.best_of`.

    `target` is a run, whose last checkpoint draws (with `base`, what it began from), or a model. `conditions` are what
    its pipeline takes beside the prompt, by argument: paths of pictures and videos, and numbers.

    Raises:
        ConfigError: the run's policy does not draw, or cannot be steered so.
    """
    steering = steering or InferenceOptions()
    run = load_run(Path(target)) if (Path(target) / CONFIG).is_file() else None
    policy_config: AnyPolicyConfig = run.config.policy if run else PolicyConfig(model=target)
    if not isinstance(policy_config, PolicyConfig | ImageTokenConfig):
        raise ConfigError(f"{target}: a policy of kind {policy_config.kind} answers in text and draws no pictures")
    _refuse_misfits(target, n, steering, policy_config, trained=run is not None and not base)
    known = _known_rewards(run.config) if run else {}
    judging = steering.rewards or {name: weight for name, (weight, _) in known.items()}
    if steering.best_of is not None and not judging:
        raise ConfigError(f"--best-of: {target} has no rewards of its own: name one with --reward")
    judges = _loaded(judging if steering.best_of is not None else {}, known, steering)
    guides = _loaded(steering.guide, known, steering)
    sampling = without_exploration(run.config.sampling) if run else SamplingConfig()
    changes = {name: value for name, value in (("steps", steps), ("guidance_scale", guidance)) if value is not None}
    if steps is not None and isinstance(sampling, ImageTokenSamplingConfig):
        raise ConfigError(f"--steps: {target} draws token by token, without denoising steps: leave it out")
    policy: Any = build_policy(policy_config, sampling.model_copy(update=changes))
    if run and not base:
        policy.load(run.checkpoint())
    samples = [Sample(id=f"prompt {i}", prompt=p, conditions=conditions or {}) for i, p in enumerate(prompts)]
    if isinstance(policy_config, PolicyConfig):
        check_samples(policy.pipeline, samples)
    else:
        for sample in samples:
            policy.check_sample(sample)
    each = steering.best_of or n
    media: list[Any] = []
    with _steered(policy, steering):
        for number, requests in enumerate(batch_requests(samples, each, rows=each * len(samples))):
            media += _roll_out(policy, requests, seed + number, guides)
    drawn_for = [i for i in range(len(samples)) for _ in range(each)]
    if steering.best_of is None:
        return [Picture(i, row % each, made, {}) for row, (i, made) in enumerate(zip(drawn_for, media, strict=True))]
    return _ranked([samples[i] for i in drawn_for], drawn_for, media, judges)


def _roll_out(policy: Any, requests: Sequence[Any], seed: int, guides: Sequence[tuple[Reward, float]]) -> list[Any]:
    if not guides:
        return list(policy.rollout(requests, seed).media)
    from mmrl.generation.inference.reward_guidance import guided_rollout

    return guided_rollout(policy, requests, seed, guides).media


def _ranked(
    samples: Sequence[Sample], groups: Sequence[int], media: Sequence[Any], judges: Sequence[tuple[Reward, float]]
) -> list[Picture]:
    from mmrl.generation.inference.best_of import rank

    suite = RewardSuite([WeightedReward(reward, weight) for reward, weight in judges], min_valid_share=1e-9)
    try:
        ranking = rank(samples, media, groups, suite)
    except TooFewScored as err:
        raise ConfigError(f"--best-of: nothing could be scored ({err}): name a reward with --reward") from err
    finally:
        suite.close()
    return [
        Picture(groups[row], place, media[row], ranking.scores[row])
        for members in ranking.order
        for place, row in enumerate(members)
    ]


@contextmanager
def _steered(policy: Any, steering: InferenceOptions) -> Iterator[None]:
    from mmrl.generation.inference.guidance import lora_strength, rl_guidance

    with ExitStack() as stack:
        if steering.lora_strength is not None:
            stack.enter_context(lora_strength(policy.pipeline, steering.lora_strength))
        if steering.rlg is not None:
            stack.enter_context(rl_guidance(policy.pipeline, steering.rlg, policy.reference))
        yield


def _refuse_misfits(
    target: str, n: int, steering: InferenceOptions, policy: PolicyConfig | ImageTokenConfig, trained: bool
) -> None:
    steered = [name for name in ("rlg", "lora_strength", "guide") if getattr(steering, name)]
    if steered and isinstance(policy, ImageTokenConfig):
        option = steered[0].replace("_", "-")
        raise ConfigError(f"--{option}: it steers denoising, and {target} draws token by token: leave it out")
    turned = [name for name in ("rlg", "lora_strength") if getattr(steering, name) is not None]
    if turned and not trained:
        option = turned[0].replace("_", "-")
        raise ConfigError(f"--{option}: it lies between what a run began with and what it learnt: hand over a run's "
                          "folder, and leave --base out")  # fmt: skip
    if steering.lora_strength is not None and policy.train != "lora":
        raise ConfigError(f"--lora-strength: {target} trained the whole model (policy.train: full): take --rlg")
    if steering.best_of is not None and steering.best_of < n:
        raise ConfigError(f"--best-of: {steering.best_of} pictures are drawn, of which --n keeps {n}: raise it")
    if steering.rewards and steering.best_of is None:
        raise ConfigError("--reward: it chooses among pictures: say of how many, with --best-of")


def _known_rewards(config: TrainConfig) -> dict[str, tuple[float, Mapping[str, Any]]]:
    """{name: (weight, arguments)} of a run's rewards."""
    return {reward.name: (reward.weight, reward.args) for reward in config.rewards if reward.weight}


def _loaded(
    wanted: Mapping[str, float], known: Mapping[str, tuple[float, Mapping[str, Any]]], steering: InferenceOptions
) -> list[tuple[Reward, float]]:
    def built(name: str) -> Reward:
        own = known[name][1] if name in known else {}
        return load(name, **{**own, **steering.arguments.get(name, {})})

    return [(built(name), weight) for name, weight in wanted.items()]
