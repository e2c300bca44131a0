"""`mmrl train`: build all parts of a run from its configuration, train with periodic validation, write the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from mmrl.atomic_io import replace_text
from mmrl.build.answering import answering_without_exploration
from mmrl.build.config_checks import check, check_processes
from mmrl.build.datasets import load_samples
from mmrl.build.hacking import build_hacking_gauge
from mmrl.build.load_models import build_learners, build_models, check_reward_models, load_trained
from mmrl.build.policies import (
    build_policy,
    check_call_rows,
    check_servers,
    prepare_samples,
    use_servers,
    without_exploration,
)
from mmrl.build.reward_suites import Rewards, build_rewards, replace_named_rewards, unused_rewards
from mmrl.build.training_setup import StageInputs, build_training_setup, samples_of_terms
from mmrl.config.algorithms.base import SCORED
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import dump_config
from mmrl.config.loading.overrides import check_same_recipe
from mmrl.config.named_models import POLICY
from mmrl.config.sampling import AnySamplingConfig
from mmrl.config.train import StageConfig, TrainConfig
from mmrl.data.media.reader import reader_of
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.distributed.choose_layout import choose_layout
from mmrl.distributed.position import position
from mmrl.errors import ConfigError, RunError
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.final_summary import write_grid
from mmrl.evaluation.report.run_report import write_report
from mmrl.evaluation.results import Evaluation, forget_evaluations_after
from mmrl.evaluation.reward_hacking import HackingMonitor
from mmrl.evaluation.run_reader import GREEDY, HELDOUT
from mmrl.export.run_readme import write_run_readme
from mmrl.policy import Policy
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
from mmrl.training.run.trackers import METRICS, AddedPromptsTracker, JsonlTracker, build_trackers
from mmrl.training.run_models import NamedModels
from mmrl.training.training_loop import TrainingLoop

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy


class Evaluator:
    """A scorer of the policy on the validation set, the held-out set and others, always with the same noise."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        samples_of: Callable[[str], Sequence[Sample]],  # from a data.path to samples prepared for the policy
        load_reward: SharedLoader,
        run: Path,
        models: NamedModels,  # that rewards may ask
    ) -> None:
        settings, data = config.evaluation, config.data
        self._named, self._handles = models, models.handles
        self._policy, self._run, self._settings = policy, run, settings
        self._answering = answering_without_exploration(config, policy, models)
        self._pictures = config.run.pictures
        self._reader = reader_of(config.media)
        sampling = settings.sampling or without_exploration(config.sampling)
        validation = list(samples_of(str(data.validation)))
        first = validation[: settings.prompts]
        self._sets: dict[str, tuple[list[Sample], int, AnySamplingConfig]] = {
            "validation": (first, settings.samples, sampling)
        }
        if data.heldout:
            self._sets[HELDOUT] = (list(samples_of(data.heldout))[: settings.prompts], settings.samples, sampling)
        if settings.greedy:
            self._sets[GREEDY] = (first, 1, sampling.model_copy(update={"temperature": 0.0}))
        if settings.diversity_prompts:
            self._sets["groups"] = (validation[: settings.diversity_prompts], settings.diversity_draws, sampling)
        scored = [sample for samples, _, _ in self._sets.values() for sample in samples]
        self._suite = build_rewards(config, scored, load_reward, monitored=settings.rewards)
        check_reward_models(self._suite, models)
        self._monitor = _hacking_monitor(config, self._suite, load_reward, run)
        self._failures: list[str] = []

    def __call__(self, step: int) -> Mapping[str, float]:
        """Evaluate, keep scores and pictures in the run's folder, and return means by name."""
        metrics: dict[str, float] = {}
        self._failures = []
        for name, (samples, draws, sampling) in self._sets.items():
            with self._sampled_from():
                scored = evaluate(
                    self._answering,
                    samples,
                    self._suite,
                    draws=draws,
                    batch=self._settings.batch,
                    seed=self._settings.seed,
                    sampling=sampling,
                    step=step,
                    pictures=self._pictures,
                    reader=self._reader,
                    models=self._handles,
                )
            numbers = processes.on_main(partial(self._keep, name, scored))
            metrics |= {key if name in ("validation", "groups") else f"{name}_{key}": numbers[key] for key in numbers}
        return metrics

    @contextmanager
    def _sampled_from(self) -> Iterator[None]:
        """While open, rollouts have the blend of heads, or draw from the sum of logits, that evaluations are set to."""
        policy: Any = self._policy
        with ExitStack() as stack:
            if self._settings.heads:
                stack.enter_context(policy.heads.blended(self._settings.heads))
            if self._settings.logits:
                from mmrl.understanding.joint_engine import ModelLogits, joint_logits

                chosen = [(self._named[name], weight) for name, weight in self._settings.logits.items()]
                parts = [ModelLogits(cast(Any, each.policy), weight, each.weights) for each, weight in chosen]
                stack.enter_context(joint_logits(policy, parts))
            yield

    def _keep(self, name: str, scored: Evaluation) -> dict[str, float]:
        """Save an evaluation of the set `name`, and return its metrics."""
        if name == "groups":
            return {"evaluation/diversity": scored.diversity or 0.0}
        scored.save(self._folder(name), pictures=self._pictures)
        self._failures += scored.failures() if name == "validation" else []
        return scored.metrics() | (self._monitor.update(scored) if name == "validation" else {})

    def warnings(self) -> Sequence[str]:
        """Return warnings about the last evaluation, such as answers without scores, and signs of reward hacking."""
        return [*self._failures, *self._monitor.warnings]

    def close(self) -> None:
        """Stop the threads of the rewards."""
        self._suite.close()

    def _folder(self, name: str) -> Path:
        """Return the run's folder for the validation set; for other sets a folder inside it in the format of a run."""
        if name == "validation":
            return self._run
        folder = self._run / name
        folder.mkdir(exist_ok=True)
        shutil.copyfile(self._run / CONFIG, folder / CONFIG)
        return folder


