"""Start the server of the web page: until ctrl-C, or in a process beside a run."""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.built_page import find_page
from coordinator.web.defaults import ADDRESS, TOKEN
from coordinator.web.page_server import LOCAL, PageServer, Site, format_url
from coordinator.web.sign_in import load_tokens
from coordinator.web_certificate import load_certificate
from federated.errors import ConfigError, UsageError, explain_os_errors
from federated.runtime.connection_limits import listen
from federated.runtime.listen_address import ListenAddress, parse_listen_address
from federated.runtime.server_process import Poller, ServerProcess, become_server

__all__ = ["Listen", "serve_beside", "serve_page"]


@dataclass(frozen=True)
class Listen:
    """Where and how the page is served.

    address: HOST:PORT or PORT.
    certificate, key: files for HTTPS; None: HTTP, on loopback only.
    token_file: of the tokens; None: `web-token` in the folder of the runs.
    options: names of the options for address, certificate and key, for error messages.
    """

    address: str
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None
    options: tuple[str, str, str] = ("--listen", "--certificate", "--key")


def serve_page(runs: Path, where: Listen, say: Callable[[str], None]) -> None:
    """Serve the page of a folder of runs until the process is interrupted. Raises UsageError,
    ConfigError, MissingExtra.
    """
    site, address, tls = prepare_site(runs, where)
    with closing(PageServer(site, bind(address, where), tls)) as server:
        say(f"open {server.url} and sign in with a token of {where.token_file or runs / TOKEN}")
        while server.alive:
            time.sleep(1)


@contextmanager
def serve_beside(runs: Path, where: Listen, say: Callable[[str], None]) -> Iterator[None]:
    """Serve the page in a process of its own inside the context. Raises as `serve_page`."""
    _, address, tls = prepare_site(runs, where)
    files = (where.certificate, where.key, where.token_file)
    arguments = [str(runs), where.address, *("" if file is None else str(file) for file in files)]
    listening = bind(address, where)
    with closing(ServerProcess("web page", __name__, listening, arguments)) as process:
        url = format_url(address.host, process.port, secure=tls is not None)
        say(f"open {url} and sign in with a token of {where.token_file or runs / TOKEN}")
        with closing(Poller(process.name, process.restart_if_dead)):
            yield


def prepare_site(runs: Path, where: Listen) -> tuple[Site, ListenAddress, ssl.SSLContext | None]:
    """Check where the page is served, and create the folder of the runs and the tokens if they are
    missing. Raises UsageError, ConfigError, MissingExtra.
    """
    option, certificate, key = where.options
    files = find_page("coordinator web")
    tls = load_certificate(where.certificate, where.key, (certificate, key))
    address = parse_listen_address(where.address, option, ADDRESS)
    if not address.local and tls is None:
        raise UsageError(
            f"{option} {address.host}: other machines can reach this address; serve HTTPS with "
            f"{certificate} FILE {key} FILE"
        )
    with explain_os_errors(ConfigError, f"--runs {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
    hosts = (*LOCAL, address.host) if address.local else ()
    holders = load_tokens(where.token_file or runs / TOKEN)
    return Site(runs, files, holders, hosts), address, tls


def bind(address: ListenAddress, where: Listen) -> socket.socket:
    """Return a listening socket. Raises ConfigError."""
    with explain_os_errors(ConfigError, f"{where.options[0]} {where.address}"):
        return listen(address.host, address.port)


def main(descriptor: int, runs: Path, address: str, *files: str) -> None:
    """Serve the page at an open socket until standard input closes: the process of
    `serve_beside`. files: certificate, key and token file; empty: none.
    """
    ended = become_server()
    certificate, key, token_file = (Path(file) if file else None for file in files)
    site, _, tls = prepare_site(runs, Listen(address, certificate, key, token_file))
    with closing(PageServer(site, socket.socket(fileno=descriptor), tls)) as server:
        while not ended.wait(1):
            if not server.alive:
                sys.exit("the server stopped")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
