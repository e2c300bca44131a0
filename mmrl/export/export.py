"""`mmrl export`: a checkpoint as a plain folder that needs no mmrl, with a model card."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from mmrl.atomic_io import sync_tree
from mmrl.build.checkpoint_pool import ModelRef, resolve_model
from mmrl.build.datasets import load_samples
from mmrl.config.policy import Precision
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.export.adapter import write_adapter
from mmrl.export.merged_model import Asked, Plain, write_plain
from mmrl.export.model_card import write_card
from mmrl.export.scrub_paths import strip_local_paths


@dataclass(frozen=True)
class Exported:
    """A folder that was written."""

    folder: Path
    subject: ModelRef
    plain: Plain

    @property
    def files(self) -> dict[str, int]:
        """Sizes in bytes by path inside the folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in found}


def export(
    target: str, out: Path, dtype: Precision | None = None, lora_only: bool = False, repository: str | None = None
) -> Exported:
    """Write a run's checkpoint as a plain diffusers or transformers folder.

    Args:
        target: `RUN`, `RUN@best`, `RUN@last` or `RUN@40`.
        out: a new or an empty folder.
        dtype: of the weights; None: what was trained whole stays float32, the rest is as the run computed.
        lora_only: the adapter alone, for the base to load.
        repository: OWNER/NAME, where the code of the card shall find it; None: by the folder's name.

    Raises:
        ConfigError: `target` is no checkpoint of a run, or there is something in `out`; nothing is written.
    """
    subject = resolve_model(target)
    _refuse(subject, target, lora_only)
    check_empty(out)
    assert subject.run is not None
    record = read_run(subject.run.folder, until=subject.step)
    asked = Asked(repository or out.absolute().name, dtype, _asked_sample(subject, record))
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.absolute().with_name(f".{out.absolute().name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)  # of an export that was killed
    try:
        plain = (write_adapter if lora_only else write_plain)(subject, fresh, asked)
        strip_local_paths(fresh)
        write_card(fresh, subject, record, plain, asked, lora_only)
        sync_tree(fresh)
        check_empty(out)  # it took a while
        if out.is_dir():
            out.rmdir()
        fresh.rename(out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Exported(out, subject, plain)


def check_empty(out: Path) -> None:
    """
    Raises:
        ConfigError: there is something in this place already, which is never overwritten.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        what = "is not empty" if out.is_dir() else "is a file"
        raise ConfigError(f"--out: {out} {what}, and nothing is overwritten: name a new folder")


def _refuse(subject: ModelRef, target: str, lora_only: bool) -> None:
    if subject.run is None:
        raise ConfigError(f"{target} is no run's folder: only what was trained can be exported")
    if subject.checkpoint is None:
        raise ConfigError(f"{target} is what training began with, {subject.policy.model}: name a checkpoint, as in "
                          f"{subject.run.folder}@best")  # fmt: skip
    if lora_only and subject.policy.train != "lora":
        raise ConfigError(f"--lora-only: {subject.run.folder} trained whole weights (policy.train: full) and has no "
                          "adapter: leave it out")  # fmt: skip


def _asked_sample(subject: ModelRef, record: RunRecord) -> Sample:
    """One of the run's own data, with a picture if any has one, and the prompt as its task completes it."""
    assert subject.run is not None
    data = subject.run.config.data
    try:
        found = load_samples(data.validation or data.path)
    except (ConfigError, DataError, OSError):  # the data need not be where the model is exported
        found = []
    prompts = {} if record.first is None else dict(zip(record.first.ids, record.first.prompts, strict=True))
    known = [sample for sample in found if sample.prompt]
    chosen = next((sample for sample in known if sample.images), known[0] if known else None)
    if chosen is None:
        return Sample("card", prompt=next(iter(prompts.values()), "a red circle"))
    prompt = prompts.get(chosen.id, chosen.prompt)
    return Sample(chosen.id, prompt=prompt, images=chosen.images, conditions=chosen.conditions)
