"""Find the program mosquitto, and generate its configuration and its access control list."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from federated.system.users import is_root
from federated.wire import topics
from federated.wire.link import OVERHEAD

__all__ = [
    "COORDINATOR",
    "ListenerFiles",
    "Rights",
    "TlsFiles",
    "configure_limits",
    "configure_tls",
    "find_mosquitto",
    "format_acl",
    "limit_packets",
    "read_version",
]

# the coordinator's user, and the name in its certificate; not a valid name of an agent
COORDINATOR = "coordinator@espalier"
PLACES = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")  # usual folders outside PATH
MAX_PACKET = (16 << 20) + OVERHEAD  # bytes: the largest chunk that can be configured
LARGEST_OTHER = 1 << 20  # bytes of the largest packet without a chunk
# messages queued for a client that is offline or slow, such as those of a large fleet for its
# coordinator; by default mosquitto silently drops messages beyond 1000
QUEUE = 20_000
QUEUE_BYTES = 1 << 30
CONNECTIONS = 10_000
KEEPALIVE = 600  # seconds: the broker tells clients that request a longer keepalive to use this
AGENT_RIGHTS = topics.agent_rights()
HEAD = """\
# Rights of agents. An agent is identified by its authenticated name (%u): the name in its
# certificate, or its user name. The client id (%c) proves nothing, because clients choose it
# freely."""


@dataclass(frozen=True)
class ListenerFiles:
    """The files of a listener that accepts only certificates of an authority.

    ca: certificates of the authority, and of those above it.
    certificate, key: of the broker.
    crl: the list of revoked certificates.
    """

    ca: Path
    certificate: Path
    key: Path
    crl: Path


@dataclass(frozen=True)
class Rights:
    """Which agents may do what at a broker.

    barred: names without any rights.
    excluded: name -> runs in which it may not take part.
    names: the only ones with rights; None: all names.
    """

    barred: frozenset[str] = frozenset()
    excluded: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: frozenset[str] | None = None


@dataclass(frozen=True)
class TlsFiles:
    """The files of a broker that identifies clients by their certificates.

    ca: certificate of the authority.
    server: the broker's certificate and key in one file.
    crl: the list of revoked certificates.
    coordinator: the coordinator's certificate and key in one file.
    user: the name in this certificate.
    outside: files of the devices' listener, if their certificates are those of another authority.
    rights: of agents, until others are loaded.
    """

    ca: Path
    server: Path
    crl: Path
    coordinator: Path
    user: str = COORDINATOR
    outside: ListenerFiles | None = None
    rights: Rights = Rights()

    @property
    def own(self) -> ListenerFiles:
        """The files of a listener for certificates of the fleet's own authority."""
        return ListenerFiles(self.ca, self.server, self.server, self.crl)


def limit_packets(chunk: int) -> int:
    """Return the largest packet of a run in bytes. chunk: `wire.chunk`; 0 for the default."""
    return max(LARGEST_OTHER, chunk + OVERHEAD)


def find_mosquitto() -> str | None:
    """Return the path of the program, from PATH or the usual folders."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(PLACES))


def read_version(program: str) -> str:
    """Return the version that mosquitto reports."""
    output = subprocess.run(  # noqa: S603
        [program, "-h"], capture_output=True, text=True, check=False, timeout=10
    ).stdout
    found = re.search(r"mosquitto version (\S+)", output)
    return found[1] if found else "of unknown version"


def configure_limits(folder: Path, max_packet: int) -> list[str]:
    """Return the configuration that is common to all brokers: limits, and persistence in
    `folder`.
    """
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
        # started as root, mosquitto would switch to a user that cannot write to this folder
        *(["user root"] if is_root() else []),
    ]


def configure_tls(files: ListenerFiles) -> list[str]:
    """Return the configuration of a listener that accepts only certificates of the authority and
    uses the names in them as user names.
    """
    return [
        f"cafile {files.ca.resolve()}",
        f"certfile {files.certificate.resolve()}",
        f"keyfile {files.key.resolve()}",
        f"crlfile {files.crl.resolve()}",
        "tls_version tlsv1.2",  # the minimum; 1.3 is used if both sides support it
        "require_certificate true",
        "use_identity_as_username true",
    ]


def format_acl(coordinator: str, rights: Rights = Rights()) -> str:  # frozen
    """Return the access control list. coordinator: its user, or the name in its certificate."""
    denied = {
        name: [f"deny {pattern}" for run in runs for pattern in topics.excluded_patterns(run, name)]
        for name, runs in rights.excluded.items()
    } | {name: ["deny #"] for name in rights.barred}
    granted = {
        name: [f"{access} {pattern.replace('%u', name)}" for access, pattern in AGENT_RIGHTS]
        for name in rights.names or ()
    }
    lines: Sequence[str] = [
        HEAD,
        *(
            f"pattern {access} {pattern}"
            for access, pattern in AGENT_RIGHTS
            if rights.names is None
        ),
        "",
        f"user {coordinator}",
        f"topic readwrite {topics.all_topics()}",
        "topic read $SYS/#",
        f"topic write {topics.dynamic_security()}",
        f"topic read {topics.dynamic_security_answer()}",
        *(
            line
            for name in sorted({*denied, *granted})
            for line in (
                "",
                f"user {name}",
                *(f"topic {one}" for one in (*denied.get(name, ()), *granted.get(name, ()))),
            )
        ),
    ]
    return "\n".join(lines) + "\n"
