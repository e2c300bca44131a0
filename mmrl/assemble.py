"""The one place where a configuration becomes objects. It imports everything and holds no logic of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image

from mmrl.config.algorithm import AlgorithmConfig, GRPOConfig
from mmrl.config.geometry import Geometry
from mmrl.config.load import dump_config
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import SamplingConfig, TransitionConfig, WindowConfig
from mmrl.config.section import ConfigError
from mmrl.config.train import TrainConfig
from mmrl.data.jsonl import read_samples
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.outcome import write_grid
from mmrl.evaluation.records import HELDOUT
from mmrl.evaluation.report import write_report
from mmrl.generation.pipeline_policy import PipelinePolicy
from mmrl.policy import Policy, RolloutRequest
from mmrl.rewards import Reward, RewardSuite, registry
from mmrl.shapeworld import models, splits
from mmrl.training.credit import Credit
from mmrl.training.display import build_display
from mmrl.training.experience import OnlineRollouts
from mmrl.training.model_card import write_model_card
from mmrl.training.objectives.base import Objective, refuse_misfit
from mmrl.training.objectives.diffusion_nft import DiffusionNFT
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.runs import CONFIG, create_run_folder, load_run, run_folder
from mmrl.training.trackers import JsonlTracker, build_trackers
from mmrl.training.trainer import Trainer

POLICIES: dict[str, type[PipelinePolicy]] = {"pipeline": PipelinePolicy}
OBJECTIVES: dict[str, type[PolicyGradient] | type[DiffusionNFT]] = {
    "grpo": PolicyGradient,
    "diffusion_nft": DiffusionNFT,
}


def check(config: TrainConfig) -> None:
    """Refuse what cannot work, before any model is loaded.

    Raises:
        ConfigError: sizes that do not divide, or an objective that needs what the policy cannot do.
    """
    Geometry.of(config)
    refuse_misfit(OBJECTIVES[config.algorithm.name], POLICIES[config.policy.kind])


def train(config: TrainConfig, resume: Path | None = None) -> Path:
    """Train as configured, and return the run's folder."""
    check(config)
    torch.manual_seed(config.seed)  # adapters are initialised from the global generator
    policy = build_policy(config.policy, config.sampling)
    objective = build_objective(config.algorithm, policy)
    trained = load_rewards(config)
    suite = RewardSuite(trained)
    source = OnlineRollouts(
        policy=policy,
        acting=objective.acting,
        prompts=PromptSampler(load_samples(config.data.path), config.data.groups, seed=config.seed),
        suite=suite,
        credit=Credit(config.algorithm.advantage, suite.weights),
        group_size=config.data.group_size,
        micro_batch=Geometry.of(config).micro_batch,
        min_valid_share=config.training.min_valid_share,
        seed=config.seed,
    )
    run = resume or create_run_folder(run_folder(config), dump_config(config))  # after all that may fail
    if resume is not None:
        (run / CONFIG).write_text(dump_config(config), encoding="utf-8")
    trainer = Trainer(
        policy=policy,
        objective=objective,
        source=source,
        optimizer_config=config.optimizer,
        config=config.training,
        seed=config.seed,
        run=run,
        trackers=build_trackers(run, config.run.trackers, config.name, config.model_dump(mode="json")),
        display=build_display(config.run.display),
        evaluate=Evaluator(config, policy, trained, run) if config.data.validation else None,
        evaluate_every=config.evaluation.every,
        name=config.name,
    )
    if resume is not None:
        trainer.resume()
    trainer.train()
    if config.policy.train == "lora":
        with trainer.averaged():
            policy.save(run)  # so that `pipe.load_lora_weights(run)` works; whole denoisers are not stored twice
    write_model_card(run, config)
    write_grid(run, config.run.pictures)
    write_report(run)
    return run


def build_objective(algorithm: AlgorithmConfig, policy: Policy) -> Objective:
    """The objective that a configuration names."""
    if isinstance(algorithm, GRPOConfig):
        return PolicyGradient(policy, algorithm)
    return DiffusionNFT(policy, algorithm)


def build_policy(policy: PolicyConfig, sampling: SamplingConfig) -> PipelinePolicy:
    """Load the model that a configuration names. `shapeworld` is the one in the package."""
    if policy.model == "shapeworld":
        policy = policy.model_copy(update={"model": str(models.PIPELINE)})
    return POLICIES[policy.kind].from_config(policy, sampling)


