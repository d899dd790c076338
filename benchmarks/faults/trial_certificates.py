"""Issue the certificates of a trial's agents, for a coordinator that starts a broker with TLS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.access.certificate_authority import LIFE, Authority
from coordinator.broker.local_addresses import find_free_port
from edge_agent.access.enrolment import encode_key
from federated.certificate_request import sign_request
from federated.runtime import atomic_files

__all__ = ["TlsSetup"]


@dataclass
class TlsSetup:
    """The authority of a trial, and the ports of its coordinator.

    folder: of the authority
    port: of the broker
    enrolment: port of the enrolment server
    """

    folder: Path
    port: int = field(default_factory=lambda: find_free_port("127.0.0.1", 0))
    enrolment: int = field(default_factory=lambda: find_free_port("127.0.0.1", 0))

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder, ["localhost"])

    @property
    def arguments(self) -> list[str]:
        """Arguments of the coordinator."""
        return [
            *("--tls", "--pki", str(self.folder), "--port", str(self.port)),
            *("--set", f"broker.enrol={self.enrolment}"),
        ]

    def enrol(self, names: Iterable[str], life: timedelta = LIFE) -> dict[str, tuple[Path, Path]]:
        """Return the authority's certificate, and a new certificate with its key, by agent."""
        return {name: (self.authority.ca, self._enrol(name, life)) for name in names}

    def _enrol(self, name: str, life: timedelta) -> Path:
        token = self.authority.invite(name, "localhost", self.enrolment, 60)
        key = ec.generate_private_key(ec.SECP256R1())
        path = self.folder.parent / f"{name}.pem"
        pem = self.authority.enrol(token.secret, sign_request(name, key), life=life)
        atomic_files.write(path, pem.encode() + encode_key(key))
        return path

    def close(self) -> None:
        self.authority.close()
