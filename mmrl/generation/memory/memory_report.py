"""The memory of one training process by purpose: sums of bytes, and their text."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32 = 4  # bytes
ADAM_MOMENTS = 2
OLD_POLICY = "old policy"


@dataclass(frozen=True)
class ComponentWeights:
    """The size of a component as it is loaded."""

    name: str
    parameters: int
    bytes: int  # the bytes of its parameters and buffers


@dataclass(frozen=True)
class OtherModel:
    """The size of a model beside the policy, which is whole in every process."""

    name: str
    weights: int  # the bytes of its parameters and buffers, and of its reference
    trained: int = 0  # the number of its trained parameters, all float32
    copies: int = 0  # the further float32 copies of these: a moving average, snapshots
    offloaded: bool = False  # true if the weights lie in the CPU's memory between uses

    @property
    def resident(self) -> int:
        """The bytes that are in use all the time."""
        return 0 if self.offloaded else self.weights + self.trained * FLOAT32 * (1 + ADAM_MOMENTS + self.copies)

    @property
    def saving(self) -> int:
        """The bytes of copies for writing a checkpoint."""
        return self.trained * FLOAT32 * (1 + ADAM_MOMENTS + self.copies)

    def __str__(self) -> str:
        parts = [f"{self.name} {size(self.weights)}"]
        parts += [f"with {count(self.trained)} trained parameters"] if self.trained else []
        parts += ["in the CPU's memory between uses"] if self.offloaded else []
        return " ".join(parts)


@dataclass(frozen=True)
class UpdateMemory:
    """The memory of one denoising step's forward and backward pass, with all denoiser calls of its guidance."""

    kept: int  # the bytes that the forward pass keeps for the backward pass
    peak: int  # the maximal number of bytes at any time, with the temporary tensors of both passes


