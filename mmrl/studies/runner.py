"""`run_study`: train the arms of a study side by side, seed by seed, until its rule stops it, and judge its claims."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.atomic_io import replace_text
from mmrl.build.config_checks import check
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.loading.load import load_config
from mmrl.config.loading.overrides import COMMAND_LINE
from mmrl.config.train import TrainConfig
from mmrl.config.training import EvaluationConfig
from mmrl.errors import ConfigError, RunError
from mmrl.evaluation.run_reader import read_run
from mmrl.sigterm import handling_sigterm
from mmrl.studies.arm_cache import INFERENCE_DONE, ArmFolder, find_arm, library_versions
from mmrl.studies.claims import BASE
from mmrl.studies.experiment import run_experiment
from mmrl.studies.inference_settings import check_inference
from mmrl.studies.measures import common_samples, curve, measure, measured_before_training, sampled_rows
from mmrl.studies.result_page import write_study_page
from mmrl.studies.scoring import score_study
from mmrl.studies.study import DecideConfig, Study
from mmrl.studies.study_budget import budget_overrides, check_tokens, planned_iterations
from mmrl.studies.study_display import StudyDisplay
from mmrl.studies.study_result import ArmRecord, MeasuredArms, StudyResult, judged_result, label

INFERENCE_PREFIX = "inference"
PILOT = 6
"""Iterations of the run that measures what an iteration costs; the first, which warms caches, does not count."""


@dataclass(frozen=True)
class StudyOptions:
    """The place and the resources of a study; of these, only the device can change a number."""

    root: Path = Path("runs/studies")
    """The arms go to `arms` in it, the result into a folder with the study's name."""
    jobs: int | None = None
    """Arms at once, with one thread each; None: as many as there are cores, which is also the most."""
    seeds: int | None = None
    """Seeds of every arm, instead of the study's own rule."""
    device: str | None = None

    def parallel(self) -> int:
        """Return the number of processes."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(self.jobs or cores, cores))


@dataclass(frozen=True, eq=False)
class ArmJob:
    """An arm with a seed: a trained run, and perhaps an evaluation of it under other settings of inference."""

    arm: str
    seed: int
    config: TrainConfig
    folder: ArmFolder
    inference: Path | None

    @property
    def name(self) -> str:
        """The arm and the seed, for progress and messages."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """True once its numbers are on disk."""
        return self.folder.finished and (self.inference is None or (self.inference / INFERENCE_DONE).is_file())

    @property
    def measured(self) -> Path:
        """The folder whose evaluations count."""
        return self.inference or self.folder.run


def run_study(study: Study, options: StudyOptions, display: StudyDisplay) -> StudyResult:
    """Run a study, or go on with it, and write its result. Arms that another study has trained are used again.

    Raises:
        ConfigError: an arm cannot be trained as configured; no arm is started.
        RunError: an arm failed; the message names its log. The others are kept.
        EvaluationError: an arm was not evaluated on what decides.
    """
    rule = study.config.seeds
    first = options.seeds or rule.first
    most = options.seeds or study.max_seeds
    if study.config.recipe is None:
        all_seeds = range(rule.start, rule.start + first)
        if study.config.experiment is not None:
            result = run_experiment(study, all_seeds, library_versions(), display, options.root / "measured")
        else:
            result = score_study(study, all_seeds, library_versions(), display)
        return _write(result, options.root / study.name, {})
    for arm in study.arms:
        check(arm_config(study, arm, 0, options)[0])
    jobs: list[ArmJob] = []
    seeds = 0
    while True:
        new = range(seeds, first if seeds == 0 else seeds + 1)
        planned = plan_jobs(study, options, [rule.start + each for each in new], display)
        run_jobs(planned, options.parallel(), display, (*study.decides, *study.config.also))
        jobs += planned
        seeds = new.stop
        result = collect(study, jobs, seeds, most)
        if seeds >= most or all(claim.verdict != "not told apart" for claim in result.claims):
            break
        display.log(f"{seeds} seeds do not decide; one more")
    costs = {f"{job.arm}/{job.seed}": job.folder.cpu_seconds for job in jobs}
    return _write(result, options.root / study.name, costs)


def plan_jobs(study: Study, options: StudyOptions, seeds: Sequence[int], display: StudyDisplay) -> list[ArmJob]:
    """Return the arms of some seeds, with the configurations written into their folders."""
    jobs = []
    for seed in seeds:
        for arm in study.arms:
            config, inference = arm_config(study, arm, seed, options)
            if study.config.budget is not None and study.config.budget.cpu_seconds is not None:
                config = _within_cpu_time(config, study.config.budget.cpu_seconds, options, display)
            folder = find_arm(options.root / "arms", config)
            if not folder.finished:
                folder.request(config)
            jobs.append(ArmJob(arm, seed, config, folder, folder.inference(inference) if inference else None))
    return jobs


def arm_config(study: Study, arm: str, seed: int, options: StudyOptions) -> tuple[TrainConfig, dict[str, Any]]:
    """Return an arm's configuration of training, and its settings of inference.

    Raises:
        ConfigError: a key does not exist, a value is wrong, or the arm is not evaluated on what decides; the message
            names the study and the arm.
    """
    patch = {**study.config.common, **study.arms[arm]}
    inference: dict[str, Any] = {}
    overrides = []
    recipe = patch.pop("recipe", study.config.recipe)
    for key, value in patch.items():
        place, _, rest = key.partition(".")
        if place == INFERENCE_PREFIX:
            inference |= _nested(rest, value)
        else:
            overrides.append(f"{key}={json.dumps(value)}")
    overrides += [f"seed={seed}", "run.trackers=[]"]
    if options.device is not None:
        overrides.append(f"policy.device={json.dumps(options.device)}")
    place = f"{study.path}, arm {arm}"
    if "seed" in patch:
        raise ConfigError(f"{place}: seed: all arms of a study have the same seeds: set them with the key `seeds`")
    try:
        config = load_config(recipe, overrides + budget_overrides(study))
        config = _trained_for(config, planned_iterations(study, config))
        if inference:
            check_inference(config, inference)
    except ConfigError as err:
        text = str(err).replace(COMMAND_LINE, place)
        raise ConfigError(text if str(study.path) in text else f"{place}: {text}") from None
    _check_evaluations(study, arm, config)
    return config, inference


def _check_evaluations(study: Study, arm: str, config: TrainConfig) -> None:
    """Raise `ConfigError` unless the arm is evaluated on everything that decides or is reported."""
    evaluated = {
        "validation": ("data.validation", config.data.validation is not None),
        "heldout": ("data.heldout", config.data.heldout is not None),
        "greedy": ("evaluation.greedy", config.evaluation.greedy),
    }
    decides = (*study.decides, *study.config.also)
    for on in {decide.on for decide in decides} & evaluated.keys():
        key, is_set = evaluated[on]
        if not is_set:
            raise ConfigError(f"{study.path}, arm {arm}: the study measures on {on}: set {key} in its `common`")
    most, drawn = max((each.of or 1 for each in decides), default=1), config.evaluation.samples
    if most > drawn:
        raise ConfigError(
            f"{study.path}, arm {arm}: the best of {most} answers is measured, and evaluation.samples is {drawn}: set "
            f"it to {most} or more in the study's `common`"
        )


def run_jobs(
    jobs: Sequence[ArmJob], parallel: int, display: StudyDisplay, measured: Sequence[DecideConfig] = ()
) -> None:
    """Run what is not done yet, at most `parallel` processes at once. Jobs on one folder run one after another.

    Raises:
        EvaluationError: the evaluation of an arm before training lacks a metric that is `measured`; all processes are
            ended first, and can be resumed.
        RunError: a process failed; the others are ended first, and can be resumed.
        SystemExit: SIGTERM came; all processes are ended first, and can be resumed.
    """
    waiting = [job for job in jobs if not job.done]
    for job in jobs:
        if job.done:
            display.found(job.name)
    with _ended_on_leaving(display) as running:
        # Settings of inference may bring metrics that the evaluation before training does not have.
        unmeasured = {job.arm for job in jobs if measured and job.inference is None}
        while waiting or running:
            busy = {job.folder.path for job in running}
            free = [job for job in waiting if job.folder.path not in busy]
            if free and len(running) < parallel:
                job = free[0]
                waiting.remove(job)
                if not job.done:  # another arm of the same folder may have finished it
                    running[job] = _start(job)
                    display.start(job.name, job.config.training.iterations)
                continue
            time.sleep(0.2)
            for job, process in list(running.items()):
                code = process.poll()
                if job.arm in unmeasured and measured_before_training(job.folder.run, measured):
                    unmeasured.remove(job.arm)
                if code is None:
                    display.update(job.name, job.folder.run)
                    continue
                del running[job]
                if code or not job.done:
                    raise RunError(_failure(job, code))
                display.finish(job.name, job.folder.cpu_seconds)


@contextmanager
def _ended_on_leaving(display: StudyDisplay) -> Iterator[dict[ArmJob, subprocess.Popen[bytes]]]:
    """Yield an empty mapping; the processes that are in it at the end, or at SIGTERM, are ended and waited for.

    They finish their iteration and save it, unless Ctrl-C comes a second time.
    """
    running: dict[ArmJob, subprocess.Popen[bytes]] = {}
    try:
        with handling_sigterm():
            yield running
    except KeyboardInterrupt:
        display.log("arms finish their iteration and are saved; the same command goes on. Ctrl-C once more: at once")
        raise
    finally:
        for process in running.values():
            process.terminate()
        try:
            for process in running.values():
                process.wait()
        except KeyboardInterrupt:
            for process in running.values():
                process.terminate()  # of which the second is not waited for
            raise


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Ignore SIGINT while open, as processes that are started meanwhile do for good; nothing outside the main thread.

    A terminal sends it to the study and its arms alike, and the SIGTERM that follows from the study would be the second
    signal of an arm, which ends it without a checkpoint.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def collect(study: Study, jobs: Sequence[ArmJob], seeds: int, most: int) -> StudyResult:
    """Return the result of finished jobs.

    Raises:
        RunError: an arm had fewer tokens than the budget allows.
    """
    for job in jobs:
        check_tokens(study, job.name, job.folder.run)
    measures = {label(decide): _measured(study, jobs, decide) for decide in study.decides}
    rule = study.config.seeds
    stopping = (
        f"{seeds} seeds, fixed before" if rule.stop == "fixed" else f"{seeds} of at most {most} seeds, sequential"
    )
    also = {label(decide): _means(study, jobs, decide) for decide in study.config.also}
    arms = {arm: _record(study, arm, jobs) for arm in study.arms}
    return judged_result(study, measures, also, stopping, seeds, library_versions(), arms)


def _write(result: StudyResult, folder: Path, costs: Mapping[str, float | None]) -> StudyResult:
    """Write the result, what it cost, its page and its curve; the costs differ from machine to machine."""
    result.save(folder)
    replace_text(folder / "costs.json", json.dumps(costs, indent=1) + "\n")
    write_study_page(result, folder, costs)
    return result


def _measured(study: Study, jobs: Sequence[ArmJob], decide: DecideConfig) -> MeasuredArms:
    found = {arm: {job.seed: measure(job.measured, decide) for job in jobs if job.arm == arm} for arm in study.arms}
    if decide.on != "training":
        first = next(iter(study.arms))
        found[BASE] = {job.seed: measure(job.folder.run, decide, base=True) for job in jobs if job.arm == first}
    everything = [each for runs in found.values() for each in runs.values()]
    rows = common_samples(everything, study.name)
    ids = tuple(everything[0].ids[row] for row in rows)
    values = {arm: {str(seed): run.values[rows].tolist() for seed, run in runs.items()} for arm, runs in found.items()}
    return MeasuredArms(ids, values, left_out=len(everything[0].ids) - len(rows))


def _means(study: Study, jobs: Sequence[ArmJob], decide: DecideConfig) -> dict[str, list[float]]:
    """Return the means of each arm's seeds, and of the base where the best of some draws is measured."""
    means = {
        arm: [float(np.nanmean(measure(job.measured, decide).values)) for job in jobs if job.arm == arm]
        for arm in study.arms
    }
    if decide.of is not None:
        first = [job.folder.run for job in jobs if job.arm == next(iter(study.arms))]
        means[BASE] = [float(np.nanmean(measure(run, decide, base=True).values)) for run in first]
    return means


