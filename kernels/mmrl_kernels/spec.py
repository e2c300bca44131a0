"""The promises of an op: its accuracy and the least cost of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cost:
    """The cost of one call, forward and backward together unless stated otherwise."""

    flops: float
    bytes: float  # read and written at least, of the main memory


@dataclass(frozen=True)
class Tolerance:
    """The allowed difference from the float64 reference: |difference| <= absolute + relative * |reference|."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class OpSpec:
    """The promises of an op; its `spec.py` adds a function from sizes to `Cost`."""

    name: str
    shapes: Mapping[str, str]  # argument -> shape, as "N H"
    tolerances: Mapping[torch.dtype, Tolerance]
    source: str  # paper or formula
