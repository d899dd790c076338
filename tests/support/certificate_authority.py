"""A certificate authority and enrolled members, made without a coordinator or a network."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.access.broker_files import write_broker_files
from coordinator.access.certificate_authority import Authority
from coordinator.broker.local_addresses import find_free_port
from coordinator.broker.mosquitto_config import find_mosquitto
from edge_agent.access.enrolment import encode_key
from federated.certificate_request import sign_request
from federated.wire.mqtt_address import MqttAddress

__all__ = ["SHIPPED", "TlsBroker", "member", "shipped"]

SHIPPED = Path(__file__).parents[2] / "deploy" / "mosquitto"


def member(authority: Authority, name: str, folder: Path) -> Path:
    """Return the certificate and key of a newly enrolled agent."""
    token = authority.invite(name, "localhost", 8884, 60)
    key = ec.generate_private_key(ec.SECP256R1())
    path = folder / f"{name}-{secrets.token_hex(3)}.pem"
    path.write_bytes(
        authority.enrol(token.secret, sign_request(name, key)).encode() + encode_key(key)
    )
    return path


class TlsBroker:
    """A mosquitto with the shipped configuration for certificates, and its addresses."""

    def __init__(
        self, authority: Authority, port: int, files: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.authority, self.port, self.files, self.process = authority, port, files, process

    def restart(self) -> None:
        """Kill and restart it."""
        self.process.kill()
        self.process.wait()
        self.process = subprocess.Popen(
            self.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def address(
        self, pem: Path | None, host: str = "localhost", ca: Path | None = None
    ) -> MqttAddress:
        return MqttAddress(
            host,
            self.port,
            tls=True,
            ca=str(ca or self.authority.ca),
            cert=None if pem is None else str(pem),
        )


@contextmanager
def shipped(
    name: str, authority: Authority, folder: Path, *, websockets: bool = False
) -> Iterator[TlsBroker]:
    """Start mosquitto with a file of deploy/mosquitto, but with other paths, address and port, and
    with WebSockets if asked for.
    """
    program, port, files = find_mosquitto(), find_free_port("127.0.0.1", 0), folder / "broker"
    assert program is not None
    write_broker_files(authority, files)
    text = (SHIPPED / name).read_text().replace("/etc/mosquitto/espalier", str(files))
    own = f"listener {port} 127.0.0.1\n"
    if websockets:  # served only beside a listener without them
        spare = find_free_port("127.0.0.1", 0)
        own = f"listener {spare} 127.0.0.1\n{own}protocol websockets\n"
    text = "".join(
        own if line.startswith("listener ") else line for line in text.splitlines(keepends=True)
    )
    config = folder / name
    config.write_text(f"{text}persistence_location {folder}/\nuser root\n")
    process = subprocess.Popen(
        [program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    tls_broker = TlsBroker(authority, port, files, process)
    try:
        yield tls_broker
    finally:
        tls_broker.process.terminate()
        tls_broker.process.wait()
