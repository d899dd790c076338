"""Sign browsers in to the web page: they exchange a secret token for a cookie. What they may do
depends on the role of the token.
"""

from __future__ import annotations

import hmac
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from starlette.requests import Request

from federated.errors import ConfigError, explain_os_errors
from federated.runtime.atomic_files import warn_if_public

__all__ = ["COOKIE", "LIFETIME", "Role", "SignIn", "TokenHolder", "load_tokens"]

COOKIE = "espalier-session"
LIFETIME = 12 * 3600  # seconds until a browser must sign in again
MAX_SESSIONS = 100  # signed-in browsers; the oldest is signed out
MIN_TOKEN = 16  # characters of a token
MAX_NAME = 64  # characters of a holder's name

Role: TypeAlias = Literal["viewer", "operator", "admin"]
"""A viewer reads, an operator also controls runs and releases, an admin also enrols and revokes
devices. Each may do what those before it may.
"""


@dataclass(frozen=True)
class TokenHolder:
    """A person with a token.

    token: secret.
    role: what its holder may do.
    name: of the holder, for the audit log.
    """

    token: str = field(repr=False)
    role: Role = "admin"
    name: str = "admin"

    def may(self, needed: Role) -> bool:
        """Return True if the holder may do what needs a role."""
        roles = get_args(Role)
        return roles.index(self.role) >= roles.index(needed)


def load_tokens(file: Path) -> tuple[TokenHolder, ...]:
    """Return the tokens in a file, one a line: `TOKEN [ROLE [NAME]]`, by default of an
    admin. If the file does not exist, create it with a new token for each role. Raises ConfigError.
    """
    with explain_os_errors(ConfigError, f"token file {file}"):
        if not file.exists():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(file, flags, 0o600), "w") as new:
                for role in reversed(get_args(Role)):
                    new.write(f"{secrets.token_urlsafe(24)} {role}\n")
        warn_if_public(file, "the tokens of the web page")
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found = tuple(
        parse_holder(line, f"token file {file}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    )
    if not found or len({one.token for one in found}) < len(found):
        what = "the same token twice" if found else "none"
        remedy = "delete the file to get new tokens"
        raise ConfigError(f"token file {file}: expected different tokens, found {what}; {remedy}")
    return found


def parse_holder(line: str, place: str) -> TokenHolder:
    """Return the holder that a line describes. Raises ConfigError, which hides the token."""
    token, role, name = [*line.split(maxsplit=2), "", ""][:3]
    role = role or "admin"
    name = name.strip() or role
    known = next((one for one in get_args(Role) if one == role), None)
    if len(token) < MIN_TOKEN or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"{place}: expected a token with at least {MIN_TOKEN} printable ASCII characters, "
            f"found {len(token)} characters"
        )
    if known is None or len(name) > MAX_NAME or not name.isprintable():
        raise ConfigError(
            f"{place}: expected TOKEN [ROLE [NAME]] with one of the roles "
            f"{', '.join(get_args(Role))} and a name of at most {MAX_NAME} characters, found the "
            f"role '{role[:40]}' and a name of {len(name)}"
        )
    return TokenHolder(token, known, name)


class SignIn:
    """The tokens, and the browsers that have sent one."""

    def __init__(
        self, holders: Sequence[TokenHolder], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._holders, self._clock = holders, clock
        self._ends = dict[str, float]()  # session -> time at which it ends, the oldest first

    def find_holder(self, given: str) -> TokenHolder | None:
        """Return who has this token, in a time that does not depend on it; None for another."""
        raw = given.strip().encode()
        found = None
        for one in self._holders:  # compare with all, whichever it is
            if hmac.compare_digest(raw, one.token.encode()):
                found = one
        return found

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
        """Return True if a request comes from a browser that has signed in, or carries a token in
        the header `Authorization: Bearer TOKEN`.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.find_holder(given) is not None
        return self._ends.get(request.cookies.get(COOKIE, ""), 0.0) > self._clock()
