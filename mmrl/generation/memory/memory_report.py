"""What one process of a training run holds in memory at once: sums of bytes, and how they are told."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32 = 4  # bytes
ADAM_MOMENTS = 2


@dataclass(frozen=True)
class ComponentWeights:
    """A component as it is loaded."""

    name: str
    parameters: int
    bytes: int
    """Of its parameters and buffers."""


@dataclass(frozen=True)
class UpdateMemory:
    """The forward and backward pass of one denoising step, all denoiser calls of its guidance together."""

    kept: int
    """Bytes that the forward pass leaves for the backward pass."""
    peak: int
    """The most bytes that live at once, temporary tensors of both passes included."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by purpose. Everything is on one device: the whole pipeline, and all recordings of an iteration."""

    frozen: tuple[ComponentWeights, ...]
    """Components that are not trained; with adapters, the denoisers too."""
    trained: int
    """Parameters that are trained, in float32."""
    copies: tuple[str, ...]
    """What else is held of every trained parameter, in float32: a moving average, an old policy."""
    reference: int
    """A frozen copy of fully trained denoisers; adapters need none."""
    recording: int
    """What one rollout call leaves for its replays."""
    micro_batches: int
    """Rollout calls of an iteration; their recordings are held together."""
    rollout: int
    rollout_at: str
    """The most that lives at once while a rollout computes, and where."""
    plain: UpdateMemory
    recomputed: UpdateMemory | None
    """With gradient checkpointing; None: the denoiser has none."""
    checkpointing: bool
    """Whether the run uses it."""
    assumptions: tuple[str, ...]

    @property
    def state(self) -> int:
        """Trained parameters, gradients, Adam's moments and further copies."""
        return self.trained * FLOAT32 * (2 + ADAM_MOMENTS + len(self.copies))

    @property
    def standing(self) -> int:
        """What is there all the time."""
        return sum(each.bytes for each in self.frozen) + self.state + self.reference

    @property
    def recordings(self) -> int:
        """Of a whole iteration."""
        return self.recording * self.micro_batches

    @property
    def update(self) -> UpdateMemory:
        """As the run is configured."""
        return self.recomputed if self.checkpointing and self.recomputed else self.plain

    @property
    def saving(self) -> int:
        """Copies that writing a checkpoint takes: all of `state` but for the gradients."""
        return self.trained * FLOAT32 * (1 + ADAM_MOMENTS + len(self.copies))

    @property
    def total(self) -> int:
        """The most at any time."""
        return self.standing + self.recordings + max(self.rollout, self.update.peak, self.saving)

    def rows(self) -> list[tuple[str, str]]:
        """Names and figures for people to read."""
        one = self.trained * FLOAT32
        parts = [f"parameters {size(one)}", f"gradients {size(one)}", f"Adam's moments {size(ADAM_MOMENTS * one)}"]
        parts += [f"{copy} {size(one)}" for copy in self.copies]
        if self.reference:
            parts.append(f"reference {size(self.reference)}")
        rows = [
            ("frozen weights", f"{size(sum(w.bytes for w in self.frozen))}: {_list_weights(self.frozen)}"),
            ("trained", f"{count(self.trained)} parameters: {', '.join(parts)}"),
            ("recordings", f"{size(self.recordings)}: {self.micro_batches:,} x {size(self.recording)}"),
            ("rollout", f"{size(self.rollout)} at most, in {self.rollout_at}"),
            ("update", self._tell_update()),
            ("in all", f"{size(self.total)}, of which {size(self.standing)} all the time"),
        ]
        return rows

    def _tell_update(self) -> str:
        plain = f"{size(self.plain.peak)} without gradient checkpointing"
        if self.recomputed is None:
            return f"{plain}; this denoiser has none"
        recomputed = f"{size(self.recomputed.peak)} with it"
        return f"{plain}, {recomputed}; this run is {'with' if self.checkpointing else 'without'}"


def size(bytes_: int) -> str:
    """
    >>> size(5 * 2**20), size(3 * 2**30 // 2), size(40 * 2**30)
    ('5 MiB', '1.5 GiB', '40 GiB')
    """
    if bytes_ < 2**30:
        return f"{bytes_ / 2**20:.0f} MiB"
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ < 10 * 2**30 else f"{bytes_ / 2**30:.0f} GiB"


def count(number: int) -> str:
    """
    >>> count(23_887_872), count(2_243_171_520), count(900)
    ('23.9M', '2.24B', '900')
    """
    if number >= 10**9:
        return f"{number / 10**9:.2f}B"
    return f"{number / 10**6:.1f}M" if number >= 10**5 else f"{number:,}"


def _list_weights(weights: tuple[ComponentWeights, ...]) -> str:
    return ", ".join(f"{each.name} {count(each.parameters)}" for each in weights)
