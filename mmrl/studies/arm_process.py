"""`python -m mmrl.studies.arm_process FOLDER [INFERENCE]`: train one arm, or go on with it, in a separate process.

The folder holds `requested.yaml` (see `mmrl.studies.arm_cache`); INFERENCE is a folder in it with `inference.json`, the
settings with which the trained arm is evaluated again. A second process on the same folder waits for the first and
finds its result, so that studies which share an arm train it once.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from mmrl.atomic_io import replace_text
from mmrl.config.loading.load import dump_config, load_config
from mmrl.config.train import TrainConfig
from mmrl.studies.arm_cache import (
    INFERENCE_DONE,
    INFERENCE_REQUESTED,
    REQUESTED,
    ArmFolder,
    files_of,
    model_files,
    used_files,
)


def main(folder: ArmFolder, inference: Path | None = None) -> None:
    """Train the arm unless it is finished, evaluate it as requested, and record what was used."""
    with _waiting_for_others(folder.path):
        config = load_config(str(folder.path / REQUESTED))
        if not folder.finished:
            _train(config, folder)
        if inference is not None and not (inference / INFERENCE_DONE).is_file():
            _infer(config, folder, inference)


def _train(config: TrainConfig, folder: ArmFolder) -> None:
    from mmrl.build.schemes import provided_model
    from mmrl.config.named_models import kind_of
    from mmrl.workflows.train import train

    named_by_config = files_of(config)  # as they are before training
    begun = (folder.run / "checkpoints" / "index.json").is_file()
    if not begun and folder.run.exists():
        shutil.rmtree(folder.run)  # killed before its first checkpoint
    train(config, resume=folder.run if begun else None)
    policy: Any = config.policy
    files = used_files() | named_by_config
    named = {name: each.model for name, each in config.models.items() if each.model is not None}
    for kind, name in ((policy.kind, policy.model), *((kind_of(config, each), model) for each, model in named.items())):
        model = Path(provided_model(name, kind) or name)
        files |= model_files(model) if model.is_dir() else {}
    spent = resource.getrusage(resource.RUSAGE_SELF)
    folder.finish(spent.ru_utime + spent.ru_stime, files)


def _infer(config: TrainConfig, folder: ArmFolder, out: Path) -> None:
    """Evaluate the last checkpoint under other settings of inference, into a folder like that of a run."""
    from mmrl.build.datasets import load_samples
    from mmrl.build.load_models import build_models, load_trained
    from mmrl.build.policies import build_policy, prepare_samples
    from mmrl.build.reward_suites import replace_named_rewards
    from mmrl.rewards.core.routing import SharedLoader
    from mmrl.studies.inference_settings import check_inference, evaluated_with
    from mmrl.training.run.run_folder import CONFIG, load_run
    from mmrl.workflows.train import Evaluator

    settings = json.loads((out / INFERENCE_REQUESTED).read_text(encoding="utf-8"))
    check_inference(config, settings)
    config = evaluated_with(config, settings)
    replace_text(out / CONFIG, dump_config(config))
    policy: Any = build_policy(config.policy, config.sampling, config.media, config.environment)
    trained = load_run(folder.run)
    models = build_models(config, policy)
    load_trained(config, policy, models, trained.checkpoint())

    def samples_of(path: str) -> list[Any]:
        loaded = replace_named_rewards(load_samples(path, config.media), config.scoring)
        return prepare_samples(policy, config.policy, config.answers, config.sampling, loaded)

    evaluator = Evaluator(config, policy, samples_of, SharedLoader(), out, models)
    try:
        with _settings_of_inference(policy, settings):
            evaluator(trained.step())
    finally:
        evaluator.close()
    replace_text(out / INFERENCE_DONE, "")


@contextmanager
def _settings_of_inference(policy: Any, settings: dict[str, Any]) -> Iterator[None]:
    """Run the policy with the strength of its training, and the guidance by rewards, that `settings` name."""
    from mmrl.generation.inference import lora_strength, reward_guidance, rl_guidance
    from mmrl.rewards import load

    with ExitStack() as stack:
        if (strength := settings.get("lora_strength")) is not None:
            stack.enter_context(lora_strength(policy.pipeline, strength))
        if (scale := settings.get("rlg")) is not None:
            stack.enter_context(rl_guidance(policy.pipeline, scale, policy.reference))
        if weights := settings.get("guide"):
            stack.enter_context(reward_guidance(policy, [(load(name), weight) for name, weight in weights.items()]))
        yield


@contextmanager
def _waiting_for_others(folder: Path) -> Iterator[None]:
    """Lock a folder while open, after waiting for the process that has the lock. Windows has no such lock."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with (folder / "lock").open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main(ArmFolder(Path(sys.argv[1])), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
