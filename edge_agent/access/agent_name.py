"""Choose the agent's default name: the host's name with four digits of its machine id, numbered if
several agents share the host.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import tempfile
import uuid
from pathlib import Path

from federated.system.file_locks import lock_file
from federated.system.users import find_user

__all__ = ["derive_name", "reserve_name"]

MACHINE_ID = Path("/etc/machine-id")
_locks: list[int] = []  # of reserved names; the system releases them when this process ends


def derive_name() -> str:
    """Return the host's name and four hexadecimal digits of its machine id. The name is stable
    across restarts, and differs between fresh boards that are all called `raspberrypi`.
    """
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:50] or "agent"
    try:
        machine = MACHINE_ID.read_text().strip() or str(uuid.getnode())
    except OSError:
        machine = str(uuid.getnode())
    return f"{host}-{hashlib.sha256(machine.encode()).hexdigest()[:4]}"


def reserve_name(base: str) -> str:
    """Reserve the first of `base`, `base-2`, `base-3`, ... that no other agent on this machine
    uses, until this process ends.
    """
    for name in itertools.chain([base], (f"{base}-{number}" for number in itertools.count(2))):
        path = Path(tempfile.gettempdir()) / f"espalier-agent-{find_user()}-{name}.lock"
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(handle, wait=False)
        except OSError:
            os.close(handle)
            continue
        _locks.append(handle)
        return name
    raise AssertionError("unreachable: the numbers are infinite")
