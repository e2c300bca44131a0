"""The properties of a cluster that one device cannot measure, and the seconds of a collective that follow from them.

A collective of B bytes over N processes takes, by the usual bounds of a ring, (N - 1) / N x B / bandwidth to gather or
to scatter sums, and twice that to add up and return, plus a latency for each of log2 N rounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

GIGABYTE = 1e9

Device = Literal["cuda", "cpu"]


@dataclass(frozen=True)
class Assumptions:
    """The interconnect, and how far phases overlap or differ between processes."""

    bandwidth: float
    """GB/s at which a device sends to another one of its node."""
    node_bandwidth: float
    """GB/s at which a node sends to another node, all its adapters together."""
    latency: float
    """Seconds of one round of a collective."""
    node_size: int = 8
    """Devices of a node. With several nodes, each has all parts of a divided model."""
    overlap: float = 0.0
    """The share of the exchange under `strict` that is hidden behind computation, in [0, 1]."""
    scoring_overlap: float = 0.0
    """The share of scoring that is hidden behind the next rollout call of the process, in [0, 1]."""
    straggler: float = 0.05
    """The standard deviation of the seconds of a call over processes, as a share of the mean."""

    def __post_init__(self) -> None:
        if min(self.bandwidth, self.node_bandwidth) <= 0 or self.node_size < 1:
            raise ValueError("bandwidths are above 0, and a node has at least one device")
        if min(self.latency, self.straggler) < 0:
            raise ValueError("the latency and the spread of calls are 0 or more")
        if not (0 <= self.overlap <= 1 and 0 <= self.scoring_overlap <= 1):
            raise ValueError("an overlap is a share in [0, 1]")

    def parts(self, devices: int) -> int:
        """Return the number of parts into which a model is divided: a node's, if there are several full nodes."""
        several_nodes = devices > self.node_size > 1 and devices % self.node_size == 0
        return self.node_size if several_nodes else devices

    def gather_seconds(self, size: float, count: int, rounds: int = 1) -> float:
        """Return the seconds in which `count` processes gather `size` bytes, of which each has a part.

        They scatter sums in the same time. `rounds` is the number of collectives that the bytes are spread over.
        """
        if count < 2:
            return 0.0
        return (count - 1) / count * size / self._ring_bandwidth(count) + rounds * self._latency(count)

    def all_reduce_seconds(self, size: float, count: int) -> float:
        """Return the seconds in which `count` processes add up `size` bytes, and all get the sum."""
        return 2 * self.gather_seconds(size, count)

    def reduce_to_parts_seconds(self, size: float, devices: int, rounds: int = 1) -> float:
        """Return the seconds in which sums of `size` bytes get to the process that has the part, in every node."""
        parts = self.parts(devices)
        within = self.gather_seconds(size, parts, rounds)
        nodes = devices // parts
        if nodes < 2:
            return within
        between = 2 * (nodes - 1) / nodes * size / (self.node_bandwidth * GIGABYTE)
        return within + between + 2 * rounds * self._latency(nodes)

    def lateness(self, seconds: float, calls: int, count: int) -> float:
        """Return how much later than the mean the last of `count` processes is, after `calls` calls each.

        It is the expected maximum of independent Gaussians, by Blom's approximation.
        """
        quantile = NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
        return self.straggler * seconds * math.sqrt(calls) * quantile

    def rows(self) -> list[tuple[str, str]]:
        """Return the name and text of each assumption, with the option that sets it."""
        return [
            ("bandwidth", f"{self.bandwidth:g} GB/s between devices of a node (--bandwidth)"),
            ("bandwidth of a node", f"{self.node_bandwidth:g} GB/s between nodes (--node-bandwidth)"),
            ("latency", f"{self.latency * 1e6:g} microseconds a round of a collective (--latency)"),
            ("devices of a node", f"{self.node_size} (--node-size)"),
            ("overlap", f"{self.overlap:.0%} of the exchange under strict is hidden (--overlap)"),
            ("overlap of scoring", f"{self.scoring_overlap:.0%} is hidden behind rollouts (--scoring-overlap)"),
            ("straggler share", f"calls differ by {self.straggler:.0%} between processes (--straggler)"),
        ]

    def _ring_bandwidth(self, count: int) -> float:
        slowest = self.bandwidth if count <= self.node_size else min(self.bandwidth, self.node_bandwidth)
        return slowest * GIGABYTE

    def _latency(self, count: int) -> float:
        return self.latency * math.ceil(math.log2(count))


def default_assumptions(device: Device) -> Assumptions:
    """Return the assumptions for a kind of device.

    GPUs: NVLink of an H100 or H200 at two thirds of its 450 GB/s, and two 400 Gb/s adapters a node. CPUs: gloo over the
    loopback device of one machine, and 10 Gb/s Ethernet.
    """
    if device == "cuda":
        return Assumptions(bandwidth=300.0, node_bandwidth=100.0, latency=2e-5)
    return Assumptions(bandwidth=1.0, node_bandwidth=1.25, latency=5e-4)
