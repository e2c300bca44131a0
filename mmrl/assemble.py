"""The one place where a configuration becomes objects. It imports everything and holds no logic of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

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
from mmrl.data.media import refuse_unreadable, with_media_in
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.outcome import write_grid
from mmrl.evaluation.records import HELDOUT
from mmrl.evaluation.report import write_report
from mmrl.evaluation.results import forget_evaluations_after
from mmrl.generation.arguments import check_samples
from mmrl.generation.estimate import dry_run
from mmrl.generation.estimate.architecture import find_architecture
from mmrl.generation.estimate.memory import MemoryEstimate
from mmrl.generation.pipeline_policy import PipelinePolicy
from mmrl.generation.prompt_length import report_cut_prompts
from mmrl.policy import Policy, plan_calls
from mmrl.rewards import Part, RewardSuite, ScoreCache, registry
from mmrl.shapeworld import models, splits
from mmrl.training.credit import Credit
from mmrl.training.display import build_display
from mmrl.training.durable import replace_text
from mmrl.training.experience import OnlineRollouts
from mmrl.training.lock import only_writer
from mmrl.training.model_card import write_model_card
from mmrl.training.objectives.base import Objective, refuse_misfit
from mmrl.training.objectives.diffusion_nft import DiffusionNFT
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.runs import (
    CONFIG,
    check_run_folder,
    check_writable,
    create_run_folder,
    load_run,
    refuse_edited,
    run_folder,
)
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
    run = resume or run_folder(config)
    if resume is None:
        check_run_folder(run)
    else:
        check_writable(run)
        refuse_edited(run, config)
    samples = load_samples(config.data.path)
    if any(sample.conditions for sample in samples) and config.data.group_size % Geometry.of(config).micro_batch:
        raise ConfigError(
            f"data.micro_batch: samples with pictures or other conditions are drawn alone, so it must divide "
            f"data.group_size ({config.data.group_size}): set it to that, or to a half of it"
        )
    torch.manual_seed(config.seed)  # adapters are initialised from the global generator
    policy = build_policy(config.policy, config.sampling)
    objective = build_objective(config.algorithm, policy)
    trained = load_rewards(config)
    suite = build_suite(config, trained)
    source = OnlineRollouts(
        policy=policy,
        acting=objective.acting,
        prompts=PromptSampler(samples, config.data.groups, seed=config.seed),
        suite=suite,
        credit=Credit(config.algorithm.advantage, suite.weights),
        group_size=config.data.group_size,
        micro_batch=Geometry.of(config).micro_batch,
        seed=config.seed,
    )
    evaluator = Evaluator(config, policy, trained, run) if config.data.validation else None
    check_samples(policy.pipeline, samples)
    report_cut_prompts(policy.pipeline, config.sampling, samples)
    with only_writer(run), closing(suite):  # after all that may fail
        if resume is None:
            create_run_folder(run, dump_config(config))
        else:
            replace_text(run / CONFIG, dump_config(config))
        recipe = config.model_dump(mode="json")
        trainer = Trainer(
            policy=policy,
            objective=objective,
            source=source,
            optimizer_config=config.optimizer,
            config=config.training,
            seed=config.seed,
            run=run,
            trackers=build_trackers(run, config.run.trackers, config.name, recipe),
            display=build_display(config.run.display),
            evaluate=evaluator,
            evaluate_every=config.evaluation.every,
            name=config.name,
            recipe=recipe,
            precision=config.policy.dtype,
        )
        if resume is not None:
            trainer.resume()
            for folder in (run, run / HELDOUT):
                forget_evaluations_after(folder, trainer.step)
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
    """Load the model that a configuration names."""
    return POLICIES[policy.kind].from_config(_located(policy), sampling)


def estimate_memory(config: TrainConfig) -> MemoryEstimate:
    """What a run holds in memory, from the configuration files of its model."""
    policy = _located(config.policy)
    return dry_run.estimate_memory(config, find_architecture(policy.model, policy.revision))


def _located(policy: PolicyConfig) -> PolicyConfig:
    """`shapeworld` is the model in the package."""
    return policy.model_copy(update={"model": str(models.PIPELINE)}) if policy.model == "shapeworld" else policy


def load_rewards(config: TrainConfig) -> list[Part]:
    """The rewards that are trained on, and how they are used."""
    return [
        Part(
            registry.load(chosen.name, **chosen.args),
            weight=chosen.weight,
            gate=chosen.gate,
            retries=chosen.retries,
            deadline_s=chosen.deadline_s,
            batch_size=chosen.batch_size,
            concurrency=chosen.concurrency,
        )
        for chosen in config.rewards
    ]


def build_suite(config: TrainConfig, parts: list[Part]) -> RewardSuite:
    """The rewards as one."""
    return RewardSuite(
        parts,
        renormalise=config.scoring.renormalise,
        min_valid_share=config.training.min_valid_share,
        cache=ScoreCache(config.scoring.cache) if config.scoring.cache else None,
    )


def load_samples(path: str) -> list[Sample]:
    """A JSON Lines file, whose pictures and videos must be there, or an embedded split such as `shapeworld:train`."""
    if not path.startswith("shapeworld:"):
        found = [with_media_in(sample, Path(path).parent) for sample in read_samples(Path(path))]
        refuse_unreadable(found)
        return found
    try:
        return splits.samples(path.removeprefix("shapeworld:"))
    except KeyError as why:
        raise ConfigError(f"data: {why.args[0]}") from why


class Evaluator:
    """Scores a policy on the validation set and its companions, always with the same noise."""

    def __init__(self, config: TrainConfig, policy: Policy, trained: list[Part], run: Path) -> None:
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
        watched = [Part(registry.load(name), weight=0.0) for name in settings.rewards]
        self._suite = build_suite(config, trained + watched)

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
    with only_writer(run):
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
    conditions: Mapping[str, Any] | None = None,
) -> list[Image.Image | list[Image.Image]]:
    """n images (or videos, as lists of frames) of each prompt, prompt by prompt.

    `target` is a run, whose last checkpoint draws (with `base`, what it began from), or a model. `conditions` are what
    its pipeline takes beside the prompt, by argument: paths of pictures and videos, and numbers.
    """
    run = load_run(Path(target)) if (Path(target) / CONFIG).is_file() else None
    policy_config = run.config.policy if run else PolicyConfig(model=target)
    sampling = along_the_ode(run.config.sampling) if run else SamplingConfig()
    changes = {name: value for name, value in (("steps", steps), ("guidance_scale", guidance)) if value is not None}
    policy = build_policy(policy_config, sampling.model_copy(update=changes))
    if run and not base:
        policy.load(run.checkpoint())
    samples = [Sample(id=f"prompt {i}", prompt=p, conditions=conditions or {}) for i, p in enumerate(prompts)]
    check_samples(policy.pipeline, samples)
    calls = plan_calls(samples, n, rows=n * len(samples))
    return [made for number, requests in enumerate(calls) for made in policy.rollout(requests, seed + number).media]