def _hacking_monitor(config: TrainConfig, suite: Rewards, load: SharedLoader, run: Path) -> HackingMonitor:
    """Return the monitor of reward hacking.

    Trained rewards are the weighted ones of the configuration and those that samples name. Constrained rewards are
    neither trained nor monitored.
    """
    own = {load(reward.name, **reward.args).name: reward for reward in config.rewards}
    monitored = [load(name).name for name in config.evaluation.rewards]
    monitored += [name for name, reward in own.items() if reward.weight == 0 and reward.at_least is None]
    constrained = [name for name, reward in own.items() if reward.at_least is not None]
    return HackingMonitor(run, [name for name in suite.names if name not in (*monitored, *constrained)], monitored)


def train(
    config: TrainConfig,
    resume: Path | None = None,
    policy: AnyPolicy | None = None,
    load_reward: SharedLoader | None = None,
) -> Path:
    """Train as configured, and return the run folder; with all processes that `torchrun` started.

    Args:
        config: the whole configuration.
        resume: the folder of a run to resume; None starts a new one.
        policy: a loaded policy; None loads the one that the configuration names.
        load_reward: a loader that may hold rewards already; None loads all that the configuration names.
    """
    check(config)
    with processes.joined(config.run.timeouts):
        return _train(config, resume, policy, load_reward or SharedLoader())


def _train(config: TrainConfig, resume: Path | None, policy: AnyPolicy | None, load_reward: SharedLoader) -> Path:
    run, layout = resume or run_folder(config), choose_layout(config.run.place)
    if processes.size() > 1:
        check_same_recipe(processes.gather(config))
        check_processes(config, processes.size())
    if resume is not None:
        check_writable(run)
        with position.phase("resume"):
            check_unedited(run, config)
    elif processes.is_main():
        check_run_folder(run)
    loaded = load_samples(config.data.path, config.media)
    micro_batch = BatchPlan.of(config).micro_batch
    if any(sample.conditions for sample in loaded) and config.data.group_size % micro_batch:
        raise ConfigError(
            f"data.micro_batch: samples with pictures or other conditions are generated one sample a batch, so it must "
            f"divide data.group_size ({config.data.group_size}): set it to that, or to a half of it"
        )
    servers = check_servers(config)
    torch.manual_seed(config.seed)  # adapters are initialised from the global generator
    policy = policy or build_policy(config.policy, config.sampling, config.media, config.environment)
    policy.place(layout)
    use_servers(policy, config, run)
    samples = _prepare(policy, config, loaded)
    check_call_rows(policy, config.policy, max(micro_batch, config.evaluation.batch))
    models = build_models(config, policy)
    with ExitStack() as stack:
        rewards = None
        if config.algorithm.experience in SCORED:
            rewards = stack.enter_context(closing(build_rewards(config, samples, load_reward)))
        inputs = [_stage_inputs(config, stage, models, samples, rewards, load_reward, stack) for stage in config.stages]
        for suite in (rewards, *(each.rewards for each in inputs)):
            if suite is not None:
                check_reward_models(suite, models, config.run.overlap.is_on)
        pretraining_samples = samples
        if config.pretraining and config.pretraining.path:
            pretraining_samples = _prepare(policy, config, load_samples(config.pretraining.path, config.media))
        hacking = build_hacking_gauge(config, rewards)
        term_samples = samples_of_terms(
            config.algorithm, lambda path: _prepare(policy, config, load_samples(path, config.media))
        )
        setup = build_training_setup(
            config, policy, samples, pretraining_samples, rewards, inputs, models, hacking, term_samples
        )
        evaluator = None
        if config.data.validation:
            evaluator = _evaluator(config, policy, load_reward, run, models)
            stack.enter_context(closing(evaluator))
        if processes.is_main():
            stack.enter_context(only_writer(run))  # after every check that may fail
            if resume is None:
                create_run_folder(run, dump_config(config))
                _forget_all(run)
            else:
                replace_text(run / CONFIG, dump_config(config), durable=True)
        processes.barrier()  # other processes read the folder
        added = [AddedPromptsTracker(run, setup.growing)] if setup.growing else []
        recipe = config.model_dump(mode="json")
        display = build_display(config.run.display if processes.is_main() else "quiet")
        for line in (str(policy.attention), *servers):
            display.message(line)
        for caution in (BatchPlan.of(config).idle_processes(processes.size()), unused_rewards(config, samples)):
            if caution:
                display.message(f"caution: {caution}")
        trainer = TrainingLoop(
            policy=policy,
            objective=setup.objective,
            source=setup.source,
            optimizer_config=config.optimizer,
            config=config.training,
            seed=config.seed,
            run=run,
            trackers=(
                [*build_trackers(run, config.run.trackers, config.name, recipe), *added] if processes.is_main() else []
            ),
            display=display,
            evaluate=evaluator,
            evaluate_every=config.evaluation.every,
            best=config.evaluation.best,
            warnings=evaluator.warnings if evaluator else None,
            name=config.name,
            recipe=recipe,
            precision=config.policy.dtype,
            sampling=config.sampling.kind,
            ahead=setup.ahead,
            models=models,
            others=build_learners(config, models),
            hacking=hacking,
        )
        if resume is not None:
            trainer.resume()
            if processes.is_main():
                for folder in (run, run / HELDOUT, run / GREEDY):
                    forget_evaluations_after(folder, trainer.step)
        trainer.train()
        try:
            if config.policy.train == "lora":
                with trainer.averaged(), policy.layout.saving():
                    if processes.is_main():
                        policy.save(run)  # the run's folder then loads as an adapter; whole models are not stored twice
            if processes.is_main():
                write_run_readme(run, config)
                write_grid(run, config.run.pictures)
                write_report(run)
        except OSError as err:
            raise RunError(
                f"training has ended, and is saved, but {err}. Fix that, then write what is missing with: "
                f"mmrl train --resume {run}"
            ) from err
    return run


