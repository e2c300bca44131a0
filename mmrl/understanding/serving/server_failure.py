"""The ways in which a request to a rollout server fails."""

from __future__ import annotations


class ServerFailure(Exception):
    """A request without a usable answer.

    http_503, http_429, ...   the server returned an error; 408, 409, 425, 429 and all from 500 are transient
    connection                no server listens, or the connection broke before a reply began; transient
    timeout                   no reply in time; transient
    truncated                 the reply broke off; transient
    aborted                   the server gave up the answers, as it does when it is paused; transient
    too_large                 the reply has more bytes than any reply should have
    wrong_reply               the reply is not an answer to the request
    lost_weights              the server has other weights than were loaded: it was restarted, or reloaded
    """

    def __init__(self, url: str, kind: str, text: str, transient: bool = False, wait_s: float | None = None) -> None:
        """`text` is masked already; `wait_s` is the time that the server wants to be left alone."""
        super().__init__(f"{url}: {text}")
        self.url, self.kind, self.text = url, kind, text
        self.transient, self.wait_s = transient, wait_s

    @property
    def broke(self) -> bool:
        """True if the server may be gone: it must show that it lives before the next request."""
        return self.kind in ("connection", "timeout", "truncated")