@dataclass(frozen=True)
class MemoryEstimate:
    """The bytes by purpose. Everything is on one device: the whole pipeline, and all recordings of an iteration."""

    frozen: tuple[ComponentWeights, ...]  # the components that are not trained; with adapters, also the denoisers
    trained: int  # the number of trained parameters, all float32
    copies: tuple[str, ...]  # the further float32 copies of every trained parameter: a moving average, an old policy
    reference: int  # the bytes of a frozen copy of fully trained denoisers; adapters need none
    adapted: int  # the bytes of denoisers under adapters, which are among `frozen`; 0 for full training
    gathered: int  # the bytes that `run.place: strict` has whole at once: two blocks and all that is outside of blocks
    recording: int  # the bytes that one rollout call keeps for its replays
    micro_batches: int  # the number of rollout calls of an iteration, whose recordings are all kept
    rollout: int
    rollout_at: str  # the network and method of the largest rollout call; `rollout` is its peak
    plain: UpdateMemory
    recomputed: UpdateMemory | None  # the update with gradient checkpointing; None: the denoiser does not support it
    checkpointing: bool  # true if the run uses gradient checkpointing
    assumptions: tuple[str, ...]
    others: tuple[OtherModel, ...] = ()  # the models beside the policy

    @property
    def training_state(self) -> int:
        """The bytes of trained parameters, gradients, Adam's moments and further copies."""
        return self.trained * FLOAT32 * (2 + ADAM_MOMENTS + len(self.copies))

    @property
    def resident(self) -> int:
        """The bytes that are in use all the time."""
        return self._frozen + self.training_state + self.reference

    @property
    def recordings(self) -> int:
        """The bytes of all recordings of an iteration."""
        return self.recording * self.micro_batches

    @property
    def update(self) -> UpdateMemory:
        """The update as configured."""
        return self.recomputed if self.checkpointing and self.recomputed else self.plain

    @property
    def saving(self) -> int:
        """The bytes of copies for writing a checkpoint: `training_state` without the gradients."""
        own = self.trained * FLOAT32 * (1 + ADAM_MOMENTS + len(self.copies))
        return own + sum(each.saving for each in self.others)

    @property
    def transient(self) -> int:
        """The maximal number of bytes of one phase beyond those that stay: a call, a checkpoint, offloaded models."""
        loaded = sum(each.weights for each in self.others if each.offloaded)
        return max(self.rollout, self.update.peak, self.saving, loaded)

    @property
    def total(self) -> int:
        """The maximal number of bytes at any time."""
        return self.resident + self.recordings + self.transient

    def rows(self) -> list[tuple[str, str]]:
        """Return the name and text of each line."""
        one = self.trained * FLOAT32
        parts = [f"parameters {size(one)}", f"gradients {size(one)}", f"Adam's moments {size(ADAM_MOMENTS * one)}"]
        parts += [f"{copy} {size(one)}" for copy in self.copies]
        if self.reference:
            parts.append(f"reference {size(self.reference)}")
        return [
            ("frozen weights", f"{size(sum(w.bytes for w in self.frozen))}: {_list_weights(self.frozen)}"),
            *([("other models", ", ".join(map(str, self.others)))] if self.others else []),
            ("trained", f"{count(self.trained)} parameters: {', '.join(parts)}"),
            ("recordings", f"{size(self.recordings)}: {self.micro_batches:,} x {size(self.recording)}"),
            ("rollout", f"{size(self.rollout)} at most, in {self.rollout_at}"),
            ("update", self._describe_update()),
            ("in all", f"{size(self.total)}, of which {size(self.resident)} all the time"),
        ]

    def of_processes(self, processes: int) -> list[tuple[str, str]]:
        """Return the name and text of each `run.place`: the bytes of one of several processes."""
        found, part, strict = self.bytes_of_processes(processes), self._part(processes), self._strict_part(processes)
        return [
            ("replicas", size(found["replicas"])),
            ("window", f"{size(found['window'])}, of which {size(part)} are this process's part of what is trained"),
            (
                "strict",
                f"{size(found['strict'])}, of which {size(strict)} are this process's part of the denoiser, and "
                f"{size(self.gathered)} the blocks that it gathers",
            ),
        ]

    def bytes_of_processes(self, processes: int, parts: int | None = None) -> dict[str, int]:
        """Return the bytes of one of several processes by `run.place`; models are divided into `parts`, if set.

        Adapters stay whole in every place, since they are small. While a `window` is open, the fully trained parameters
        and their gradients are whole beside the process's own part, and so are the reference and an old policy.
        Under `strict`, the blocks that compute are whole, with their gradients; all else of the denoiser is divided.
        """
        parts = parts or processes
        own = self.recording * -(-self.micro_batches // processes) + self.transient
        frozen = self._frozen
        kept = frozen if self.reference else frozen + self.training_state
        whole = (
            self.trained * FLOAT32 * (3 if OLD_POLICY in self.copies else 2) + self.reference if self.reference else 0
        )
        return {
            "replicas": self.resident + own,
            "window": kept + self._part(parts) + whole + own,
            "strict": frozen - self.adapted + self._strict_part(parts) + self.gathered + own,
        }

    @property
    def _frozen(self) -> int:
        """The bytes that no place divides: the frozen components, and the models beside the policy."""
        return sum(each.bytes for each in self.frozen) + sum(each.resident for each in self.others)

    def _part(self, parts: int) -> int:
        """Return the bytes of a process's part of what is trained under `window`."""
        return (self.training_state + self.reference) // parts if self.reference else 0

    def _strict_part(self, parts: int) -> int:
        """Return the bytes of a process's part of the denoiser under `strict`."""
        return (self.adapted + self.training_state + self.reference) // parts

    def _describe_update(self) -> str:
        plain = f"{size(self.plain.peak)} without gradient checkpointing"
        if self.recomputed is None:
            return f"{plain}; this denoiser has none"
        recomputed = f"{size(self.recomputed.peak)} with it"
        return f"{plain}, {recomputed}; this run is {'with' if self.checkpointing else 'without'}"


def size(bytes_: int) -> str:
    """Format a number of bytes.

    >>> size(5 * 2**20), size(3 * 2**30 // 2), size(40 * 2**30)
    ('5 MiB', '1.5 GiB', '40 GiB')
    """
    if bytes_ < 2**30:
        return f"{bytes_ / 2**20:.0f} MiB"
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ < 10 * 2**30 else f"{bytes_ / 2**30:.0f} GiB"


def count(number: int) -> str:
    """Format a number of parameters.

    >>> count(23_887_872), count(2_243_171_520), count(900)
    ('23.9M', '2.24B', '900')
    """
    if number >= 10**9:
        return f"{number / 10**9:.2f}B"
    return f"{number / 10**6:.1f}M" if number >= 10**5 else f"{number:,}"


def _list_weights(weights: tuple[ComponentWeights, ...]) -> str:
    return ", ".join(f"{each.name} {count(each.parameters)}" for each in weights)
