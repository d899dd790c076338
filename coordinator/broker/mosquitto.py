"""Mosquitto: where it is, and what is written for it: its configuration and who may do what (access
control list).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from federated.wire import topics
from federated.wire.link import OVERHEAD

__all__ = [
    "COORDINATOR",
    "MAX_PACKET",
    "Secured",
    "find_mosquitto",
    "limits",
    "rights",
    "secured",
    "version_of",
]

# its user, and the name in its certificate; no agent can be called so
COORDINATOR = "coordinator@espalier"
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")  # where it often is and PATH is not
MAX_PACKET = (16 << 20) + OVERHEAD  # bytes: the largest chunk that can be configured
# messages per link that is down or slow: twice the chunks of 2.6 GB; mosquitto drops at 1000 by
# default, and says nothing
QUEUE = 20_000
QUEUE_BYTES = 1 << 30
CONNECTIONS = 10_000
KEEPALIVE = 600  # seconds: who asks for more is told to make do with this
HEAD = """\
# What agents may do, each under the name that it has shown to be its own (%u: the name in its
# certificate, or its user), and nothing else. A client's id (%c) proves nothing: anyone
# may choose any."""


@dataclass(frozen=True)
class Secured:
    """The files of a broker that identifies clients by their certificates.

    ca: certificate of the authority.
    server: the broker's certificate and key in one file.
    crl: the list of revoked certificates.
    coordinator: the coordinator's certificate and key in one file.
    """

    ca: Path
    server: Path
    crl: Path
    coordinator: Path


def find_mosquitto() -> str | None:
    """The program's path, on PATH or where systems put it."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(PLACES))


def version_of(program: str) -> str:
    shown = subprocess.run(  # noqa: S603
        [program, "-h"], capture_output=True, text=True, check=False, timeout=10
    ).stdout
    found = re.search(r"mosquitto version (\S+)", shown)
    return found[1] if found else "of unknown version"


def limits(folder: Path, max_packet: int) -> list[str]:
    """What every broker of ours has: bounds, and a memory that outlives it."""
    return [
        f"max_packet_size {max_packet}",
        "max_inflight_messages 20",
        f"max_queued_messages {QUEUE}",
        f"max_queued_bytes {QUEUE_BYTES}",
        f"max_connections {CONNECTIONS}",
        f"max_keepalive {KEEPALIVE}",
        "persistent_client_expiration 1d",
        "set_tcp_nodelay true",
        "persistence true",
        f"persistence_location {folder.resolve()}/",
        "autosave_interval 30",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "connection_messages false",
        # else it becomes a user that may not write here, and keeps nothing
        *(["user root"] if os.geteuid() == 0 else []),
    ]


def secured(files: Secured) -> list[str]:
    """A listener that takes only clients of the authority, and takes the names in their
    certificates for theirs.
    """
    return [
        f"cafile {files.ca.resolve()}",
        f"certfile {files.server.resolve()}",
        f"keyfile {files.server.resolve()}",
        f"crlfile {files.crl.resolve()}",
        "tls_version tlsv1.2",  # the least: 1.3 is spoken where both sides can
        "require_certificate true",
        "use_identity_as_username true",
    ]


def rights(coordinator: str, barred: Iterable[str] = ()) -> str:
    """The access control list. coordinator: its user or the name in its certificate; barred: who
    may do nothing at all, whatever else is said.
    """
    lines: Sequence[str] = [
        HEAD,
        *(f"pattern {access} {pattern}" for access, pattern in topics.agent_rights()),
        "",
        f"user {coordinator}",
        f"topic readwrite {topics.all_topics()}",
        "topic read $SYS/#",
        *(line for name in sorted(barred) for line in ("", f"user {name}", "topic deny #")),
    ]
    return "\n".join(lines) + "\n"