def load_rewards(config: TrainConfig) -> list[tuple[Reward, float]]:
    """The rewards that are trained on, with their weights."""
    return [(registry.load(r.name, **r.args), r.weight) for r in config.rewards]


def load_samples(path: str) -> list[Sample]:
    """A JSON Lines file, or an embedded split such as `shapeworld:train`."""
    if not path.startswith("shapeworld:"):
        return read_samples(Path(path))
    try:
        return splits.samples(path.removeprefix("shapeworld:"))
    except KeyError as why:
        raise ConfigError(f"data: {why.args[0]}") from why


class Evaluator:
    """Scores a policy on the validation set and its companions, always with the same noise."""

    def __init__(self, config: TrainConfig, policy: Policy, trained: list[tuple[Reward, float]], run: Path) -> None:
        settings, data = config.evaluation, config.data
        self._policy, self._run, self._settings = policy, run, settings
        self._pictures = config.run.pictures
        self._sampling = settings.sampling or along_the_ode(config.sampling)
        validation = load_samples(str(data.validation))
        self._sets = {"validation": (validation[: settings.prompts], settings.samples)}
        if data.heldout:
            self._sets[HELDOUT] = (load_samples(data.heldout)[: settings.prompts], settings.samples)
        if settings.diversity_prompts:
            self._sets["groups"] = (validation[: settings.diversity_prompts], settings.diversity_draws)
        watched = [(registry.load(name), 0.0) for name in settings.rewards]
        self._suite = RewardSuite(trained + watched)

    def __call__(self, step: int) -> Mapping[str, float]:
        """Evaluate, keep scores and pictures in the run's folder, and return means by name."""
        metrics: dict[str, float] = {}
        for name, (samples, draws) in self._sets.items():
            scored = evaluate(
                self._policy,
                samples,
                self._suite,
                draws=draws,
                batch=self._settings.batch,
                seed=self._settings.seed,
                sampling=self._sampling,
                step=step,
            )
            if name == "groups":
                metrics["evaluation/diversity"] = scored.diversity or 0.0
                continue
            scored.save(self._folder(name), pictures=self._pictures)
            numbers = scored.metrics()
            metrics |= numbers if name == "validation" else {f"{name}_{key}": mean for key, mean in numbers.items()}
        return metrics

    def _folder(self, name: str) -> Path:
        """The run's own for the validation set; for others one inside it that reads like a run."""
        if name == "validation":
            return self._run
        folder = self._run / name
        folder.mkdir(exist_ok=True)
        shutil.copyfile(self._run / CONFIG, folder / CONFIG)
        return folder


def along_the_ode(sampling: SamplingConfig) -> SamplingConfig:
    """The same sampling without exploration."""
    return sampling.model_copy(update={"transition": TransitionConfig(), "window": WindowConfig()})


def evaluate_run(run: Path) -> None:
    """Score the base model and the last checkpoint of a run again."""
    loaded = load_run(run)
    if not loaded.config.data.validation:
        raise ConfigError(f"{run} has no data.validation to be evaluated on")
    policy = build_policy(loaded.config.policy, loaded.config.sampling)
    evaluator = Evaluator(loaded.config, policy, load_rewards(loaded.config), run)
    tracker = JsonlTracker(run)
    tracker.log("evaluation", 0, evaluator(0))
    policy.load(loaded.checkpoint())
    tracker.log("evaluation", loaded.step(), evaluator(loaded.step()))
    write_grid(run, loaded.config.run.pictures)
    write_report(run)


def sample_images(
    target: str,
    prompts: list[str],
    n: int,
    seed: int,
    steps: int | None = None,
    guidance: float | None = None,
    base: bool = False,
) -> list[Image.Image | list[Image.Image]]:
    """n images (or videos, as lists of frames) of each prompt, prompt by prompt.

    `target` is a run, whose last checkpoint draws (with `base`, what it began from), or a model.
    """
    run = load_run(Path(target)) if (Path(target) / CONFIG).is_file() else None
    policy_config = run.config.policy if run else PolicyConfig(model=target)
    sampling = along_the_ode(run.config.sampling) if run else SamplingConfig()
    changes = {name: value for name, value in (("steps", steps), ("guidance_scale", guidance)) if value is not None}
    policy = build_policy(policy_config, sampling.model_copy(update=changes))
    if run and not base:
        policy.load(run.checkpoint())
    requests = [RolloutRequest(Sample(id=str(i), prompt=p), n=n, group=i) for i, p in enumerate(prompts)]
    return policy.rollout(requests, seed).media
