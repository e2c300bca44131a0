"""Several checkpoints of one model: each answers with its own parameters, in any order of activation."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.model_references import resolve_model
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, RunError
from mmrl.rollout_request import RolloutRequest
from tests.workflows.compared_runs import DRAWING, make_run

READING = (OSError, ValueError, SafetensorError)
SAMPLES = [Sample(id="a", prompt="a red circle"), Sample(id="b", prompt="two blue squares")]


def drawn(policy, seed: int = 3) -> np.ndarray:
    """[2, H, W, 3]."""
    requests = [RolloutRequest(sample, 1, group) for group, sample in enumerate(SAMPLES)]
    return np.stack([np.asarray(image) for image in policy.rollout(requests, seed).media])


@pytest.fixture(scope="module")
def pool(drawing_run) -> CheckpointPool:
    return CheckpointPool([resolve_model(f"{drawing_run}@{which}") for which in ("base", "4", "6")])


@pytest.fixture(scope="module")
def alone(pool) -> dict[str, np.ndarray]:
    """The images of each model while no other one is active."""
    found = {}
    for name in pool.models:
        with pool.activate(name) as policy:
            found[name] = drawn(policy)
    return found


def test_pool_switches_checkpoints_bit_exactly(pool, alone):
    base, four, six = alone
    assert not np.array_equal(alone[base], alone[four]) and not np.array_equal(alone[four], alone[six])
    for name in (six, base, four, base, six, four):
        with pool.activate(name) as policy:
            np.testing.assert_array_equal(drawn(policy), alone[name])


def test_pool_base_is_the_model_before_training(drawing_run, alone):
    fresh = CheckpointPool([resolve_model("shapeworld")])  # a model that no run trained
    own = resolve_model(f"{drawing_run}@base")
    with fresh.activate("shapeworld") as policy:
        requests = [RolloutRequest(s, 1, group, sampling=own.sampling) for group, s in enumerate(SAMPLES)]
        found = np.stack([np.asarray(image) for image in policy.rollout(requests, 3).media])
    np.testing.assert_array_equal(found, alone[own.name])


@pytest.mark.integration
def test_pool_isolates_threads(pool, alone):
    wrong: list[str] = []

    def draw_often(names: list[str]) -> None:
        for name in names:
            with pool.activate(name) as policy:
                if not np.array_equal(drawn(policy), alone[name]):
                    wrong.append(name)

    names = list(alone)
    workers = [threading.Thread(target=draw_often, args=(order * 3,)) for order in (names, names[::-1])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.integration
def test_unreadable_checkpoints_leave_other_checkpoints_usable(drawing_run, tmp_path, alone):
    run = Path(shutil.copytree(drawing_run, tmp_path / "run"))
    spoil(run / "checkpoints/step-4")
    pool = CheckpointPool([resolve_model(f"{run}@{which}") for which in ("6", "4", "base")])
    six, four, base = pool.models
    for _ in range(2):
        with pool.activate(six) as policy:
            np.testing.assert_array_equal(drawn(policy), list(alone.values())[2])
        with pytest.raises(READING), pool.activate(four):
            pass
        with pool.activate(base) as policy:
            np.testing.assert_array_equal(drawn(policy), next(iter(alone.values())))


@pytest.mark.slow
def test_pool_switches_fully_trained_models(tmp_path):
    settings = DRAWING | {"policy": {"model": "shapeworld", "train": "full"}}
    run = make_run(tmp_path / "full", settings, steps=[4], shift=0.02)
    pool = CheckpointPool([resolve_model(f"{run}@base"), resolve_model(str(run))])
    found = []
    for name in [*pool.models] * 2:
        with pool.activate(name) as policy:
            found.append(drawn(policy))
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])


def test_resolve_model_by_run_checkpoint_or_model(drawing_run):
    last, best, base = (resolve_model(f"{drawing_run}{which}") for which in ("", "@best", "@base"))
    assert (last.step, best.step, base.step, base.checkpoint) == (6, 4, 0, None)
    assert resolve_model(f"{drawing_run}@6").checkpoint == last.checkpoint
    assert last.base.name == f"{drawing_run}@base" and last.sampling.steps == 2
    model = resolve_model("owner/name", kind="vlm")
    assert model.run is None and (model.policy.kind, model.policy.model) == ("vlm", "owner/name")


@pytest.mark.parametrize("which", ["5", "fourth", "", "-4", "4/../6"])
def test_missing_checkpoints_raise_with_the_available_ones(drawing_run, which):
    with pytest.raises(ConfigError, match=r"expected base, best, last or one of the kept iterations \[4, 6\]"):
        resolve_model(f"{drawing_run}@{which}")


def test_runs_without_checkpoints_have_a_base_alone(drawing_run, tmp_path):
    (tmp_path / "config.yaml").write_text((drawing_run / "config.yaml").read_text())
    assert resolve_model(f"{tmp_path}@base").checkpoint is None
    with pytest.raises(RunError, match="has no last checkpoint yet"):
        resolve_model(str(tmp_path))


def spoil(checkpoint: Path) -> None:
    """Overwrite the head of every file of tensors, so that none changes its size."""
    for path in checkpoint.rglob("*.safetensors"):
        with path.open("rb+") as file:
            file.write(b"\xff" * 16)
