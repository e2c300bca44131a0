"""`mmrl train`: build all parts of a run from its configuration, train, and write the run's report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mmrl.atomic_io import replace_text
from mmrl.build.datasets import load_samples
from mmrl.build.objectives import check
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards
from mmrl.build.training_setup import build_training_setup
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import dump_config
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.evaluation.final_summary import write_grid
from mmrl.evaluation.report.run_report import write_report
from mmrl.evaluation.results import forget_evaluations_after
from mmrl.evaluation.run_reader import GREEDY, HELDOUT
from mmrl.export.run_readme import write_run_readme
from mmrl.rewards.core.routing import SharedLoader
from mmrl.training.run.display import build_display
from mmrl.training.run.run_folder import (
    CONFIG,
    check_run_folder,
    check_unedited,
    check_writable,
    create_run_folder,
    load_run,
    only_writer,
    run_folder,
)
from mmrl.training.run.trackers import JsonlTracker, build_trackers
from mmrl.training.training_loop import TrainingLoop
from mmrl.workflows.validate import Evaluator

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy


def train(
    config: TrainConfig,
    resume: Path | None = None,
    policy: AnyPolicy | None = None,
    load_reward: SharedLoader | None = None,
) -> Path:
    """Train as configured, and return the run folder.

    Args:
        config: the whole configuration.
        resume: the folder of a run to resume; None starts a new one.
        policy: a loaded policy; None loads the one that the configuration names.
        load_reward: a loader that may hold rewards already; None loads all that the configuration names.
    """
    check(config)
    run = resume or run_folder(config)
    if resume is None:
        check_run_folder(run)
    else:
        check_writable(run)
        check_unedited(run, config)
    loaded = load_samples(config.data.path, config.media)
    micro_batch = BatchPlan.of(config).micro_batch
    if any(sample.conditions for sample in loaded) and config.data.group_size % micro_batch:
        raise ConfigError(
            f"data.micro_batch: samples with pictures or other conditions are generated one sample a batch, so it must "
            f"divide data.group_size ({config.data.group_size}): set it to that, or to a half of it"
        )
    torch.manual_seed(config.seed)  # adapters are initialised from the global generator
    policy = policy or build_policy(config.policy, config.sampling, config.media)
    samples = _prepare(policy, config, loaded)
    load_reward = load_reward or SharedLoader()
    with ExitStack() as stack:
        rewards = None
        if config.algorithm.experience == "rollouts":
            rewards = stack.enter_context(closing(build_rewards(config, samples, load_reward)))
        pretraining_samples = samples
        if config.pretraining and config.pretraining.path:
            pretraining_samples = _prepare(policy, config, load_samples(config.pretraining.path, config.media))
        setup = build_training_setup(config, policy, samples, pretraining_samples, rewards)
        evaluator = None
        if config.data.validation:
            evaluator = _evaluator(config, policy, load_reward, run)
            stack.enter_context(closing(evaluator))
        stack.enter_context(only_writer(run))  # after every check that may fail
        if resume is None:
            create_run_folder(run, dump_config(config))
        else:
            replace_text(run / CONFIG, dump_config(config), durable=True)
        recipe = config.model_dump(mode="json")
        display = build_display(config.run.display)
        display.message(str(policy.attention))
        trainer = TrainingLoop(
            policy=policy,
            objective=setup.objective,
            source=setup.source,
            optimizer_config=config.optimizer,
            config=config.training,
            seed=config.seed,
            run=run,
            trackers=build_trackers(run, config.run.trackers, config.name, recipe),
            display=display,
            evaluate=evaluator,
            evaluate_every=config.evaluation.every,
            warnings=evaluator.warnings if evaluator else None,
            name=config.name,
            recipe=recipe,
            precision=config.policy.dtype,
            sampling=config.sampling.kind,
        )
        if resume is not None:
            trainer.resume()
            for folder in (run, run / HELDOUT, run / GREEDY):
                forget_evaluations_after(folder, trainer.step)
        trainer.train()
        if config.policy.train == "lora":
            with trainer.averaged():
                policy.save(run)  # the run's folder then loads as an adapter; whole models are not stored twice
        write_run_readme(run, config)
        write_grid(run, config.run.pictures)
        write_report(run)
    return run


def evaluate_run(run: Path) -> None:
    """Score the base model and the last checkpoint of a run again."""
    loaded = load_run(run)
    config = loaded.config
    if not config.data.validation:
        raise ConfigError(f"{run} has no data.validation: there is nothing to evaluate on")
    policy = build_policy(config.policy, config.sampling, config.media)
    evaluator = _evaluator(config, policy, SharedLoader(), run)
    with closing(evaluator), only_writer(run):
        tracker = JsonlTracker(run)
        tracker.log("evaluation", 0, evaluator(0))
        policy.load(loaded.checkpoint())
        tracker.log("evaluation", loaded.step(), evaluator(loaded.step()))
        write_grid(run, config.run.pictures)
        write_report(run)


def _evaluator(config: TrainConfig, policy: AnyPolicy, load_reward: SharedLoader, run: Path) -> Evaluator:
    def samples_of(path: str) -> list[Sample]:
        return _prepare(policy, config, load_samples(path, config.media))

    return Evaluator(config, policy, samples_of, load_reward, run)


def _prepare(policy: AnyPolicy, config: TrainConfig, samples: Sequence[Sample]) -> list[Sample]:
    return prepare_samples(policy, config.policy, config.answers, config.sampling, samples)
