"""The gauge of reward hacking in a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mmrl.config.section import Section


class HackingConfig(Section):
    """A comparison of the rewards that are only measured with the trained ones, as a run goes."""

    window: Annotated[int, Field(ge=3)] = 10
    """Iterations whose mean rewards are compared with those of as many earlier ones."""
    measured: tuple[str, ...] = ()
    """Names of rewards whose weight is 0; empty: all of them."""
    then: Literal["warn", "stop", "refresh"] = "warn"
    """The run's answer where a trained reward rose and a measured one fell. `warn`: a message. `stop`: it ends, as
    finished. `refresh`: rewards that learn (`cotrained`) do so in the next window alone, and in no other iteration."""
