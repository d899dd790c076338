"""Sign browsers in to the web page: they exchange one secret token for a cookie."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request

from federated.errors import ConfigError, explain_os_errors
from federated.runtime.atomic_files import warn_if_public

__all__ = ["COOKIE", "LIFETIME", "SignIn", "load_token"]

COOKIE = "espalier-session"
LIFETIME = 12 * 3600  # seconds until a browser must sign in again
MAX_SESSIONS = 100  # signed-in browsers; the oldest is signed out
MIN_TOKEN = 16  # characters of a token


def load_token(file: Path) -> str:
    """Return the token in a file, which is created with a new token if it does not exist. Raises
    ConfigError.
    """
    with explain_os_errors(ConfigError, f"token file {file}"):
        if not file.exists():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(file, flags, 0o600), "w") as new:
                new.write(f"{secrets.token_urlsafe(24)}\n")
        warn_if_public(file, "the token of the web page")
        token = file.read_text(encoding="ascii", errors="replace").strip()
    if len(token) < MIN_TOKEN or not token.isprintable():
        raise ConfigError(
            f"token file {file}: expected at least {MIN_TOKEN} printable ASCII characters, found "
            f"{len(token)}; delete the file to get a new token"
        )
    return token


class SignIn:
    """The token, and the browsers that have sent it."""

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token, self._clock = token, clock
        self._ends = dict[str, float]()  # session -> time at which it ends, the oldest first

    def has_token(self, given: str) -> bool:
        """Return True if this is the token, in a time that does not depend on it."""
        return hmac.compare_digest(given.strip().encode(), self._token.encode())

    def begin(self) -> str:
        """Begin a session, and return its secret name."""
        session = secrets.token_urlsafe(24)
        self._ends[session] = self._clock() + LIFETIME
        if len(self._ends) > MAX_SESSIONS:
            del self._ends[next(iter(self._ends))]
        return session

    def end(self, request: Request) -> None:
        """End the session of a request."""
        self._ends.pop(request.cookies.get(COOKIE, ""), None)

    def knows(self, request: Request) -> bool:
        """Return True if a request comes from a browser that has signed in, or carries the token in
        the header `Authorization: Bearer TOKEN`.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.has_token(given)
        return self._ends.get(request.cookies.get(COOKIE, ""), 0.0) > self._clock()
