"""Act as the user that the agent's service runs as.

`edge-agent update` runs as root, and the agent's files belong to another user, who could replace
them by links to files of root. So root reads and removes them with the rights of this user, and
uses this user's home folder only then: a configuration of pip there can name a program to run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from edge_agent.update.installation import clean_variables
from federated.errors import UsageError

__all__ = ["SAME_USER", "ServiceUser", "find_service_user"]


@dataclass(frozen=True)
class ServiceUser:
    """A user of the operating system.

    uid: its number; None: that of this process, so nothing changes.
    gid: number of its group.
    groups: numbers of all its groups.
    home: its home folder, with the agent's state; empty: that of this process.
    """

    uid: int | None = None
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `subprocess.run` that start a command as this user."""
        home = {"HOME": self.home} if self.home else {}
        found: dict[str, Any] = {"env": clean_variables() | home}
        if self.uid is not None:
            found |= {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}
        return found

    @contextmanager
    def act(self) -> Iterator[None]:
        """Let this process, which is root's, have only the rights of the user, and its home folder.
        Raises OSError.
        """
        with use_home(self.home) if self.home else nullcontext(), self._have_rights():
            yield

    @contextmanager
    def _have_rights(self) -> Iterator[None]:
        if self.uid is None:
            yield
            return
        uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
        try:
            os.setgroups(self.groups)
            os.setegid(self.gid)
            os.seteuid(self.uid)
            yield
        finally:
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)


SAME_USER = ServiceUser()


@contextmanager
def use_home(folder: str) -> Iterator[None]:
    before = os.environ.get("HOME")
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before


def find_service_user(name: str) -> ServiceUser:
    """Return a user. An empty name is the user of this process. Raises UsageError."""
    if not name:
        return SAME_USER
    import pwd  # not on Windows

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"--as {name}: there is no such user on this machine") from None
    if found.pw_uid == os.getuid():
        return ServiceUser(home=found.pw_dir)
    if os.getuid() != 0:
        raise UsageError(f"--as {name}: only root can run commands as another user: use sudo")
    groups = os.getgrouplist(name, found.pw_gid)
    return ServiceUser(found.pw_uid, found.pw_gid, tuple(groups), found.pw_dir)
