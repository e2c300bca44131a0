"""The choice of a layout of parameters by the key `run.place`."""

from __future__ import annotations

from mmrl.config.training import Place
from mmrl.distributed import processes
from mmrl.distributed.layout import Layout, Replicas


def choose_layout(place: Place) -> Layout:
    """Return the layout of `run.place`; with one process, parameters are always whole."""
    if place in ("auto", "replicas") or processes.size() == 1:
        return Replicas()
    if place == "strict":
        from mmrl.distributed.strict import Strict

        return Strict()
    from mmrl.distributed.window import Window

    return Window()
