"""An exported folder to the Hugging Face Hub: only when asked, to a repository that holds nothing yet."""

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
from mmrl.export.export import Exported

EMPTY = {".gitattributes"}
"""What the hub itself puts into a new repository."""

_FAILURES = (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled, httpx.HTTPError)


@dataclass(frozen=True)
class Target:
    """A repository that may be written into."""

    name: str  # OWNER/NAME
    private: bool
    exists: bool
    api: HfApi

    @classmethod
    def find(cls, name: str, private: bool) -> Target:
        """Look whether it can be pushed there; nothing is written.

        Raises:
            ConfigError: the name is none, nobody is logged in, or there is something there.
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
        if held := sorted({each.rfilename for each in found.siblings or ()} - EMPTY):
            raise ConfigError(f"--push: {name} holds {held[0]} already, and nothing is overwritten: name another "
                              "repository, or delete that one")  # fmt: skip
        if bool(found.private) != private:
            now, option = ("private", "--private") if found.private else ("public", "--public")
            raise ConfigError(f"--push: {name} is there already, and {now}: say {option}, or name another one")
        return cls(name, private, True, api)

    def announced(self, done: Exported) -> str:
        """What goes where, to be shown before it does."""
        sizes = done.files.values()
        who = "only its owner sees it" if self.private else "EVERYBODY sees it"
        visibility = "private" if self.private else "public"
        total = sum(sizes) / 2**20
        return (
            f"Uploading {len(sizes)} files ({total:.1f} MiB) to {self.api.endpoint}/{self.name} "
            f"({visibility}: {who}), {'which is empty' if self.exists else 'a new repository'}."
        )

    def upload(self, done: Exported) -> str:
        """Make the repository, and put all files there in one commit; gives its address.

        Raises:
            ConfigError: the hub refuses, or cannot be reached; the folder on the disk stays.
        """
        try:
            if not self.exists:
                self.api.create_repo(self.name, private=self.private)
            commit = self.api.upload_folder(
                repo_id=self.name,
                folder_path=done.folder,
                commit_message=f"{done.subject.policy.train} training, iteration {done.subject.step}",
            )
        except _FAILURES as err:
            raise ConfigError(f"--push: {self.name}: {_reason(err)}. {done.folder} is written all the same") from err
        return str(commit)


def _reason(why: Exception) -> str:
    """What a person can do about it."""
    if isinstance(why, LocalTokenNotFoundError) or getattr(getattr(why, "response", None), "status_code", 0) == 401:
        return "nobody is logged in to the hub: run `hf auth login`, or set HF_TOKEN"
    return " ".join(str(why).split())
