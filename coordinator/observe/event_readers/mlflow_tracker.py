"""Send a run to an MLflow server: the configuration as parameters, the rounds as metrics; needs the
extra `mlflow`.

MLFLOW_TRACKING_URI names the server, MLFLOW_EXPERIMENT_NAME the experiment (default: `espalier`). A
resumed run continues its MLflow run; the run's folder holds its id.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.observe.event_readers.reader import ReaderContext, round_scalars
from coordinator.observe.events import Event, Publish, RoundEnded, RunEnded
from coordinator.observe.round_records import RoundRecord
from coordinator.settings.config import Config, to_json
from federated.errors import ConfigError, require_extra

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["FILE", "track_with_mlflow"]

log = logging.getLogger(__name__)

FILE = "mlflow-run.txt"
ADDRESS, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
STATUS = {"over": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
END_TIMEOUT = 10.0  # seconds that the end of a run waits for the server
MAX_VALUE = 500  # characters of a parameter's value that every server accepts
MAX_PARAMETERS, MAX_METRICS = 100, 1000  # per request


def track_with_mlflow(context: ReaderContext) -> Publish:
    """Make a reader that sends events from its own thread, since a server may be slow.

    If the server fails, an error is logged once and nothing more is sent. Raises MissingExtra, and
    ConfigError if no server is named.
    """
    if not os.environ.get(ADDRESS):
        raise ConfigError(
            f"the reader 'mlflow' has no server: set {ADDRESS}, such as http://localhost:5000"
        )
    with require_extra("the reader 'mlflow'", "mlflow", "mlflow-skinny"):
        from mlflow import MlflowClient
    events = queue.SimpleQueue[RoundEnded | RunEnded]()
    given = (MlflowClient(), context.config, context.folder / FILE, events)
    sender = threading.Thread(target=send, args=given, name="mlflow", daemon=True)
    sender.start()

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded | RunEnded):
            events.put(event)
        if isinstance(event, RunEnded):
            sender.join(END_TIMEOUT)

    return read


def send(
    client: MlflowClient,
    config: Config,
    file: Path,
    events: queue.SimpleQueue[RoundEnded | RunEnded],
) -> None:
    """Send events until the run ends or the server fails."""
    try:
        run = open_tracking_run(client, config, file)
        while isinstance(event := events.get(), RoundEnded):
            send_round(client, run, event.done)
        client.set_terminated(run, STATUS[event.phase])
    except Exception as error:  # the library can raise anything
        log.error(
            "MLflow at %s failed; no further rounds are sent: %s",
            os.environ.get(ADDRESS),
            error,
            extra={"event": "reader dropped", "reader": "mlflow"},
        )


def open_tracking_run(client: MlflowClient, config: Config, file: Path) -> str:
    """Return the id of the MLflow run: a resumed one, or a new one."""
    if file.is_file():
        run = file.read_text().strip()
        client.update_run(run, status="RUNNING")
        return run
    from mlflow.entities import Param

    name = os.environ.get(EXPERIMENT) or "espalier"
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    run = client.create_run(experiment, run_name=config.name).info.run_id
    file.write_text(f"{run}\n")
    parameters = [Param(key, value[:MAX_VALUE]) for key, value in flatten_settings(to_json(config))]
    for start in range(0, len(parameters), MAX_PARAMETERS):
        client.log_batch(run, params=parameters[start : start + MAX_PARAMETERS])
    return str(run)


def flatten_settings(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield settings by dotted key, without the broker's addresses and files."""
    for key, value in tree.items():
        if isinstance(value, dict) and not prefix and key != "broker":
            yield from flatten_settings(value, f"{key}.")
        elif key != "broker":
            yield f"{prefix}{key}", str(value)


def send_round(client: MlflowClient, run: str, done: RoundRecord) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, done.round) for key, value in round_scalars(done).items()]
    for start in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run, metrics=metrics[start : start + MAX_METRICS])
