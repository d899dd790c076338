"""Run the phone server in a process of its own, beside the coordinator.

python -m coordinator.phones.phone_server_process FD ARGUMENTS...
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.access.configured_authority import open_authority
from coordinator.broker.mosquitto_config import limit_packets
from coordinator.built_page import find_page
from coordinator.phones.defaults import ADDRESS, FACT, PAGE
from coordinator.phones.phone_code import ANY
from coordinator.settings.config import Config
from coordinator.settings.service_tables import Broker, Phones
from coordinator.web_certificate import ServedCertificate
from federated.errors import ConfigError, EspalierError, MissingExtra, explain_os_errors
from federated.runtime.connection_limits import listen
from federated.runtime.console import Say
from federated.runtime.listen_address import ListenAddress, check_public_url, parse_listen_address
from federated.runtime.server_process import Poller, ServerProcess, become_server
from federated.wire.mqtt_address import parse_mqtt_address

if TYPE_CHECKING:
    from coordinator.access.certificate_authority import Authority

__all__ = ["serve_phones"]

log = logging.getLogger(__name__)

BROKER = "ESPALIER_PHONES_BROKER"  # variable with the broker's address and password
POLL = 1.0  # seconds between two looks for revoked phones
SETTINGS = ("phones.certificate", "phones.key")
LOCAL = ("127.0.0.1", "::1", "localhost")  # which browsers trust without HTTPS


@contextmanager
def serve_phones(config: Config, broker: str, say: Say, transfers: str = "") -> Iterator[None]:
    """Serve the phones' page inside the context, if the configuration asks for it. broker: address
    with the coordinator's credentials. transfers: see `PhoneSite`. Raises UsageError, ConfigError,
    StoreError, MissingExtra.
    """
    phones = config.phones
    check_settings(phones)
    if not phones.listen:
        yield
        return
    check_server(config, broker)
    address = parse_listen_address(phones.listen, "phones.listen", ADDRESS)
    with closing(open_authority(config.broker)) as authority:
        certificate, key = find_certificate(phones, address, authority)
        check_transfers(transfers, secure=bool(certificate) or phones.url.startswith("https://"))
        with explain_os_errors(ConfigError, f"phones.listen = '{phones.listen}'"):
            listening = listen(address.host, address.port)
        arguments = [
            str(authority.folder),
            config.name,
            str(limit_packets(config.wire.chunk)),
            "certificates" if config.broker.tls else "",
            certificate,
            key,
            transfers,
        ]
        with closing(
            ServerProcess("phones", __name__, listening, arguments, {BROKER: broker})
        ) as process:
            host = f"[{address.host}]" if ":" in address.host else address.host
            own = f"{'https' if certificate else 'http'}://{host}:{process.port}"
            url = (phones.url.rstrip("/") or own) + PAGE
            authority.registry.set_fact(FACT, url)
            say(f"phones join at {url}: coordinator enroll NAME --phone prints a code for one")
            with closing(Poller("phones", process.restart_if_dead)):
                yield


def check_settings(phones: Phones) -> None:
    if not phones.listen and (phones.tls or phones.certificate or phones.url):
        raise ConfigError(
            "phones.tls, phones.certificate and phones.url are for the phones' page, which is not "
            "served: set phones.listen, or start with --phones"
        )
    if phones.url:
        check_public_url(phones.url, "phones.url")
    if phones.tls and phones.certificate:
        raise ConfigError(
            "phones.tls and phones.certificate cannot be combined: choose a certificate of the "
            "fleet's authority, or one of your own"
        )


def check_transfers(origin: str, *, secure: bool) -> None:
    """Raise ConfigError for transfers that browsers block. origin: of the transfers; empty: none.
    secure: whether the page has HTTPS.
    """
    parts = urlsplit(origin)
    if secure and parts.scheme == "http" and parts.hostname not in LOCAL:
        raise ConfigError(
            f"phones: a page with HTTPS cannot transfer at {origin}: name an address with https:// "
            "(http.certificate, http.url, or http.endpoint of a store)"
        )


def check_server(config: Config, broker: str) -> None:
    """Check what the process needs, before it starts. Raises UsageError, ConfigError,
    MissingExtra.
    """
    find_files()
    if find_spec("websockets") is None:
        raise MissingExtra("coordinator start --phones", "web", "websockets")
    ServedCertificate(config.phones.certificate, config.phones.key, SETTINGS)  # checks it
    if parse_mqtt_address(broker).path is not None:
        raise ConfigError(
            "phones.listen: phones need a broker at mqtt:// or mqtts://, not over WebSockets"
        )


def find_files() -> Path:
    """Return the folder of the built page for phones. Raises MissingExtra."""
    return find_page("coordinator start --phones") / "phone"


def find_certificate(
    phones: Phones, address: ListenAddress, authority: Authority
) -> tuple[str, str]:
    """Return the files of the page's certificate and key, empty for HTTP. Raises ConfigError for an
    address that no certificate can name.
    """
    if not phones.tls:
        return phones.certificate, phones.key
    if address.host not in ANY:
        authority.add_hosts([address.host])
    return str(authority.server), str(authority.server)


def main(descriptor: int, folder: str, run: str, limit: str, *more: str) -> None:
    """Serve phones at an open socket until standard input closes. more: the rest of the arguments
    of `serve_phones`.
    """
    from coordinator.phones.mqtt_pipe import Pipes, Upstream
    from coordinator.phones.phone_enrolment import PhoneEnrolment
    from coordinator.phones.phone_server import PhoneServer, PhoneSite

    ended = become_server()
    certificates, certificate, key, transfers = more
    broker = parse_mqtt_address(os.environ.pop(BROKER))
    with closing(open_authority(Broker(pki=folder), create=False)) as authority:
        enrolment = PhoneEnrolment(authority, run)
        pipes = Pipes(enrolment, Upstream(broker, bool(certificates), int(limit)))
        site = PhoneSite(find_files(), run, transfers)
        served = ServedCertificate(certificate, key, SETTINGS)
        listening = socket.socket(fileno=descriptor)
        with closing(PhoneServer(site, enrolment, pipes, listening, served.tls)) as server:
            while not ended.wait(POLL):
                if not server.alive:
                    sys.exit("the server stopped")
                try:
                    pipes.refresh()
                except EspalierError as error:  # the next look may succeed
                    log.warning("cannot look for revoked phones: %s", error)
                try:
                    served.reload_if_renewed()
                except OSError as error:  # the next look may succeed
                    log.warning("cannot load the certificate: %s", error)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
