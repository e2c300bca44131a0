"""A reward from a file, as a user writes one, whose process has a fault: `FAULT="ACT PHASE ITERATION"` asks for it.

In the phases rollout, update and evaluate the fault comes when a module of the model is called, in the main thread; in
phase reward, while an answer is scored; in phase save, before a checkpoint gets its name; in phase load, where the
reward is built. The iteration is `None` before the
first one. The moment of the fault is the time of the file `fault`.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from mmrl.distributed.position import position
from mmrl.rewards import Reward

ACT, PHASE, ITERATION = (os.environ.get("FAULT") or "none none none").split()
POSITION_S = 1.0
"""Longer than a position takes to be sent to the other processes."""
SAVED_BYTES = 50_000
"""Fewer than a checkpoint's files have."""

_parameters: list[nn.Parameter] = []


class Brightness(Reward):
    """The mean brightness of a picture."""

    name, needs, range = "brightness", ("image",), (0.0, 1.0)

    def __init__(self) -> None:
        if PHASE == "load":
            act()

    def score_one(self, item: Any) -> float:
        """Return the brightness, once the fault has passed."""
        if PHASE == "reward" and str(position.iteration) == ITERATION and position.name != "evaluate":
            while position.name != "reward":
                time.sleep(0.01)
            if ACT == "nan":
                begin()
                return float("nan")
            act()
        return float(np.asarray(item.image.convert("L")).mean() / 255)


def act() -> None:
    """Have the fault."""
    begin()
    if ACT == "raise":
        raise ValueError("the disc of the scorer broke")
    if ACT == "memory":
        raise MemoryError("no room for the scorer")
    if ACT == "exit":
        sys.exit("the scorer gave up")
    if ACT == "hang":
        time.sleep(10**6)
    if ACT in ("kill", "freeze", "terminate"):
        number = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "terminate": signal.SIGTERM}[ACT]
        time.sleep(POSITION_S)
        os.kill(os.getpid(), number)
        time.sleep(POSITION_S)
    if ACT == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (SAVED_BYTES, SAVED_BYTES))
    if ACT == "nan":
        for parameter in _parameters:
            parameter.register_hook(lambda gradient: gradient * math.nan)
    if ACT == "change":
        with torch.no_grad():
            for parameter in _parameters:
                parameter.add_(0.1)


def begin() -> None:
    """Keep the moment of the fault."""
    if not (path := Path(os.environ["FAULT_TIME"])).exists():
        path.touch()


def before_call(module: nn.Module, arguments: Any) -> None:
    """Have the fault in the main thread, once, if this is its phase and iteration."""
    global PHASE
    if position.name == PHASE and str(position.iteration) == ITERATION and PHASE != "reward":
        PHASE = "none"
        act()


def keep_parameters(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Keep the parameters that are trained."""
    _parameters[:] = [parameter for group in optimizer.param_groups for parameter in group["params"]]


def before_rename(event: str, arguments: tuple[Any, ...]) -> None:
    """Have the fault before the checkpoint of this iteration gets its name."""
    if event == "os.rename" and f"/.step-{ITERATION}.tmp" in str(arguments[0]):
        act()


if PHASE == "save":
    sys.addaudithook(before_rename)
if ACT != "none":
    register_module_forward_pre_hook(before_call)
    register_optimizer_step_pre_hook(keep_parameters)
