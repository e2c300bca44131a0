"""The overlap of rollouts and updates: the section `run.overlap`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mmrl.config.section import Section


class OverlapConfig(Section):
    """Rollouts that a thread samples with a copy of the policy, while the policy is trained."""

    number = "lag"

    lag: Annotated[int, Field(ge=0)] = 0
    """The answers of an iteration are sampled with the parameters of this many iterations before it, while those
    iterations are learnt from. 0: with the present parameters, and nothing is sampled during an update."""
    stream: bool = False
    """True: a micro-batch is backpropagated as soon as its groups are scored, while the iteration's other answers are
    still being sampled; the update follows after the last one. With a lag of 0 the gradient is that of an iteration
    without it."""

    interrupt: bool = False
    """True: servers get new weights while they write answers, which go on under them. Each token has the version that
    wrote it, and the lag is the most that one is behind. For `run.servers.weights: folder`, and with a lag."""

    @property
    def is_on(self) -> bool:
        """True if a copy of the policy samples."""
        return self.lag > 0 or self.stream
