"""Upload an exported folder to a new or an empty repository of the Hugging Face Hub."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from mmrl.errors import ConfigError
from mmrl.export.export import ExportedFolder

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
        audience = "only its owner sees it" if self.private else "EVERYBODY sees it"
        visibility = "private" if self.private else "public"
        total = sum(sizes) / 2**20
        return (
            f"Uploading {len(sizes)} files ({total:.1f} MiB) to {self.api.endpoint}/{self.name} "
            f"({visibility}: {audience}), {'which is empty' if self.exists else 'a new repository'}."
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
