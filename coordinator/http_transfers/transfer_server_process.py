"""Run the server of HTTP transfers in a process of its own, beside the coordinator.

python -m coordinator.http_transfers.transfer_server_process FD SPOOL CERTIFICATE KEY
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coordinator.access.configured_authority import open_authority
from coordinator.broker.local_addresses import find_reachable_hosts
from coordinator.http_transfers.transfer_urls import TransferUrls
from coordinator.settings.config import Config
from coordinator.web_certificate import ServedCertificate
from federated.errors import ConfigError, MissingExtra, explain_os_errors
from federated.runtime.connection_limits import listen
from federated.runtime.console import Say
from federated.runtime.listen_address import (
    ListenAddress,
    check_public_url,
    parse_listen_address,
)
from federated.runtime.server_process import Poller, ServerProcess, become_server

__all__ = ["serve_transfers"]

log = logging.getLogger(__name__)

SECRET = "ESPALIER_TRANSFER_SECRET"  # noqa: S105  # name of a variable
POLL = 1.0  # seconds between checks for a new certificate
SETTINGS = ("http.certificate", "http.key")
EXAMPLE = "0.0.0.0:8602"


@dataclass(frozen=True)
class CertificateFiles:
    """The certificate of the server. Both are empty without TLS.

    certificate: file of the certificate chain.
    key: file of its key.
    """

    certificate: str = ""
    key: str = ""


@contextmanager
def serve_transfers(config: Config, spool: Path, say: Say) -> Iterator[TransferUrls]:
    """Serve transfers inside the context, and give their addresses. spool: of the run. Raises
    UsageError, ConfigError, StoreError, MissingExtra.
    """
    wanted = config.http
    if find_spec("uvicorn") is None:
        raise MissingExtra("http.listen", "serve", "uvicorn")
    address = parse_listen_address(wanted.listen, "http.listen", EXAMPLE)
    files = find_certificate(config, address)
    check_exposure(config, address, files)
    ServedCertificate(files.certificate, files.key, SETTINGS)  # checks it
    spool.mkdir(parents=True, exist_ok=True)
    with explain_os_errors(ConfigError, f"http.listen = '{wanted.listen}'"):
        listening = listen(address.host, address.port)
    secret = secrets.token_bytes(32)
    arguments = [str(spool), files.certificate, files.key]
    process = ServerProcess("http", __name__, listening, arguments, {SECRET: secret.hex()})
    with closing(process), closing(Poller("http", process.restart_if_dead)):
        base = wanted.url.rstrip("/") or (
            f"{'https' if files.certificate else 'http'}://"
            f"{find_reachable_hosts(address.host)[1]}:{process.port}"
        )
        more = f" of more than {wanted.above} bytes" if wanted.above else ""
        say(f"agents transfer weights and updates{more} over {base}")
        yield TransferUrls(base, secret, wanted.above)


def find_certificate(config: Config, address: ListenAddress) -> CertificateFiles:
    """Return the configured certificate, or with `broker.tls` that of the authority. Raises
    UsageError, ConfigError, StoreError.
    """
    wanted = config.http
    if wanted.certificate or wanted.key or not config.broker.tls:
        return CertificateFiles(wanted.certificate, wanted.key)
    if config.broker.ca and not wanted.url:  # with an address, another server is in front
        raise ConfigError(
            "http.listen: devices trust the authority of broker.ca: name http.certificate and "
            "http.key of the same authority"
        )
    with closing(open_authority(config.broker)) as authority:
        authority.add_hosts([find_reachable_hosts(address.host)[1].strip("[]")])
        return CertificateFiles(str(authority.server), str(authority.server))


def check_exposure(config: Config, address: ListenAddress, files: CertificateFiles) -> None:
    """Raise ConfigError for a server that others could read along, or a wrong http.url."""
    url = config.http.url
    if url:
        check_public_url(url, "http.url")
    if not files.certificate and not address.local and not url.startswith("https://"):
        raise ConfigError(
            f"http.listen = '{config.http.listen}': other machines would transfer without TLS: "
            "name http.certificate and http.key, use broker.tls, or put a server with TLS in front "
            "and name its address (http.url = 'https://...')"
        )


def main(descriptor: int, spool: Path, files: CertificateFiles) -> None:
    """Serve transfers at an open socket until standard input closes."""
    from coordinator.http_transfers.transfer_server import TransferServer

    ended, secret = become_server(), bytes.fromhex(os.environ.pop(SECRET))
    served = ServedCertificate(files.certificate, files.key, SETTINGS)
    listening = socket.socket(fileno=descriptor)
    with closing(TransferServer(spool, secret, listening, served.tls)) as server:
        while not ended.wait(POLL):
            if not server.alive:
                sys.exit("the server stopped")
            try:
                served.reload_if_renewed()
            except OSError as error:  # the next check may succeed
                log.warning("cannot load the certificate: %s", error)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), CertificateFiles(*sys.argv[3:]))
