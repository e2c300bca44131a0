"""`mmrl sample`: generate images or videos with a trained run or a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig
from mmrl.config.rewards import RewardConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.generation.diffusion.call_arguments import check_samples
from mmrl.generation.inference import guided_rollout, lora_strength, rank, rl_guidance
from mmrl.rewards import Reward, RewardSuite, WeightedReward, load
from mmrl.rewards.core.suite import TooFewScored
from mmrl.rollout_request import batch_requests
from mmrl.training.run.run_folder import CONFIG, load_run


@dataclass(frozen=True)
class InferenceOptions:
    """Options of inference: the strength of the training, guidance by rewards, and selection by rewards."""

    rlg: float | None = None
    """RL guidance: base + rlg * (tuned - base); None: off."""
    lora_strength: float | None = None
    """The factor of the LoRA; None: 1."""
    guide: Mapping[str, float] = field(default_factory=dict)
    """Weights of the rewards whose gradient guides the sampler, by name."""
    best_of: int | None = None
    """Images generated for each prompt, of which the best are kept; None: as many as are kept."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Weights of the rewards that rank the images, by name; empty: the run's own rewards."""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of rewards, by name; they override those of the run's own rewards."""


@dataclass(frozen=True)
class GeneratedImage:
    """An image, or a video as a list of frames."""

    prompt: int
    """The index of its prompt."""
    rank: int
    """0 is the best of its prompt; without scores, the order of generation."""
    image: Image.Image | list[Image.Image]
    scores: dict[str, float]
    """Scores by reward; empty without rewards."""


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
    """Generate n images (or videos, as lists of frames) for each prompt, prompt by prompt: see `generate_images`."""
    found = generate_images(target, prompts, n, seed, steps, guidance, base, conditions)
    return [each.image for each in found]


def generate_images(
    target: str,
    prompts: list[str],
    n: int,
    seed: int,
    steps: int | None = None,
    guidance: float | None = None,
    base: bool = False,
    conditions: Mapping[str, Any] | None = None,
    options: InferenceOptions | None = None,
) -> list[GeneratedImage]:
    """Generate images prompt by prompt, the best first.

    Args:
        target: A run, whose last checkpoint generates, or a model.
        prompts: The prompts.
        n: Images to keep for each prompt; all `options.best_of` are returned.
        seed: The seed of the noise.
        steps, guidance: Denoising steps and guidance scale; None: the run's.
        base: Whether the model that the run began with generates instead.
        conditions: Further arguments of the pipeline: paths of pictures and videos, and numbers.
        options: Guidance and selection.

    Raises:
        ConfigError: The run's policy generates no images, or does not support an option.
    """
    options = options or InferenceOptions()
    run = load_run(Path(target)) if (Path(target) / CONFIG).is_file() else None
    policy_config: AnyPolicyConfig = run.config.policy if run else PolicyConfig(model=target)
    if not isinstance(policy_config, PolicyConfig | ImageTokenConfig):
        raise ConfigError(
            f"{target}: a policy of kind {policy_config.kind} answers in text and draws no pictures: "
            "see mmrl demo and mmrl environments watch"
        )
    _check_options(target, n, options, policy_config, trained=run is not None and not base)
    run_rewards = {each.known_as: each for each in run.config.rewards if each.weight} if run else {}
    ranking_weights = options.rewards or {name: each.weight for name, each in run_rewards.items()}
    if options.best_of is not None and not ranking_weights:
        raise ConfigError(f"--best-of: {target} has no rewards: name one with --reward")
    ranked_by = _load(ranking_weights if options.best_of is not None else {}, run_rewards, options)
    guided_by = _load(options.guide, run_rewards, options)
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
    each = options.best_of or n
    media: list[Any] = []
    with ExitStack() as stack:
        if options.lora_strength is not None:
            stack.enter_context(lora_strength(policy.pipeline, options.lora_strength))
        if options.rlg is not None:
            stack.enter_context(rl_guidance(policy.pipeline, options.rlg, policy.reference))
        for number, requests in enumerate(batch_requests(samples, each, rows=each * len(samples)), start=seed):
            if guided_by:
                media += guided_rollout(policy, requests, number, guided_by).media
            else:
                media += policy.rollout(requests, number).media
    groups = [i for i in range(len(samples)) for _ in range(each)]
    if options.best_of is None:
        numbered = enumerate(zip(groups, media, strict=True))
        return [GeneratedImage(i, row % each, image, {}) for row, (i, image) in numbered]
    return _ranked([samples[i] for i in groups], groups, media, ranked_by)


def _ranked(
    samples: Sequence[Sample], groups: Sequence[int], media: Sequence[Any], rewards: Sequence[tuple[Reward, float]]
) -> list[GeneratedImage]:
    suite = RewardSuite([WeightedReward(reward, weight) for reward, weight in rewards], min_valid_share=1e-9)
    try:
        with closing(suite):
            ranking = rank(samples, media, groups, suite)
    except TooFewScored as err:
        raise ConfigError(f"--best-of: nothing could be scored ({err}): name a reward with --reward") from err
    return [
        GeneratedImage(groups[row], place, media[row], ranking.scores[row])
        for members in ranking.order
        for place, row in enumerate(members)
    ]


def _check_options(
    target: str, n: int, options: InferenceOptions, policy: PolicyConfig | ImageTokenConfig, trained: bool
) -> None:
    guided = [name for name in ("rlg", "lora_strength", "guide") if getattr(options, name) not in (None, {})]
    if guided and isinstance(policy, ImageTokenConfig):
        option = guided[0].replace("_", "-")
        raise ConfigError(f"--{option}: it steers denoising, and {target} draws token by token: leave it out")
    scaled = [name for name in ("rlg", "lora_strength") if getattr(options, name) is not None]
    if scaled and not trained:
        option = scaled[0].replace("_", "-")
        raise ConfigError(f"--{option}: it interpolates between a run's base and its checkpoint: name a run's "
                          "folder, and leave --base out")  # fmt: skip
    if options.lora_strength is not None and policy.train != "lora":
        raise ConfigError(f"--lora-strength: {target} trained the whole model (policy.train: full): take --rlg")
    if options.best_of is not None and options.best_of < n:
        raise ConfigError(f"--best-of: {options.best_of} pictures are drawn, of which --n keeps {n}: raise it")
    if options.rewards and options.best_of is None:
        raise ConfigError("--reward: it ranks pictures: set their number with --best-of")


def _load(
    weights: Mapping[str, float], own: Mapping[str, RewardConfig], options: InferenceOptions
) -> list[tuple[Reward, float]]:
    """Load rewards, with the arguments of the run's `own` and those of the options over them."""
    arguments = {
        name: {**(own[name].args if name in own else {}), **options.arguments.get(name, {})} for name in weights
    }
    return [
        (load(own[name].name if name in own else name, **arguments[name]), weight) for name, weight in weights.items()
    ]
