"""What Prometheus may ask of a coordinator, at `[metrics] listen`. By the library
prometheus-client, which is imported only where it is wanted.

Labels are words from fixed lists (states, outcomes, kinds of refusal): no agent is named, and what
agents say makes no new series. What is counted is counted since this coordinator started. Beyond
loopback it answers only those who show a certificate of the authority that is named.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.observe import events
from coordinator.observe.events import Publish
from coordinator.observe.now_file import STATES, TASKS
from coordinator.observe.readers.now import fleet_load
from coordinator.observe.readers.reader import ReaderContext
from coordinator.observe.records import RoundRecord
from coordinator.settings.services import Metrics
from federated.errors import ConfigError, LinkError, MissingExtra, UsageError
from federated.runtime import files as disk

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

__all__ = ["REFUSALS", "STAGES", "MetricsServer", "RunMeter", "count_metrics"]

STAGES = ("fold", "snapshot", "finish", "evaluate", "save")
REFUSALS = ("joining", "protocol", "malformed", "message", "unasked", "size", "update")
OUTCOMES = tuple(word for word in TASKS if word not in ("open", "lost", "received"))
# seconds, of what the coordinator computes
SHORT = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# seconds, of what fleets need
LONG = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
LASTING = 10.0  # seconds that a client may be silent
ENDING = 2.0  # seconds that ending the server may take


class RunMeter:
    """Counts events into a server's registry, and looks at the fleet when the server is asked."""

    def __init__(self, context: ReaderContext, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

        # a second series for each, which says no more than when the process started
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._context = context
        self._epsilon: float | None = None
        self._rounds = Counter("espalier_rounds", "Finished rounds.", registry=registry)
        self._round = Gauge(
            "espalier_round", "The round under way, or done last.", registry=registry
        )
        self._wanted = Gauge(
            "espalier_rounds_wanted", "Rounds that the run is to have.", registry=registry
        )
        self._seconds = Histogram(
            "espalier_round_seconds", "How long rounds took.", buckets=LONG, registry=registry
        )
        self._stages = Histogram(
            "espalier_stage_seconds",
            "How long the coordinator computed.",
            ["stage"],
            buckets=SHORT,
            registry=registry,
        )
        self._waited = Histogram(
            "espalier_update_seconds",
            "From a task to its accepted update.",
            buckets=LONG,
            registry=registry,
        )
        self._updates = Counter(
            "espalier_updates",
            "Tasks of finished rounds by what became of them.",
            ["outcome"],
            registry=registry,
        )
        self._accuracy = Gauge(
            "espalier_accuracy_ratio",
            "Of the submodels in the last evaluation.",
            ["of"],
            registry=registry,
        )
        self._rejects = Counter(
            "espalier_rejects",
            "Messages and updates that were not accepted, by kind.",
            ["reason"],
            registry=registry,
        )
        for stage in STAGES:
            self._stages.labels(stage)
        for kind in REFUSALS:
            self._rejects.labels(kind)
        for outcome in OUTCOMES:
            self._updates.labels(outcome)
        registry.register(self)

    def read(self, event: events.Event) -> None:
        match event:
            case events.RoundBegan(number, rounds, _):
                self._round.set(number)
                self._wanted.set(rounds)
            case events.UpdateFolded(entry):
                self._waited.observe(entry.seconds)
            case events.PrivacySpent(epsilon):
                self._epsilon = epsilon
            case events.StageTook(stage, seconds):
                self._stages.labels(stage if stage in STAGES else "other").observe(seconds)
            case events.RoundEnded(done):
                self._end(done)
            case events.Rejected(kind) if kind in REFUSALS:
                self._rejects.labels(kind).inc()
            case events.AgentTurnedAway():
                self._rejects.labels("joining").inc()
            case _:
                pass

    def _end(self, done: RoundRecord) -> None:
        from coordinator.observe.score_summary import overall

        self._rounds.inc()
        self._seconds.observe(done.seconds)
        for entry in done.entries:
            word = entry.outcome.partition(":")[0]
            self._updates.labels(word if word in OUTCOMES else "other").inc()
        if found := overall(done.scores):
            self._accuracy.labels("largest").set(found[-1].accuracy)
            self._accuracy.labels("worst").set(min(score.accuracy for score in found))

    # ---- when asked, in the server's thread ------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self._context.fleet is None:
            return
        now = fleet_load(self._context.fleet)
        agents = GaugeMetricFamily(
            "espalier_agents", "Agents that the coordinator knows, by state.", labels=["state"]
        )
        for state in STATES:
            agents.add_metric([state], now.agents.get(state, 0))
        yield agents
        tasks = GaugeMetricFamily(
            "espalier_tasks", "Tasks of the round under way, by how they stand.", labels=["state"]
        )
        for state in TASKS:
            tasks.add_metric([state], now.tasks.get(state, 0))
        yield tasks
        moved = CounterMetricFamily(
            "espalier_link_bytes",
            "Bytes through the coordinator's link, seen from the agents.",
            labels=["direction"],
        )
        moved.add_metric(["up"], now.bytes_up)
        moved.add_metric(["down"], now.bytes_down)
        yield moved
        yield GaugeMetricFamily(
            "espalier_transfers_receiving", "Updates that are coming in.", now.receiving
        )
        yield GaugeMetricFamily(
            "espalier_transfers_waiting", "Updates that wait for a slot.", now.waiting
        )
        yield GaugeMetricFamily(
            "espalier_link_queue_length",
            "Deliveries that came and are not handled yet.",
            now.queued,
        )
        yield GaugeMetricFamily(
            "espalier_spool_files", "Files in the coordinator's spool.", now.spool_files
        )
        yield GaugeMetricFamily(
            "espalier_spool_bytes", "Bytes in the coordinator's spool.", now.spool_bytes
        )
        if self._epsilon is not None:
            yield GaugeMetricFamily(
                "espalier_privacy_epsilon",
                "Privacy spent so far, epsilon at the configured delta.",
                self._epsilon,
            )


def count_metrics(context: ReaderContext) -> Publish:
    """Make a reader that counts for Prometheus. Raises ConfigError where no address is named."""
    if context.registry is None:
        raise ConfigError(
            "the reader 'metrics' has no address: set metrics.listen, such as 127.0.0.1:9464"
        )
    return RunMeter(context, context.registry).read


class MetricsServer:
    """Answers at `wanted.listen`, in a thread of its own, until it is closed. It is there before
    the run is: an address that cannot be had is said before anything else begins. registry: what it
    serves. address: with the port that it got for port 0.
    """

    def __init__(self, wanted: Metrics) -> None:
        """Raises UsageError for an address that is none, ConfigError for one that others could
        reach without a certificate or for unusable files, LinkError where the port is taken,
        MissingExtra.
        """
        host, port, local = listening(wanted.listen)
        options = secured(wanted, local=local)
        try:
            from prometheus_client import (
                CollectorRegistry,
                PlatformCollector,
                ProcessCollector,
                start_http_server,
            )
        except ModuleNotFoundError:
            raise MissingExtra("--metrics", "coordinator", "prometheus-client") from None
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        try:
            self._server, self._thread = start_http_server(port, host, self.registry, **options)
        except OSError as error:
            raise LinkError(
                f"metrics cannot be served at {wanted.listen}: "
                f"{error.strerror or error}; choose another port by --metrics"
            ) from error
        _be_brief(self._server)
        shown, scheme = f"[{host}]" if ":" in host else host, "https" if options else "http"
        self.address = f"{scheme}://{shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        # who connects and says nothing may hold it up: nobody waits for them
        threading.Thread(target=self._server.shutdown, daemon=True).start()
        self._thread.join(ENDING)
        self._server.server_close()


def secured(wanted: Metrics, *, local: bool) -> dict[str, Any]:
    """How the library is told of certificates; empty where none are asked for. Raises
    ConfigError.
    """
    files = {"certfile": wanted.certificate, "keyfile": wanted.key, "client_cafile": wanted.ca}
    if not local and not all(files.values()):
        raise ConfigError(
            f"metrics.listen = '{wanted.listen}' opens the metrics to the network: name "
            "metrics.certificate, metrics.key and metrics.ca, and only "
            "who shows a certificate of that authority is answered; or listen on "
            "loopback and let a proxy or an SSH tunnel through"
        )
    if missing := [path for path in files.values() if path and not Path(path).is_file()]:
        raise ConfigError(f"metrics: the file {missing[0]} does not exist")
    if not all(files.values()):
        return {}
    check_together(wanted)
    disk.look_over(Path(wanted.key), "the key of the metrics' certificate")
    return {**files, "client_auth_required": True}


def _be_brief(server: WSGIServer) -> None:
    """Who connects and says nothing keeps nobody waiting: TLS is spoken in a thread for each, as
    all else, and none for long.
    """
    if isinstance(server.socket, ssl.SSLSocket):
        # of the library, and missing in what is known of its types
        server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
    assert isinstance(server.RequestHandlerClass, type)
    server.RequestHandlerClass = type("Brief", (server.RequestHandlerClass,), {"timeout": LASTING})


def check_together(wanted: Metrics) -> None:
    """Before a socket is bound, which the library would leave open. Raises ConfigError."""
    try:
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=wanted.ca)
        made.load_cert_chain(wanted.certificate, wanted.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"metrics: the certificate, its key and the authority do not go together: {error}"
        ) from error


def listening(text: str) -> tuple[str, int, bool]:
    """Host, port, and whether only this machine can reach it. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(
            f"metrics.listen: expected HOST:PORT, such as 127.0.0.1:9464, found '{text}'"
        )
    try:
        found = {
            str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        }
    except OSError as error:
        raise UsageError(
            f"metrics.listen: expected an address of this machine, found '{host}': {error}"
        ) from error
    return (
        host,
        int(port),
        all(ipaddress.ip_address(one.split("%")[0]).is_loopback for one in found),
    )
