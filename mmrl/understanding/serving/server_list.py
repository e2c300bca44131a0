"""The servers that a run may use at this moment: those of its configuration, or those that a file names now.

    # servers.txt
    http://10.0.0.2:8000
    http://10.0.0.3:8000   # joined later

Who starts and ends servers, a person, a script or a scheduler, writes the file; a run reads it. Replace it as a whole
(write another file, then `mv`): of one that is being written a run may read a part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mmrl.config.servers import ServersConfig, ServerUrl
from mmrl.distributed import processes
from mmrl.errors import ConfigError

log = logging.getLogger(__name__)

URL: TypeAdapter[str] = TypeAdapter(ServerUrl)


class ServerList:
    """The addresses of servers, which may change."""

    def __init__(self, settings: ServersConfig) -> None:
        self._urls = settings.urls
        self.file: Path | None = None
        """The file that names the servers; None: they are fixed."""
        if settings.file is not None:
            self.file = Path(settings.file.replace("{rank}", str(processes.rank())))
        self._complaint = ""

    def read(self) -> tuple[str, ...]:
        """Return the addresses, each once, in their order.

        Raises:
            ConfigError: the file cannot be read, or a line is no address; the message names both.
        """
        if self.file is not None:
            self._urls = tuple(dict.fromkeys(_addresses(self.file)))
        return self._urls

    def now(self) -> tuple[str, ...]:
        """Return the addresses; those that were read last, with one warning, where the file cannot be read."""
        try:
            found = self.read()
        except ConfigError as err:
            if str(err) != self._complaint:
                log.warning("%s. The servers that were read before are used on", err)
            self._complaint = str(err)
            return self._urls
        self._complaint = ""
        return found


def _addresses(file: Path) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"run.servers.file: {file} cannot be read: {err}") from err
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if "@" in text or "?" in text:  # its words stay out of the message
            raise ConfigError(
                f"run.servers.file: {file}, line {number} has a user, a password or a query: put the key into an "
                "environment variable, and name that in run.servers.api_key_env"
            )
        if text:
            try:
                yield URL.validate_python(text)
            except ValidationError as err:
                raise ConfigError(
                    f"run.servers.file: {file}, line {number} is {text!r}: expected {err.errors()[0]['msg']}"
                ) from err
