"""Count the metrics of a run for Prometheus (with the library prometheus-client).

Labels are words from fixed lists (states, outcomes, kinds of rejection). They name no agent, and no
message of an agent creates a new series. Counters start with this coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from coordinator.observe import events
from coordinator.observe.event_readers.now_json_writer import measure_load
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Publish
from coordinator.observe.now_json import STATES, TASKS
from coordinator.observe.round_records import RoundRecord
from federated.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Family = TypeVar("Family", "CounterMetricFamily", "GaugeMetricFamily")

__all__ = ["REFUSALS", "RunMeter", "count_metrics"]

STAGES = ("fold", "snapshot", "finish", "evaluate", "save")
REFUSALS = ("joining", "protocol", "malformed", "message", "unasked", "size", "update", "flood")
OUTCOMES = tuple(word for word in TASKS if word not in ("open", "lost", "received"))
# histogram buckets in seconds: computations of the coordinator
SHORT = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
# histogram buckets in seconds: rounds and updates
LONG = (1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)


class RunMeter:
    """A counter of events in a server's registry, which also reports the fleet when it is read."""

    def __init__(self, context: ReaderContext, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

        # the library adds the process's start time to each counter as a second series
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._context = context
        self._epsilon: float | None = None
        self._connected = {"broker": True, "store": True}
        gauge = partial(Gauge, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self._rounds = counter("espalier_rounds", "Finished rounds.")
        self._round = gauge("espalier_round", "The round in progress, or finished last.")
        self._wanted = gauge("espalier_rounds_wanted", "Number of rounds of the run.")
        self._wanted.set(context.config.rounds)
        self._seconds = histogram("espalier_round_seconds", "Duration of rounds.", buckets=LONG)
        self._stages = histogram(
            "espalier_stage_seconds",
            "Duration of the coordinator's computations.",
            ["stage"],
            buckets=SHORT,
        )
        self._waited = histogram(
            "espalier_update_seconds", "Time from a task to its accepted update.", buckets=LONG
        )
        self._updates = counter(
            "espalier_updates", "Tasks of finished rounds, by outcome.", ["outcome"]
        )
        self._accuracy = gauge(
            "espalier_accuracy_ratio", "Accuracy of submodels in the last evaluation.", ["of"]
        )
        self._rejects = counter(
            "espalier_rejects", "Rejected messages and updates, by kind.", ["reason"]
        )
        for metric, words in (
            (self._stages, STAGES),
            (self._rejects, REFUSALS),
            (self._updates, OUTCOMES),
        ):
            for word in words:
                metric.labels(word)
        registry.register(self)

    def read(self, event: events.Event) -> None:
        match event:
            case events.RoundStarted(number):
                self._round.set(number)
            case events.UpdateFolded(entry):
                self._waited.observe(entry.seconds)
            case events.PrivacySpent(epsilon):
                self._epsilon = epsilon
            case events.LinkChanged(lost, to):
                self._connected[to] = not lost
            case events.StageFinished(stage, seconds, _):
                self._stages.labels(stage if stage in STAGES else "other").observe(seconds)
            case events.RoundEnded(done):
                self._end(done)
            case events.Rejected(kind) if kind in REFUSALS:
                self._rejects.labels(kind).inc()
            case events.AgentRefused():
                self._rejects.labels("joining").inc()
            case _:
                pass

    def _end(self, done: RoundRecord) -> None:
        from coordinator.observe.fleet_scores import select_overall

        self._rounds.inc()
        self._seconds.observe(done.seconds)
        for entry in done.entries:
            word = entry.outcome.partition(":")[0]
            self._updates.labels(word if word in OUTCOMES else "other").inc()
        if found := select_overall(done.scores):
            self._accuracy.labels("largest").set(found[-1].accuracy)
            self._accuracy.labels("worst").set(min(score.accuracy for score in found))

    def collect(self) -> Iterator[Metric]:
        """Yield the fleet's present state. Called in the server's own thread."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self._context.fleet is None:
            return
        now = measure_load(self._context.fleet)
        agents = GaugeMetricFamily(
            "espalier_agents", "Agents that the coordinator knows, by state.", labels=["state"]
        )
        yield label(agents, {state: now.agents.get(state, 0) for state in STATES})
        tasks = GaugeMetricFamily(
            "espalier_tasks", "Tasks of the round in progress, by state.", labels=["state"]
        )
        yield label(tasks, {state: now.tasks.get(state, 0) for state in TASKS})
        link = CounterMetricFamily(
            "espalier_link_bytes",
            "Bytes through the coordinator's link, as seen from the agents.",
            labels=["direction"],
        )
        yield label(link, {"up": now.bytes_up, "down": now.bytes_down})
        gauges: list[tuple[str, str, float | None]] = [
            ("transfers_receiving", "Updates that are being received.", now.receiving),
            ("transfers_waiting", "Updates that wait for a slot.", now.waiting),
            (
                "link_up",
                "1 with a connection to the broker, 0 without one.",
                self._connected["broker"],
            ),
            (
                "store_up",
                "0 while the store of the transfers cannot be reached.",
                self._connected["store"],
            ),
            ("link_queue_length", "Received messages that are not handled yet.", now.queued),
            ("spool_files", "Files in the coordinator's spool.", now.spool_files),
            ("spool_bytes", "Bytes in the coordinator's spool.", now.spool_bytes),
            (
                "privacy_epsilon",
                "Privacy spent so far: epsilon at the configured delta.",
                self._epsilon,
            ),
        ]
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"espalier_{name}", text, value)


def label(family: Family, values: Mapping[str, float]) -> Family:
    """Add a value for each label to a metric."""
    for name, value in values.items():
        family.add_metric([name], value)
    return family


def count_metrics(context: ReaderContext) -> Publish:
    """Make a reader that counts for Prometheus. Raises ConfigError without an address."""
    if context.registry is None:
        raise ConfigError(
            "the reader 'metrics' has no address: set metrics.listen, such as 127.0.0.1:9464"
        )
    return RunMeter(context, context.registry).read
