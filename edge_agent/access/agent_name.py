"""Choose the agent's default name: the host's name with four digits of its machine id, numbered if
several agents share the host. Read the board's serial number, by which a device claims its name.
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

from edge_agent.device.sysfs import ROOT, read_text
from federated.errors import UsageError
from federated.system.file_locks import lock_file
from federated.system.users import find_user
from federated.wire import topics
from federated.wire.enrolment_token import SERIAL

__all__ = ["derive_name", "read_serial", "reserve_name"]

MACHINE_ID = Path("/etc/machine-id")
# of a board with a device tree, and of a PC, which only root can read
SERIALS = "proc/device-tree/serial-number", "sys/class/dmi/id/product_serial"
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


def read_serial(root: Path = ROOT) -> str:
    """Return the serial number of this board. Raises UsageError if it has none that can be read."""
    found = next(filter(None, (read_text(root / path) for path in SERIALS)), "")
    if not re.match(topics.AGENT, found):
        raise UsageError(f"{SERIAL}; this board has {repr(found[:80]) if found else 'none'}")
    return found


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
