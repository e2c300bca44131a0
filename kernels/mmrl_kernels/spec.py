"""What an op promises: how exact it is, and what a call costs at least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cost:
    """Of one call, forward and backward together unless said otherwise."""

    flops: float
    bytes: float  # read and written at least, of the main memory


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the float64 reference: |difference| <= absolute + relative * |reference|."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class OpSpec:
    """What is promised of an op; its own `spec.py` adds a function of the call's sizes that gives the `Cost`."""

    name: str
    shapes: Mapping[str, str]  # argument -> shape, as "N H"
    tolerances: Mapping[torch.dtype, Tolerance]
    source: str  # paper or formula
