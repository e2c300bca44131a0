"""The samples that a run added to its data, as a JSON Lines file in the run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl.atomic_io import replace_text
from mmrl.data.growing_prompts import GrowingSampler

ADDED_PROMPTS = "added_prompts.jsonl"


class AddedPromptsTracker:
    """A writer of `added_prompts.jsonl`: all samples that were added, in order, with their last scores.

    The file is a data set: `data.path: runs/NAME/added_prompts.jsonl` trains on what another run has found. It is
    written anew, atomically, after an iteration that changed it; a resumed run writes it from its state. Those of
    earlier stages are `added_prompts-stage-0.jsonl` and so on.
    """

    def __init__(self, run: Path, sources: Sequence[GrowingSampler]) -> None:
        """`sources` are those of all stages that grow, in order."""
        path = run / ADDED_PROMPTS
        names = [path.with_stem(f"{path.stem}-stage-{number}") for number in range(len(sources) - 1)]
        self._files = dict(zip([*names, path], sources, strict=True))
        self._written: dict[Path, list[str]] = {}

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write each file that has changed.

        Raises:
            OSError: a file cannot be written; it is as it was before.
        """
        for path, source in self._files.items():
            lines = source.lines(path.parent)
            if lines != self._written.get(path, []):
                replace_text(path, "".join(lines), durable=True)
                self._written[path] = lines

    def close(self) -> None:
        """Do nothing: every sample is on disk."""

    def truncate_after(self, step: int) -> None:
        """Write the samples that the resumed state has; a file without any is removed."""
        self._written = {}
        for path in self._files:
            path.unlink(missing_ok=True)
        self.log("train", step, {})
