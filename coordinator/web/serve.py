"""`coordinator web`: serve the page until ctrl-C."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coordinator.web.page_server import LOCAL, PageServer, Site
from coordinator.web.sign_in import load_token
from federated.errors import ConfigError, MissingExtra, UsageError, explain_os_errors
from federated.runtime.listen_address import parse_listen_address

__all__ = ["TOKEN", "Listen", "find_page", "serve_page"]

TOKEN = "web-token"  # noqa: S105  # file in the folder of the runs
PACKAGE = "espalier_web"  # the built page, which has a distribution of its own


@dataclass(frozen=True)
class Listen:
    """Where and how the page is served.

    address: HOST:PORT or PORT.
    certificate, key: files for HTTPS; None: HTTP, on loopback only.
    token_file: of the token; None: `web-token` in the folder of the runs.
    """

    address: str
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None


def serve_page(runs: Path, listen: Listen, say: Callable[[str], None]) -> None:
    """Serve the page of a folder of runs until the process is interrupted. Raises UsageError,
    ConfigError, MissingExtra.
    """
    files, tls = find_page(), load_certificate(listen)
    address = parse_listen_address(listen.address, "--listen", "127.0.0.1:8600")
    if not address.local and tls is None:
        raise UsageError(
            f"--listen {address.host}: other machines can reach this address; serve HTTPS with "
            "--certificate FILE --key FILE"
        )
    with explain_os_errors(ConfigError, f"--runs {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
    token_file = listen.token_file or runs / TOKEN
    hosts = (*LOCAL, address.host) if address.local else ()
    site = Site(runs, files, load_token(token_file), hosts)
    with closing(PageServer(site, address, tls)) as server:
        say(f"open {server.url} and sign in with the token in {token_file}")
        while server.alive:
            time.sleep(1)


def find_page() -> Path:
    """Return the folder of the built page. Raises MissingExtra."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise MissingExtra("coordinator web", "web", PACKAGE)
    return Path(found.origin).parent / "static"


def load_certificate(listen: Listen) -> ssl.SSLContext | None:
    """Return a context for HTTPS; None without a certificate. Raises UsageError, ConfigError."""
    if listen.certificate is None and listen.key is None:
        return None
    if listen.certificate is None or listen.key is None:
        raise UsageError("HTTPS needs both --certificate FILE and --key FILE")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(listen.certificate, listen.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--certificate {listen.certificate} and --key {listen.key}: {error}"
        ) from error
    return context
