"""Start runs on simulated or real devices, and follow their events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.observe.events import Publish
from coordinator.run.background_run import Channel, EventStream
from coordinator.settings import config_tables
from coordinator.settings.service_tables import Broker
from coordinator.settings.simulation_table import Simulate
from espalier.argument_checks import check_is, check_path
from espalier.passed_object_names import name_data, name_method, name_model
from espalier.results import load_run
from federated.defaults import METHOD
from federated.errors import ArgumentError, ConfigError, require_extra
from models.given_objects import is_given

if TYPE_CHECKING:
    from torch import nn

    from coordinator.release.stored_run import StoredRun

__all__ = ["Fleet", "Run", "Simulation", "run"]

log = logging.getLogger(__name__)


class Simulation(Simulate, frozen=True, kw_only=True):
    """Devices in this program. Its fields are the settings of the table [simulate], such as
    `agents=4` or `partition="dirichlet:0.3"`; `coordinator schema` describes them all.

    processes: train in `workers` worker processes, as `coordinator simulate` does. Otherwise the
        devices train in this process, one after another; this needs no
        `if __name__ == "__main__"`, and accepts networks that a notebook defines.
    """

    processes: bool = False


class Fleet(config_tables.Fleet, frozen=True, kw_only=True):
    """Real devices, which join with `edge-agent join`. Its fields are the settings of the table
    [fleet], such as `min_agents=4` or `fraction=0.5`; `coordinator schema` describes them all.

    broker: address of an existing broker, such as "mqtt://user:password@host"; or settings of a
        broker that the run starts, as a record or a mapping (table [broker]); None: a broker on
        loopback.
    """

    broker: str | Broker | dict[str, Any] | None = None


class Run(EventStream):
    """A run in progress: an iterator of the records in `espalier.events`.

    A simulated run advances only while the program asks for events. A fleet does not wait: its
    events are queued. `close` stops the run so that it can be resumed (`run(..., resume=True)`).
    The end of a `with` block, the end of the program, and ctrl-C while the program waits for an
    event do the same.

    name: its name.
    folder: its folder.
    """

    def __init__(
        self, channel: Channel, execute: Callable[[Publish], object], folder: Path
    ) -> None:
        self.name, self.folder = folder.name, folder
        super().__init__(channel, execute)

    def result(self) -> StoredRun:
        """Wait until the run is over, and return it as `load_run` does. After `close`, return the
        rounds that were finished. Raises the error of the run; StoreError without a finished round.
        """
        for _ in self:
            pass
        return load_run(self.folder)


SIMULATION = Simulation()


def run(
    method: Callable[[], Any] | str = METHOD,
    model: nn.Module | Callable[[], nn.Module] | str | None = None,
    data: object = None,
    env: Simulation | Fleet = SIMULATION,
    *,
    runs: Path | str = "runs",
    resume: bool = False,
    **settings: Any,
) -> Run:
    """Start a run, and return an iterator of its events, whose `.result()` waits for the end.

    method: a name (`coordinator methods`), or a function that returns a `federated.method.Method`.
    model: the largest network: a module, a function that returns one, or a name. The devices of a
        fleet need its code, so it must be a name or a function of an installed module there.
    data: a name, a file or a folder (`coordinator start --data`), a function, or arrays: (x, y), or
        (x, y, x_held, y_held), with images as [n, channels, height, width] and y as whole numbers
        (classes) or floats (values). A simulation divides them among its devices. The coordinator
        of a fleet only evaluates on them; with "agents", it has no data.
    env: simulated or real devices.
    runs: folder of runs.
    resume: continue the stored run of this `name`, or the latest one.
    settings: settings of the configuration by name, with tables as mappings: `name="mine"`,
        `rounds=5`, `seed=1`, `train={"lr": 0.1, "widths": (0.5, 1.0)}` (also the method's own
        settings), `evaluate={"every": 1}`. `coordinator schema` lists the defaults.

    Raises ConfigError, Unknown, DataError and StoreError before it begins; MissingExtra. Iterating
    raises LinkError, FleetError and other errors that end the run.
    """
    with require_extra("espalier.run", "coordinator"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.run.launch import View, start_run
        from coordinator.run.stored_configuration import load_named
        from coordinator.simulate.simulation import simulate_run

    check_run_arguments(runs, resume, settings)
    folder = Path(runs)
    given = flatten(settings) | list_env_settings(env) | {"method.name": name_method(method)}
    if model is not None:
        stored = folder / settings.get("name", "") if resume else None
        given["model.name"] = name_model(model) if stored is None else name_stored(model, stored)
    if data is not None:
        given["data.name"] = name_data(data)
    if isinstance(env, Fleet):
        check_fleet_model(given.get("model.name", ""))
    config = load_named(ConfigSources(flags=list(given.items())), folder, resume=resume)
    sources = ConfigSources(flags=[*given.items(), ("name", config.name)])
    if isinstance(env, Fleet):
        start = partial(start_run, sources, folder, resume=resume)
        return Run(
            Channel(stepwise=False),
            lambda read: start(View(log.info, read=read)),
            folder / config.name,
        )
    stopping = threading.Event()
    here = None if env.processes else stopping
    simulate = partial(simulate_run, sources, folder, here, resume=resume)
    return Run(Channel(stepwise=True, stopping=stopping), simulate, folder / config.name)


def check_run_arguments(runs: object, resume: object, settings: Mapping[str, Any]) -> None:
    """Raise ArgumentError for arguments of `run` that the configuration does not check."""
    check_path("runs", runs)
    check_is("resume", resume, (bool,), "True or False")
    check_is("name", settings.get("name", ""), (str,), "the name of a run as text")


def check_fleet_model(name: str) -> None:
    """Raise ConfigError for a network that the devices of a fleet cannot import."""
    if is_given(name):
        raise ConfigError(
            "model: the devices of a fleet build the network from its code: put a function that "
            'returns it into a module that they can import, and name it as "module:function"'
        )


def name_stored(model: Any, folder: Path) -> str:
    """Return the name of the model of a run to resume. A module gets the name that the module had
    when the run was started, perhaps in another process and with other initial weights.

    folder: folder of a run, or of all runs; then the latest run is loaded.
    """
    from torch import nn

    from coordinator.release.stored_run import provide_resumed_model
    from coordinator.run.stored_configuration import load_stored
    from coordinator.store.run_folders import DATABASE, find_latest_run

    if not isinstance(model, nn.Module):
        return name_model(model)
    if not (folder / DATABASE).exists() and folder.is_dir():
        folder /= find_latest_run(folder)
    known = load_stored(folder.parent, folder.name).model.name
    provide_resumed_model(folder.name, known, model)
    return known


def flatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by key: those of tables as `table.key`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            plain = msgspec.to_builtins(value)
        except TypeError as error:
            raise ConfigError(
                f"{name}: expected plain numbers, texts, lists and mappings: {error}"
            ) from error
        if isinstance(plain, dict):
            found |= {f"{name}.{key}": one for key, one in plain.items()}
        else:
            found[name] = plain
    return found


def list_env_settings(env: Simulation | Fleet) -> dict[str, Any]:
    """Return the settings of `env` that differ from their defaults, by key; a resumed run keeps its
    own for the others. Raises ArgumentError if `env` is something else.
    """
    if not isinstance(env, Simulation | Fleet):
        raise ArgumentError("env", "Simulation(...) or Fleet(...)", env)
    table, default = (
        ("simulate", Simulation()) if isinstance(env, Simulation) else ("fleet", Fleet())
    )
    found = {
        f"{table}.{key}": msgspec.to_builtins(value)
        for key in env.__struct_fields__
        if key not in ("processes", "broker")
        and (value := getattr(env, key)) != getattr(default, key)
    }
    if isinstance(env, Fleet) and isinstance(env.broker, str):
        found["broker.url"] = env.broker
    elif isinstance(env, Fleet) and env.broker is not None:
        found |= flatten({"broker": env.broker})
    return found
