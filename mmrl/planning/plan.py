"""`plan_run`: measure one call of each phase of a recipe, and predict its iterations on up to N devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from mmrl.build.config_checks import check, check_processes
from mmrl.build.equal_calls import unequal_calls
from mmrl.build.policies import estimate_memory
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.train import TrainConfig
from mmrl.distributed import processes
from mmrl.errors import ConfigError, GenerationError
from mmrl.generation.memory.estimate import models_that_write
from mmrl.generation.memory.memory_report import MemoryEstimate
from mmrl.planning.assumptions import Assumptions, default_assumptions
from mmrl.planning.phase_measurement import Measurement, measure
from mmrl.planning.placement import DeviceForecast, sweep
from mmrl.planning.prediction import PlaceName


@dataclass(frozen=True)
class Plan:
    """The measured phases of a recipe, and its iterations on each number of devices."""

    recipe: str
    measurement: Measurement
    assumptions: Assumptions
    memory: MemoryEstimate
    memory_source: str
    """The quantity that `memory` predicts, and its origin."""
    capacity: int
    """The bytes of a device."""
    forecasts: tuple[DeviceForecast, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; seconds, and bytes."""
        return {
            "recipe": self.recipe,
            "device": self.measurement.device_name,
            "phases": asdict(self.measurement.phases),
            "workload": asdict(self.measurement.work),
            "spread": self.measurement.spread,
            "assumptions": asdict(self.assumptions),
            "memory_source": self.memory_source,
            "capacity": self.capacity,
            "forecasts": [_forecast(each) for each in self.forecasts],
            "notes": list(self.measurement.notes),
            "warnings": list(self.warnings),
        }


def plan_run(
    config: TrainConfig,
    devices: int,
    *,
    assumed: Mapping[str, Any] | None = None,
    capacity: int | None = None,
    repeats: int = 3,
) -> Plan:
    """Measure a recipe on this machine's device, and predict it on 1, 2, 4, ... up to `devices` of them.

    Args:
        config: the whole configuration.
        devices: the largest number of devices.
        assumed: fields of `Assumptions` that differ from the defaults of the device.
        capacity: the bytes of a device; None: those of this machine's.
        repeats: the calls that are measured.

    Raises:
        ConfigError: the recipe cannot be run, a setting is out of its range, or `torchrun` started this process.
    """
    if devices < 1:
        raise ConfigError(f"--gpus: {devices} is not a number of devices: choose 1 or more")
    if processes.launched_size() > 1:
        raise ConfigError("mmrl plan measures one process and predicts the others: start it without torchrun")
    check(config)
    kind = "cuda" if torch.cuda.is_available() and getattr(config.policy, "device", "auto") != "cpu" else "cpu"
    chosen = {name: value for name, value in (assumed or {}).items() if value is not None}
    try:
        assumptions = replace(default_assumptions("cuda" if kind == "cuda" else "cpu"), **chosen)
    except ValueError as err:
        raise ConfigError(f"mmrl plan: {err}") from err
    measured = measure(config, repeats)
    if "straggler" not in chosen and config.policy.kind != "pipeline":  # a pipeline's calls are equal work
        assumptions = replace(assumptions, straggler=max(assumptions.straggler, measured.spread))
    memory, source = _memory(config, measured)
    capacity = capacity or device_bytes(measured.device)
    counted = memory is measured.memory

    def memory_of(count: int, parts: int) -> dict[str, int]:
        found = memory.bytes_of_processes(count, parts)
        # The blocks that `strict` gathers are known from the configuration files alone.
        return {place: size for place, size in found.items() if not (counted and place == "strict")}

    forecasts = sweep(
        measured.phases,
        measured.work,
        assumptions,
        devices,
        memory_of,
        capacity,
        lambda place, count: obstacle(config, measured.obstacles, place, count),
    )
    return Plan(
        config.name, measured, assumptions, memory, source, capacity, tuple(forecasts), tuple(warnings(config, devices))
    )


def obstacle(config: TrainConfig, known: Mapping[str, str], place: PlaceName, devices: int) -> str | None:
    """Return the reason why a recipe cannot be trained on some devices in this way, or None.

    `known` has the reasons that follow from the model, by place.
    """
    if devices == 1:
        return None
    try:
        check_processes(config.model_copy(update={"run": config.run.model_copy(update={"place": "auto"})}), devices)
    except ConfigError as err:
        return str(err).partition("\n")[0]
    if place in known:
        return known[place]
    return next(unequal_calls(config, devices), None) if place == "strict" else None


def warnings(config: TrainConfig, devices: int) -> list[str]:
    """Return a sentence for each way in which a recipe is too small for the devices, with what would help."""
    plan = BatchPlan.of(config)
    found = []
    if idle := plan.idle_processes(devices):
        found.append(idle)
    elif plan.micro_batches % devices:
        found.append(
            f"{plan.micro_batches} calls do not divide evenly over {devices} processes: some wait for the others in "
            "every phase"
        )
    per_update = plan.micro_batches_per_update
    if plan.updates_per_epoch > 1 and per_update < devices <= plan.micro_batches:
        rows = max(1, plan.trajectories // (devices * plan.updates_per_epoch))
        found.append(
            f"training.updates: each of {plan.updates_per_epoch} updates has {per_update} calls, fewer than {devices} "
            f"processes: set data.micro_batch to {rows} or less"
        )
    return found


def device_bytes(device: str) -> int:
    """Return the memory of this machine's device; of a CPU that of the whole machine."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _memory(config: TrainConfig, measured: Measurement) -> tuple[MemoryEstimate, str]:
    """Return the memory of a process: of pipelines alone from configuration files, else as it was counted."""
    counted = "tensors that torch allocated in up to 8 calls" if measured.device == "cpu" else "CUDA's allocator"
    if config.policy.kind != "pipeline" or models_that_write(config):
        return measured.memory, f"counted: {counted}"
    try:
        return estimate_memory(config), "from the model's configuration files, as mmrl train --dry-run"
    except (GenerationError, ConfigError) as err:
        reason = str(err).partition("\n")[0]
        return measured.memory, f"counted: {counted}; the configuration files do not serve: {reason}"


def _forecast(each: DeviceForecast) -> dict[str, Any]:
    return {
        "devices": each.devices,
        "best": None if each.best is None else each.best.place,
        "reason": each.reason,
        "speedup": each.speedup,
        "efficiency": each.efficiency,
        "places": {
            place.place: {"seconds": asdict(place.seconds) | {"total": place.seconds.total}}
            | {"memory": place.memory, "obstacle": place.obstacle}
            for place in each.places
        },
    }