def _forget_all(run: Path) -> None:
    """Delete what a run in the same folder has written that ended before its first iteration."""
    (run / METRICS).unlink(missing_ok=True)
    for folder in (run, run / HELDOUT, run / GREEDY):
        forget_evaluations_after(folder, -1)


def _stage_inputs(
    config: TrainConfig,
    stage: StageConfig,
    models: NamedModels,
    samples: Sequence[Sample],
    rewards: Rewards | None,
    load_reward: SharedLoader,
    stack: ExitStack,  # closes what is built
) -> StageInputs:
    """Return what a stage learns from: the run's own samples and rewards, unless it names others."""
    staged = config.staged(stage)

    def read(path: str) -> list[Sample]:
        return _prepare(cast("AnyPolicy", models[stage.train].policy), staged, load_samples(path, config.media))

    terms = {} if staged.algorithm == config.algorithm else samples_of_terms(staged.algorithm, read)
    if stage.data.path is not None or stage.train != POLICY:
        samples = read(stage.data.path or config.data.path)
    elif stage.rewards is None:
        return StageInputs(samples, rewards, terms)
    if staged.algorithm.experience not in SCORED:
        return StageInputs(samples, None)
    return StageInputs(samples, stack.enter_context(closing(build_rewards(staged, samples, load_reward))), terms)


def evaluate_run(run: Path) -> None:
    """Score the base model and the last checkpoint of a run again."""
    loaded = load_run(run)
    config = loaded.config
    if not config.data.validation:
        raise ConfigError(f"{run} has no data.validation: there is nothing to evaluate on")
    policy = build_policy(config.policy, config.sampling, config.media, config.environment)
    models = build_models(config, policy)
    evaluator = _evaluator(config, policy, SharedLoader(), run, models)
    with closing(evaluator), only_writer(run):
        tracker = JsonlTracker(run)
        tracker.log("evaluation", 0, evaluator(0))
        load_trained(config, policy, models, loaded.checkpoint())
        tracker.log("evaluation", loaded.step(), evaluator(loaded.step()))
        write_grid(run, config.run.pictures)
        write_report(run)


def _evaluator(
    config: TrainConfig, policy: AnyPolicy, load_reward: SharedLoader, run: Path, models: NamedModels
) -> Evaluator:
    def samples_of(path: str) -> list[Sample]:
        return _prepare(policy, config, load_samples(path, config.media))

    return Evaluator(config, policy, samples_of, load_reward, run, models)


def _prepare(policy: AnyPolicy, config: TrainConfig, samples: Sequence[Sample]) -> list[Sample]:
    named = replace_named_rewards(samples, config.scoring)
    return prepare_samples(policy, config.policy, config.answers, config.sampling, named)
