"""Find the user that runs this process."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress
from pathlib import Path

try:
    import pwd
except ImportError:  # Windows
    pwd = None  # type: ignore[assignment]

__all__ = ["find_user", "find_user_name", "is_root"]

LOGIN = Path("/proc/self/loginuid")  # Linux: who logged in, also after sudo and su
NOBODY = 2**32 - 1  # no user logged in, as in a service


def find_user() -> int:
    """Return the number of the user that runs this process; 0 on a system without numbers."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def find_user_name() -> str:
    """Return the name of the user that runs this process, such as `espalier`, or `ann as espalier`
    if ann logged in and became another user.
    """
    if not hasattr(os, "geteuid"):
        return getpass.getuser()
    user, login = os.geteuid(), NOBODY
    with suppress(OSError, ValueError):
        login = int(LOGIN.read_text())
    name = _spell(user)
    return name if login in (user, NOBODY) else f"{_spell(login)} as {name}"


def is_root() -> bool:
    """Return True if this process runs as root."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _spell(user: int) -> str:
    """Return a user's name, or the number of a user without one, as in a container."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)