def _record(study: Study, arm: str, jobs: Sequence[ArmJob]) -> ArmRecord:
    mine = [job for job in jobs if job.arm == arm]
    config = mine[0].config
    curves = [curve(job.folder.run, study.config.decide) for job in mine]
    length = min(len(steps) for steps, _ in curves)
    means = np.mean([values[:length] for _, values in curves], axis=0) if length else np.empty(0)
    trained = [row for row in read_run(mine[0].folder.run).metrics if row["kind"] == "train"]
    iterations = max((row["step"] for row in trained), default=0)
    rows = sampled_rows(trained, BatchPlan.of(config).trajectories)
    steps = [float(step) for step in curves[0][0][:length]]
    return ArmRecord(dict(study.arms[arm]), iterations, rows, {"steps": steps, "values": means.tolist()})


def _within_cpu_time(config: TrainConfig, seconds: float, options: StudyOptions, display: StudyDisplay) -> TrainConfig:
    """Return the configuration with as many iterations as the CPU-seconds allow, by a short run of it, done once."""
    data = config.data.model_copy(update={"validation": None, "heldout": None})
    unmeasured = {"data": data, "evaluation": EvaluationConfig(), "seed": 0}
    pilot = _trained_for(config, PILOT).model_copy(update=unmeasured)
    folder = find_arm(options.root / "arms", pilot)
    if not folder.finished:
        folder.request(pilot)
        run_jobs([ArmJob("pilot", 0, pilot, folder, None)], 1, display)
    spent = read_run(folder.run).curve("train", "seconds/cpu").values[1:]
    return _trained_for(config, max(1, int(seconds / (sum(spent) / len(spent)))))


