"""Schedules, snapshots, request planning, gauges, seeds and run folders."""

from __future__ import annotations

import math
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mmrl.config import dump_config, load_config
from mmrl.errors import ConfigError
from mmrl.rollout_request import batch_requests
from mmrl.seeds import fold_in
from mmrl.training.ema import ParameterCopy
from mmrl.training.learner import learning_rate
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.run.run_folder import create_run_folder, load_run
from mmrl.training.run.stop_signals import stop_requests
from mmrl.training.run.timers import Phases
from mmrl.training.run.trackers import JsonlTracker
from tests.training.conftest import samples


@given(st.integers(1, 6), st.integers(2, 9), st.integers(1, 60))
def test_requests_cover_groups_in_equal_calls(groups, group_size, micro_batch):
    calls = batch_requests(samples(groups), group_size, micro_batch, shared_seed=1)
    rows = [(request.group, request.sample.id) for call in calls for request in call for _ in range(request.n)]
    assert rows == [(group, f"s{group}") for group in range(groups) for _ in range(group_size)]
    sizes = [sum(request.n for request in call) for call in calls]
    assert all(size == micro_batch for size in sizes[:-1]) and 0 < sizes[-1] <= micro_batch


def test_samples_with_images_are_called_separately():
    plain, *edits = [
        replace(sample, conditions={"image": "a.png"}) if n else sample for n, sample in enumerate(samples(3))
    ]
    calls = batch_requests([plain, *edits], n=3, rows=2)
    assert [[(request.sample.id, request.n) for request in call] for call in calls] == [
        [("s0", 2)], [("s0", 1)], [("s1", 2)], [("s1", 1)], [("s2", 2)], [("s2", 1)],
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_warm_up_and_reach_their_end(schedule):
    rates = [learning_rate(2.0, update, 100, 10, schedule) for update in range(101)]
    assert rates[0] == pytest.approx(0.2) and rates[9] == rates[10] == pytest.approx(2.0)
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(2.0 if schedule == "constant" else 0.0)
    assert rates[55] == pytest.approx(2.0 if schedule == "constant" else 1.0)


def test_ema_follows_and_swaps_in():
    weight = nn.Parameter(torch.tensor([0.0]))
    snapshot = ParameterCopy({"w": weight})
    weight.data.fill_(1.0)
    snapshot.follow(0.75)
    with snapshot.in_place():
        assert weight.item() == 0.25
    assert weight.item() == 1.0
    with pytest.raises(ValueError, match="stop"), snapshot.in_place():
        raise ValueError("stop")
    assert weight.item() == 1.0 and snapshot.state_dict()["w"].item() == 0.25


def test_metric_accumulator_weighs_means_and_keeps_maxima():
    gauges, other = MetricAccumulator(), MetricAccumulator()
    gauges.mean("loss", 1.0)
    gauges.maximum("ratio", 1.5)
    other.mean("loss", 4.0, weight=2.0)
    other.maximum("ratio", 1.2)
    other.maximum("gap", 9.0)
    gauges.absorb(other, without=("gap",))
    assert gauges.values() == {"loss": 3.0, "ratio": 1.5}
    gauges.maximum("ratio", float("nan"))
    gauges.maximum("ratio", 0.1)
    assert math.isnan(gauges.values()["ratio"])


def test_timers_accumulate_and_include_errors():
    phases = Phases()
    with phases("rollout"):
        pass
    with pytest.raises(KeyError), phases("rollout"):
        raise KeyError
    metrics = phases.metrics()
    assert metrics["seconds/rollout"] == phases.total_seconds > 0 and metrics["memory_mib/rollout"] > 1


def test_seeds_of_neighbours_differ():
    seeds = {fold_in(seed, step, number) for seed in range(8) for step in range(8) for number in range(8)}
    assert len(seeds) == 512 and all(0 <= seed < 2**63 for seed in seeds)


def test_run_folders_are_created_once_and_read_back(tmp_path):
    config = load_config("quickstart", ["seed=3"])
    folder = create_run_folder(tmp_path / "run", dump_config(config))
    assert load_run(folder).config == config and load_run(folder).metrics() == []
    JsonlTracker(folder).log("evaluation", 0, {"evaluation/total": 0.5})
    create_run_folder(folder, dump_config(config))  # that run has trained nothing
    JsonlTracker(folder).log("train", 1, {"loss": 0.5})
    with pytest.raises(ConfigError, match=r"contains a run already: continue it with --resume"):
        create_run_folder(folder, dump_config(config))
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no config\.yaml"):
        load_run(tmp_path)


def test_public_names_resolve():
    import mmrl.training

    assert all(getattr(mmrl.training, name) is not None for name in mmrl.training.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Trainr'"):
        _ = mmrl.training.Trainr


@pytest.fixture
def sigint():
    """Sets what Ctrl-C does, and puts back what it did: in the background it is ignored."""
    before = signal.getsignal(signal.SIGINT)

    def set_to(handler):
        signal.signal(signal.SIGINT, handler)
        return handler

    yield set_to
    signal.signal(signal.SIGINT, before)


def test_ignored_signals_stay_ignored(sigint):
    sigint(signal.SIG_IGN)
    with stop_requests(lambda text: None) as stop_request:
        signal.raise_signal(signal.SIGINT)
        assert not stop_request()


def test_first_signal_requests_and_second_stops(sigint):
    messages: list[str] = []
    before = sigint(signal.default_int_handler)
    with stop_requests(messages.append) as stop_request:
        assert not stop_request()
        signal.raise_signal(signal.SIGINT)
        assert stop_request() and messages[0].startswith("SIGINT: finishing this iteration")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
