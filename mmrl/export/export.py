"""`mmrl export`: write a checkpoint as a folder that loads without mmrl, with a model card, and upload it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from mmrl.atomic_io import sync_tree
from mmrl.build.datasets import load_samples
from mmrl.build.model_references import ModelRef, resolve_model
from mmrl.config.policy import Precision, VLMConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.evaluation.run_reader import RunRecord, read_run
from mmrl.export.adapter import write_adapter
from mmrl.export.extrapolation import trajectory_steps
from mmrl.export.merged_model import ExportedModel, ExportRequest, write_merged
from mmrl.export.model_card import write_card
from mmrl.export.scrub_paths import strip_local_paths


@dataclass(frozen=True)
class ExportedFolder:
    """A written folder."""

    folder: Path
    model: ModelRef
    content: ExportedModel

    @property
    def files(self) -> dict[str, int]:
        """The size of every file in bytes, by its path in the folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in found}


def export(
    target: str,
    out: Path,
    dtype: Precision | None = None,
    lora_only: bool = False,
    repository: str | None = None,
    ahead: int = 0,
) -> ExportedFolder:
    """Write a run's checkpoint as a plain diffusers or transformers folder.

    Args:
        target: `RUN`, `RUN@best`, `RUN@last` or `RUN@40`.
        out: A new or an empty folder.
        dtype: The dtype of the weights; None: float32 for fully trained weights, else the run's.
        lora_only: Whether to write the adapter alone, for the base to load.
        repository: OWNER/NAME for the code of the card; None: the folder's name.
        ahead: The checkpoints by which the weights go on from the target, without training (NExt, arXiv:2604.11446).

    Raises:
        ConfigError: `target` is no checkpoint of a run, its trajectory cannot be continued, or `out` is not empty.
            Nothing is written.
    """
    model = resolve_model(target)
    _check_exportable(model, target, lora_only)
    if ahead:
        _check_extrapolation(model, lora_only)
    check_empty(out)
    assert model.run is not None
    record = read_run(model.run.folder, until=model.step)
    request = ExportRequest(repository or out.absolute().name, dtype, _example_sample(model, record), ahead)
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.absolute().with_name(f".{out.absolute().name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)  # from an export that was killed
    try:
        content = (write_adapter if lora_only else write_merged)(model, draft, request)
        strip_local_paths(draft)
        write_card(draft, model, record, content, lora_only)
        sync_tree(draft)
        check_empty(out)  # another process may have written into it meanwhile
        if out.is_dir():
            out.rmdir()
        draft.rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ExportedFolder(out, model, content)


def check_empty(out: Path) -> None:
    """Raise ConfigError unless `out` is a new or an empty folder."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists() or out.is_symlink():
        state = "is not empty" if out.is_dir() else "is a file"
        raise ConfigError(f"--out: {out} {state}, and nothing is overwritten: name a new folder")


def _check_exportable(model: ModelRef, target: str, lora_only: bool) -> None:
    if model.run is None:
        raise ConfigError(f"{target} is no run's folder: only checkpoints of runs can be exported")
    if model.checkpoint is None:
        raise ConfigError(f"{target} is the model that training began with, {model.policy.model}: name a checkpoint, "
                          f"as in {model.run.folder}@best")  # fmt: skip
    if lora_only and model.policy.train != "lora":
        raise ConfigError(f"--lora-only: {model.run.folder} trained whole weights (policy.train: full) and has no "
                          "adapter: leave it out")  # fmt: skip
    if lora_only and isinstance(model.policy, VLMConfig) and model.policy.heads:
        raise ConfigError(f"--lora-only: {model.run.folder} trained output layers (policy.heads) beside its adapter, "
                          "which would be lost: leave it out")  # fmt: skip


def _check_extrapolation(model: ModelRef, lora_only: bool) -> None:
    if lora_only:
        raise ConfigError("--ahead: extrapolated changes are no adapter of the run's rank: leave out --lora-only")
    trajectory_steps(model)


def _example_sample(model: ModelRef, record: RunRecord) -> Sample:
    """Return a sample of the run's data, with a picture if any has one, and with its task's instruction."""
    assert model.run is not None
    data = model.run.config.data
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


EMPTY = {".gitattributes"}
"""The files that the hub puts into a new repository."""

_FAILURES = (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled, httpx.HTTPError)


@dataclass(frozen=True)
class HubRepository:
    """A repository that does not exist yet or is empty."""

    name: str  # OWNER/NAME
    private: bool
    exists: bool
    api: HfApi

    @classmethod
    def find(cls, name: str, private: bool) -> HubRepository:
        """Look up a repository; nothing is written.

        Raises:
            ConfigError: The name has not the form OWNER/NAME, no user is logged in, or the repository is not empty.
        """
        if name.count("/") != 1 or not all(name.split("/")):
            raise ConfigError(f"--push: {name} is no repository: name it OWNER/NAME")
        api = HfApi()
        try:
            api.whoami()
            found = api.model_info(name)
        except RepositoryNotFoundError:
            return cls(name, private, False, api)
        except _FAILURES as err:
            raise ConfigError(f"--push: {name}: {_reason(err)}") from err
        if files := sorted({each.rfilename for each in found.siblings or ()} - EMPTY):
            raise ConfigError(f"--push: {name} holds {files[0]} already, and nothing is overwritten: name another "
                              "repository, or delete that one")  # fmt: skip
        if bool(found.private) != private:
            now, option = ("private", "--private") if found.private else ("public", "--public")
            raise ConfigError(f"--push: {name} is there already, and {now}: say {option}, or name another one")
        return cls(name, private, True, api)

    def announcement(self, done: ExportedFolder) -> str:
        """Return a line about the upload, to be printed before it."""
        sizes = done.files.values()
        audience = "private: only its owner sees it" if self.private else "public: EVERYBODY sees it"
        return (
            f"Uploading {len(sizes)} files ({sum(sizes) / 2**20:.1f} MiB) to {self.api.endpoint}/{self.name} "
            f"({audience}), {'which is empty' if self.exists else 'a new repository'}."
        )

    def upload(self, done: ExportedFolder) -> str:
        """Create the repository, upload all files in one commit, and return the commit's address.

        Raises:
            ConfigError: The hub rejects the upload, or cannot be reached. The folder on the disk stays.
        """
        try:
            if not self.exists:
                self.api.create_repo(self.name, private=self.private)
            commit = self.api.upload_folder(
                repo_id=self.name,
                folder_path=done.folder,
                commit_message=f"{done.model.policy.train} training, iteration {done.model.step}",
            )
        except _FAILURES as err:
            raise ConfigError(f"--push: {self.name}: {_reason(err)}. {done.folder} is written all the same") from err
        return str(commit)


def _reason(err: Exception) -> str:
    """Return the error's text, or what to do about a missing login."""
    if isinstance(err, LocalTokenNotFoundError) or getattr(getattr(err, "response", None), "status_code", 0) == 401:
        return "no user is logged in to the hub: run `hf auth login`, or set HF_TOKEN"
    return " ".join(str(err).split())