def _trained_for(config: TrainConfig, iterations: int) -> TrainConfig:
    """Return the configuration with this many iterations, and one checkpoint, at the end."""
    changes = {"iterations": iterations, "save_every": iterations, "keep_every": None}
    training = config.training.model_copy(update=changes)
    return config.model_copy(update={"training": training})


def _start(job: ArmJob) -> subprocess.Popen[bytes]:
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    command = [sys.executable, "-m", "mmrl.studies.arm_process", str(job.folder.path)]
    with (job.folder.path / "log.txt").open("ab") as log, _ctrl_c_ignored():
        return subprocess.Popen(
            [*command, *([str(job.inference)] if job.inference else [])],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | threads,
        )


def _failure(job: ArmJob, code: int) -> str:
    log = job.folder.path / "log.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it wrote nothing"
    return f"{job.name} failed with exit code {code}: {last}\nIts log is {log}; the other arms are kept."


def _nested(key: str, value: Any) -> dict[str, Any]:
    """Return {"sampling": {"steps": 4}} for `sampling.steps`, 4; the value itself, a map, for an empty key."""
    if not key:
        return dict(value)
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value)} if rest else {first: value}


def bill(study: Study, options: StudyOptions) -> list[tuple[str, str]]:
    """Return what a study takes, as rows of a table: each arm's iterations and rows, and what is trained already."""
    rows = []
    rule = study.config.seeds
    for arm in study.arms if study.config.recipe is not None else ():
        config, inference = arm_config(study, arm, rule.start, options)
        check(config)
        plan = BatchPlan.of(config)
        folder = find_arm(options.root / "arms", config)
        cost = folder.cpu_seconds
        state = "to be trained" if cost is None else f"trained already in {cost:.0f} CPU-seconds"
        how = f", evaluated with {json.dumps(inference)}" if inference else ""
        amount = f"{plan.iterations} iterations, {plan.trajectories * plan.iterations} rows"
        if (budget := study.config.budget) is not None and budget.cpu_seconds is not None:
            amount = f"{budget.cpu_seconds:g} CPU-seconds of iterations of {plan.trajectories} rows"
        if config.training.max_tokens is not None:
            amount = f"{config.training.max_tokens} tokens, at most {amount}"
        rows.append((arm, f"{amount}{how}; seed {rule.start}: {state}"))
    seeds = f"{options.seeds or rule.first}" + ("" if options.seeds or rule.most is None else f" to {rule.most}")
    return [*rows, ("all", f"{len(study.arms)} arms, {seeds} seeds each, {options.parallel()} at once")]
