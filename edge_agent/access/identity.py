"""Who an agent is when nobody named it: the host, told apart from others of its name, and numbered
where several agents share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import re
import socket
import tempfile
import uuid
from pathlib import Path

__all__ = ["free_name", "machine_name"]

MACHINE_ID = Path("/etc/machine-id")
# locks of names that this process took; the system lets go of them when it ends
_held: list[int] = []


def machine_name() -> str:
    """The host's name and four digits of its machine: stable over restarts, and two fresh boards
    called `raspberrypi` stay two.
    """
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:50] or "agent"
    try:
        machine = MACHINE_ID.read_text().strip() or str(uuid.getnode())
    except OSError:
        machine = str(uuid.getnode())
    return f"{host}-{hashlib.sha256(machine.encode()).hexdigest()[:4]}"


def free_name(base: str) -> str:
    """`base`, or `base-2`, `base-3`, ...: the first that no other agent on this machine uses. Held
    until this process ends.
    """
    for name in itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2))):
        lock = Path(tempfile.gettempdir()) / f"espalier-agent-{os.getuid()}-{name}.lock"
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            continue
        _held.append(handle)
        return name
    raise AssertionError("numbers do not end")
