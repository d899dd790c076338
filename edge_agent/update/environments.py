"""The environments of a device: folders beside each other, and the links `current` and `previous`
that name two of them.

    ROOT/current -> 0.3.0-1f3a5c7b     the services start from here
    ROOT/previous -> 0.2.0-9be01c44    what `edge-agent update --rollback` returns to
    ROOT/trial.json                    exists until the current environment's agent has joined
    ROOT/refused.json                  wanted versions that this device did not take, or left

A link is replaced in one step, so a service finds a whole environment at any time. An environment
that no link names is left over from an update that was interrupted, and the next update removes it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from federated.errors import ConfigError, StoreError, UsageError, explain_os_errors
from federated.runtime import atomic_files
from federated.runtime.console import Say
from federated.system.disk_sync import sync
from federated.system.file_locks import lock_path, unlock_path

__all__ = [
    "MARK",
    "ROLLED_BACK",
    "STAGED",
    "Environments",
    "Refusal",
    "find_environments",
    "hold_lock",
]

CURRENT, PREVIOUS, LOCK = "current", "previous", "update.lock"
TRIAL, REFUSED = "trial.json", "refused.json"
MOST_REFUSED = 32  # the oldest ones are forgotten
MARK = "espalier-environment"  # file in each environment that an update made or left
STAGED = ".staged"  # folder of the wheel to install
GUIDE = "docs/operations.md#upgrade-a-device"


class Trial(msgspec.Struct, frozen=True):
    """An update whose agent has not joined yet.

    environment: name of the folder.
    starts: number of starts of its agent.
    """

    environment: str
    starts: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """Why this device left a version, or did not take it.

    reason: in words.
    withdrawn: the run rolled it back; unlike other versions, the run may want it again.
    """

    reason: str
    withdrawn: bool = False


ROLLED_BACK = Refusal("the run rolled it back", withdrawn=True)


class Environments:
    """The environments of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def current(self) -> Path | None:
        """The environment that services start from."""
        return self._read_link(CURRENT)

    @property
    def previous(self) -> Path | None:
        """The environment before the last switch."""
        return self._read_link(PREVIOUS)

    def _read_link(self, link: str) -> Path | None:
        try:
            target = (self.root / link).readlink()
        except OSError:
            return None
        name = target.name
        return self.root / name if name and target == Path(name) else None

    def switch(self, new: Path) -> None:
        """Make an environment the current one, and the current one the previous one. Raises
        OSError.
        """
        before = self.current
        if before is not None and before != new:
            self._point(PREVIOUS, before)
        self._point(CURRENT, new)

    def roll_back(self) -> tuple[Path, Path]:
        """Make the previous environment the current one, and the other way round. Return both, the
        new current one first. Raises UsageError without a previous one, OSError.
        """
        old, back = self.current, self.previous
        if old is None or back is None or back == old or not back.is_dir():
            raise UsageError(f"{self.root}: there is no previous environment to go back to")
        self.end_trial()
        self._point(CURRENT, back)
        self._point(PREVIOUS, old)
        return back, old

    def _point(self, link: str, target: Path) -> None:
        """Let a link name an environment, in one step."""
        part = self.root / f".{link}.part"
        part.unlink(missing_ok=True)
        part.symlink_to(target.name)
        part.replace(self.root / link)
        sync(self.root)

    def tidy(self, say: Say) -> None:
        """Remove what no link names of that which updates made, unless a process still uses it."""
        self.remove_staged()
        for folder in sorted(self.root.iterdir()):
            kept = folder.is_symlink() or folder in (self.current, self.previous)
            if kept or not (folder / MARK).is_file():
                continue
            if users := list_users(folder):
                say(f"kept {folder}: processes use it ({users}); restart them, and update again")
                continue
            shutil.rmtree(folder)

    def remove_staged(self) -> None:
        """Remove the wheel that was to be installed."""
        shutil.rmtree(self.root / STAGED, ignore_errors=True)

    # ---- trials ----------------------------------------------------------------------------------

    def begin_trial(self, environment: Path, starts: int = 0) -> None:
        """Record that an environment is on trial. Raises OSError."""
        trial = Trial(environment.name, starts)
        atomic_files.write(self.root / TRIAL, msgspec.json.encode(trial))

    def end_trial(self) -> None:
        """Record that none is on trial. Raises OSError."""
        (self.root / TRIAL).unlink(missing_ok=True)

    def read_trial(self) -> Trial | None:
        """Return the trial of the current environment; None if it is on no trial."""
        try:
            trial = msgspec.json.decode((self.root / TRIAL).read_bytes(), type=Trial)
        except (OSError, msgspec.MsgspecError):
            return None
        current = self.current
        return trial if current is not None and current.name == trial.environment else None

    # ---- refusals --------------------------------------------------------------------------------

    def read_refused(self) -> dict[str, Refusal]:
        """Return the versions that `edge-agent update --wanted` leaves out, and why. `--rollback`
        returns to none of them.
        """
        try:
            return msgspec.json.decode((self.root / REFUSED).read_bytes(), type=dict[str, Refusal])
        except (OSError, msgspec.MsgspecError):
            return {}

    def refuse(self, version: str, why: Refusal) -> None:
        """Record that this device left a version, or did not take it. Raises OSError."""
        others = {name: one for name, one in self.read_refused().items() if name != version}
        kept = dict(list(others.items())[1 - MOST_REFUSED :])
        atomic_files.write(self.root / REFUSED, msgspec.json.encode({**kept, version: why}))

    def accept(self, version: str) -> None:
        """Forget that this device left a version. Raises OSError."""
        known = self.read_refused()
        if known.pop(version, None) is not None:
            atomic_files.write(self.root / REFUSED, msgspec.json.encode(known))


def find_environments() -> Environments:
    """Return the environments beside the one that this process runs from. Raises ConfigError."""
    prefix = Path(sys.prefix)
    found = Environments(prefix.parent.resolve())
    if found.current is None:
        raise ConfigError(
            f"{prefix}: expected this environment in a folder of its own with a link '{CURRENT}' "
            f"to it, such as /opt/espalier/{CURRENT}: see {GUIDE}"
        )
    if not found.current.is_dir():
        raise ConfigError(
            f"{found.root / CURRENT}: {found.current} does not exist: point the link at an "
            f"environment, with ln -sfn NAME {found.root / CURRENT}"
        )
    return found


@contextmanager
def hold_lock(root: Path) -> Iterator[None]:
    """Let one update at a time change a folder. Raises StoreError."""
    path = root / LOCK
    try:
        handle = lock_path(path)
    except BlockingIOError:
        raise StoreError(f"{root}: another update is in progress: wait until it ends") from None
    except OSError as error:
        with explain_os_errors(
            StoreError, f"cannot write to {root}", remedy="run the command as its owner"
        ):
            raise error
    try:
        yield
    finally:
        unlock_path(path, handle)


def list_users(folder: Path) -> str:
    """Return the numbers of the processes that were started from an environment."""
    inside = f"{folder}{os.sep}"
    return ", ".join(
        str(process.pid)
        for process in psutil.process_iter(["cmdline"])
        if any(word.startswith(inside) for word in (process.info["cmdline"] or [])[:2])
    )
