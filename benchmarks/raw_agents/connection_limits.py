"""How many connections the agents of one process may open: the limit of its files, and the ports
that the system gives to connections with the same destination.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from federated.errors import ConfigError
from federated.runtime.console import Say

__all__ = ["ConnectionLimits", "make_room", "read_limits"]

SPARE = 64  # files and connections to the broker in addition to the agents'
NETWORK = Path("/proc/sys/net/ipv4")
RANGE, RESERVED = "ip_local_port_range", "ip_local_reserved_ports"


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of this machine.

    files: most that a process may open, sockets included; None: no limit.
    ports: most connections from one address of this machine to the same address and port; None:
        unknown, since the system is not Linux.
    """

    files: int | None
    ports: int | None

    def describe(self, agents: int) -> str:
        """Return a line with the limits, and what this number of agents needs of each."""
        files = "unlimited" if self.files is None else f"{self.files:,}"
        ports = "unknown" if self.ports is None else f"{self.ports:,}"
        return (
            f"limits: {files} open files of a process, {ports} ports for connections to one "
            f"address; needed: {agents + SPARE:,} of each"
        )

    def check(self, agents: int) -> None:
        """Raise ConfigError if this number of agents needs more than there are."""
        needed = agents + SPARE
        if self.files is not None and self.files < needed:
            raise ConfigError(
                f"a process may open {self.files:,} files, but {needed:,} are needed for "
                f"{agents:,} agents: raise the limit (ulimit -Hn), or use fewer agents"
            )
        if self.ports is not None and self.ports < needed:
            raise ConfigError(
                f"the system has {self.ports:,} ports for connections to one address, but "
                f"{needed:,} are needed for {agents:,} agents: widen net.ipv4.{RANGE} "
                f"(sysctl -w net.ipv4.{RANGE}='1024 65535' gives up to 64,512), or use fewer "
                "agents"
            )


def read_limits(folder: Path = NETWORK) -> ConnectionLimits:
    """Return the limits of this process. folder: of the kernel's settings."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return ConnectionLimits(None if hard == resource.RLIM_INFINITY else hard, count_ports(folder))


def count_ports(folder: Path) -> int | None:
    """Return how many ports the system chooses from; None if it does not say."""
    try:
        least, most = map(int, (folder / RANGE).read_text().split())
        reserved = (folder / RESERVED).read_text().strip()
    except OSError:
        return None
    blocked = set[int]()
    for part in filter(None, reserved.split(",")):
        first, _, last = part.partition("-")
        blocked |= {*range(int(first), int(last or first) + 1)}
    return len({*range(least, most + 1)} - blocked)


def make_room(agents: int, say: Say) -> None:
    """State the limits, and allow this process, and those that it starts, a connection for each
    agent. Raises ConfigError if the machine allows fewer.
    """
    limits = read_limits()
    say(limits.describe(agents))
    limits.check(agents)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, agents + SPARE), hard))
