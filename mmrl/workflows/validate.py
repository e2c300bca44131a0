"""Periodic validation during training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmrl.build.policies import without_exploration
from mmrl.build.reward_suites import Rewards, build_rewards
from mmrl.config.sampling import AnySamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.data.media.reader import reader_of
from mmrl.data.sample import Sample
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.reward_hacking import HackingMonitor
from mmrl.evaluation.run_reader import GREEDY, HELDOUT
from mmrl.policy import Policy
from mmrl.rewards.core.routing import SharedLoader
from mmrl.training.run.run_folder import CONFIG


class Evaluator:
    """A scorer of the policy on the validation set, the held-out set and others, always with the same noise."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        samples_of: Callable[[str], Sequence[Sample]],  # from a data.path to samples prepared for the policy
        load_reward: SharedLoader,
        run: Path,
    ) -> None:
        settings, data = config.evaluation, config.data
        self._policy, self._run, self._settings = policy, run, settings
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
        self._monitor = _hacking_monitor(config, self._suite, load_reward, run)

    def __call__(self, step: int) -> Mapping[str, float]:
        """Evaluate, keep scores and pictures in the run's folder, and return means by name."""
        metrics: dict[str, float] = {}
        for name, (samples, draws, sampling) in self._sets.items():
            scored = evaluate(
                self._policy,
                samples,
                self._suite,
                draws=draws,
                batch=self._settings.batch,
                seed=self._settings.seed,
                sampling=sampling,
                step=step,
                pictures=self._pictures,
                reader=self._reader,
            )
            if name == "groups":
                metrics["evaluation/diversity"] = scored.diversity or 0.0
                continue
            scored.save(self._folder(name), pictures=self._pictures)
            numbers = scored.metrics() | (self._monitor.update(scored) if name == "validation" else {})
            metrics |= numbers if name == "validation" else {f"{name}_{key}": mean for key, mean in numbers.items()}
        return metrics

    def warnings(self) -> Sequence[str]:
        """Return warnings about the last evaluation, such as signs of reward hacking."""
        return self._monitor.warnings

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
