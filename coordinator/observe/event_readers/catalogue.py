"""List the event readers by name, and find those that a run uses.

Every run has the readers in ALWAYS. `observe.readers` adds more: names in READERS, a
`module:function` that makes a reader, or entry points of the group `espalier.readers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.observe.event_readers.clock_warnings import watch_clock
from coordinator.observe.event_readers.csv_files import write_csv
from coordinator.observe.event_readers.log_output import write_log
from coordinator.observe.event_readers.mlflow_tracker import track_with_mlflow
from coordinator.observe.event_readers.now_json_writer import write_now
from coordinator.observe.event_readers.prometheus_metrics import count_metrics
from coordinator.observe.event_readers.reader import ReaderFactory
from coordinator.observe.event_readers.tensorboard import write_tensorboard
from coordinator.settings.config import Config
from federated.runtime.extension_errors import check_parameters, find
from models.extension_lookup import ExtensionPoint

__all__ = ["ALWAYS", "POINT", "READERS", "find_readers", "list_optional"]

POINT = ExtensionPoint("event reader", "espalier.readers")
READERS: Mapping[str, ReaderFactory] = {
    "clock": watch_clock,
    "csv": write_csv,
    "log": write_log,
    "metrics": count_metrics,
    "mlflow": track_with_mlflow,
    "now": write_now,
    "tensorboard": write_tensorboard,
}
ALWAYS = ("log", "now", "clock")


def list_optional() -> list[str]:
    """Return the names of the built-in readers that `observe.readers` adds to a run."""
    return sorted(READERS.keys() - {*ALWAYS, "metrics"})  # `metrics.listen` adds this one


def find_readers(config: Config) -> dict[str, ReaderFactory]:
    """Return the factories of a run's readers by name. Raises Unknown, and ConfigError for one that
    cannot be imported or has other parameters.
    """
    served = ("metrics",) if config.metrics.listen else ()
    names = dict.fromkeys((*ALWAYS, *served, *config.observe.readers))
    found = {name: find(POINT, name, READERS) for name in names}
    for name, make in found.items():
        check_parameters(POINT.noun, name, make, "context")
    return found
