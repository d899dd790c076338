"""Serve the metrics of a run at `[metrics] listen`, in a process of their own, so that a flood of
requests does not slow the run down. Beyond loopback, the server requires client certificates of the
configured authority.

The coordinator writes the metrics to a file every second, and the process answers with that file.

python -m coordinator.observe.event_readers.metrics_server FD FILE CERTIFICATE KEY CA
"""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
import time
from pathlib import Path

from coordinator.settings.service_tables import Metrics
from federated.errors import (
    ConfigError,
    LinkError,
    explain_os_errors,
    read_setting,
    require_extra,
)
from federated.runtime import atomic_files as disk
from federated.runtime.connection_limits import listen
from federated.runtime.listen_address import parse_listen_address
from federated.runtime.server_process import Poller, ServerProcess, become_server

__all__ = ["MetricsServer"]

MAX_CONNECTIONS, MAX_PER_ADDRESS = 32, 16
MAX_REQUESTS = 10.0  # requests per second of a client
MAX_RATE = 5.0  # connections per second of an address
CONNECTION_TIMEOUT = 10.0  # seconds
CLOSE_TIMEOUT = 2.0  # seconds that requests in progress have when the server closes
STALE = 30.0  # seconds after which metrics are no longer served: the coordinator hangs


class MetricsServer:
    """The server at `wanted.listen`, until it is closed. It starts before the run, so that a wrong
    address fails first.

    registry: the metrics that it serves.
    address: its URL, with the actual port for port 0.
    """

    def __init__(self, wanted: Metrics) -> None:
        """Start the server. Raises ConfigError for an invalid address, unusable files or an
        address beyond loopback without certificates, LinkError for a port in use, MissingExtra.
        """
        with read_setting():
            where = parse_listen_address(wanted.listen, "metrics.listen", "127.0.0.1:9464")
        tls = make_tls_context(wanted, local=where.local)
        if tls is not None:
            disk.warn_if_public(Path(wanted.key), "the key of the metrics' certificate")
        with require_extra("metrics.listen", "coordinator"):
            import uvicorn  # noqa: F401  # of the process
            from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        problem = f"metrics cannot be served at {wanted.listen}"
        with explain_os_errors(
            LinkError, problem, remedy="choose another port with metrics.listen"
        ):
            listening = listen(where.host, where.port)
        self._folder = tempfile.TemporaryDirectory(prefix="espalier-metrics-")
        self._file = Path(self._folder.name) / "metrics.txt"
        self._write()
        arguments = [str(self._file), wanted.certificate, wanted.key, wanted.ca]
        self._process = ServerProcess("metrics", __name__, listening, arguments)
        self._poller = Poller(self._process.name, self._poll)
        host = f"[{where.host}]" if ":" in where.host else where.host
        self.address = f"{'https' if tls else 'http'}://{host}:{self._process.port}/metrics"

    def close(self) -> None:
        self._poller.close()
        self._process.close()
        self._folder.cleanup()

    def _poll(self) -> None:
        """Raises OSError."""
        self._process.restart_if_dead()
        self._write()

    def _write(self) -> None:
        from prometheus_client import generate_latest

        part = self._file.with_suffix(".part")
        part.write_bytes(generate_latest(self.registry))
        part.replace(self._file)


def make_tls_context(wanted: Metrics, *, local: bool) -> ssl.SSLContext | None:
    """Return the server's TLS context; None without certificates. Raises ConfigError."""
    files = [wanted.certificate, wanted.key, wanted.ca]
    if not local and not all(files):
        raise ConfigError(
            f"metrics.listen = '{wanted.listen}' opens the metrics to the network: set "
            "metrics.certificate, metrics.key and metrics.ca to require client certificates, or "
            "listen on loopback behind a proxy or an SSH tunnel"
        )
    if missing := [path for path in files if path and not Path(path).is_file()]:
        raise ConfigError(f"metrics: the file {missing[0]} does not exist")
    if not all(files):
        return None
    problem = "metrics: the certificate, its key and the authority do not match"
    with explain_os_errors(ConfigError, problem):  # SSLError is an OSError
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=wanted.ca)
        context.load_cert_chain(wanted.certificate, wanted.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def main(descriptor: int, file: Path, *files: str) -> None:
    """Serve a file of metrics at an open socket until standard input closes. files: certificate,
    key and authority, or empty.
    """
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from federated.runtime.web_server import Limits, WebServer

    async def show(request: Request) -> Response:
        try:
            age, text = time.time() - file.stat().st_mtime, file.read_bytes()
        except OSError as error:
            return PlainTextResponse(f"no metrics: {error.strerror}\n", 503)
        if age > STALE:
            return PlainTextResponse(f"the coordinator hangs: no metrics for {age:.0f} s\n", 503)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    ended = become_server()
    limits = Limits(
        MAX_CONNECTIONS,
        CLOSE_TIMEOUT,
        lifetime=CONNECTION_TIMEOUT,
        per_address=MAX_PER_ADDRESS,
        rate=MAX_RATE,
        requests=MAX_REQUESTS,
    )
    certificate, key, ca = files
    tls = make_tls_context(Metrics(certificate=certificate, key=key, ca=ca), local=True)
    app = Starlette(routes=[Route("/metrics", show)])
    server = WebServer(app, socket.socket(fileno=descriptor), limits, tls=tls)
    while not ended.wait(1):
        if not server.alive:
            sys.exit("the server stopped")
    server.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
