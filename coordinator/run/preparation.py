"""What happens before the first agent is asked for anything: names, settings and data are checked,
and the run's folder is opened.
"""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from coordinator.assign import constraints
from coordinator.assign.data_cards import AGENTS, network_for
from coordinator.assign.offers import pinned
from coordinator.observe.readers.catalogue import find_readers
from coordinator.observe.readers.metrics import MetricsServer
from coordinator.settings.config import Config, to_json
from coordinator.store.database import Facts
from coordinator.store.run_folders import list_runs
from coordinator.store.store import Store
from coordinator.trust.defences import add_defences, check_leaks
from federated.data import catalogue as data
from federated.data.dataset import Dataset
from federated.errors import ConfigError
from federated.method import Method, Settings
from federated.methods.catalogue import METHODS
from federated.methods.catalogue import method as method_named
from federated.wire import topics
from federated.wire.codecs.catalogue import find_codec
from models.families.catalogue import initial
from models.pretrained import load
from models.submodel import Network, Submodel

__all__ = ["Prepared", "find_name", "make_weights", "prepare", "propose_menu"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What is known and held before any agent came.

    config: the run's settings.
    method: as the settings want it.
    held: the coordinator's own data, or None.
    store: the run's folder, held by this process.
    metrics: their server, if they are wanted.
    """

    config: Config
    method: Method
    held: Dataset | None
    store: Store
    metrics: MetricsServer | None = None

    def close(self, *, discard: bool = False) -> None:
        """Release the folder and the metrics' address. discard: see `Store.close`."""
        self.store.close(discard=discard)
        if self.metrics is not None:
            self.metrics.close()


def prepare(config: Config, runs: Path, *, resume: bool) -> Prepared:
    """Check names, settings and data, bind the metrics' address, and open the run's folder. What
    fails leaves nothing behind.

    A new run's folder is made last. One that exists is held first, because another coordinator of
    it also has its addresses.
    Raises UsageError, ConfigError, LinkError or StoreError.
    """
    with ExitStack() as undo:
        store = Store.open(runs, config.name) if resume else None
        if store is not None:
            undo.callback(store.close)
        metrics = MetricsServer(config.metrics) if config.metrics.listen else None
        if metrics is not None:
            undo.callback(metrics.close)
        method, held = check_config(config)
        store = store or Store.create(runs, config.name, Facts(to_json(config)))
        undo.pop_all()
    return Prepared(config, method, held, store, metrics)


def check_config(config: Config) -> tuple[Method, Dataset | None]:
    """Check what is configured; return the method and the coordinator's own data. Raises
    UsageError, ConfigError.
    """
    topics.run(config.name)  # a run's name is a level of topics, and a folder
    if config.broker.url and config.broker.passwords:
        raise ConfigError(
            "--passwords is for a broker that is started here; for one that runs, put "
            "them into --broker mqtt://user:password@host"
        )
    method = add_defences(method_named(config.method_name), config)
    if config.fleet.mode == "buffered" and (why := method.forbids.get("buffered")):
        able = sorted(name for name, made in METHODS.items() if "buffered" in made().allows)
        raise ConfigError(
            f"fleet.mode = 'buffered': method {method.name} takes no late updates: "
            f"{why}; methods that do: {', '.join(able)}"
        )
    find_readers(config)
    find_codec(config.wire.codec)  # raises Unknown, ConfigError
    if config.fleet.select:
        constraints.parse(config.fleet.select)  # raises ConfigError for a wrong one
    held = None if config.data.name == AGENTS else data.central(config.data.name, config.data.root)
    if config.evaluate.calibrate == "coordinator" and held is None:
        raise ConfigError(
            "evaluate.calibrate = 'coordinator' needs data at the coordinator: name "
            "some by --data, or let the fleet calibrate"
        )
    if held is not None:
        network = network_for(config, [held.card()])
        menu = propose_menu(method, network, config.settings)
        pinned(menu, config.assign.submodels)
        check_leaks(config, menu, known=True)
        if config.model.init:
            make_weights(config, network, method)
    return method, held


def propose_menu(method: Method, network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """The submodels that the method proposes. Raises Unknown, or ConfigError that names the method
    or the submodel whose name is too long.
    """
    try:
        menu = method.menu(network, settings)
    except ConfigError as error:
        if method.name in str(error):
            raise
        raise ConfigError(f"method {method.name}: {error}") from error
    for name in (submodel.unowned.name for submodel in menu):
        if len(name) > topics.UNOWNED:
            raise ConfigError(
                f"method {method.name}: expected names of submodels of at most "
                f"{topics.UNOWNED} characters, found {len(name)}: {name}; "
                "take a model of a shorter name, or of fewer blocks"
            )
    return menu


def find_name(config: Config, runs: Path) -> str:
    """A free name for a run: method and data, numbered where that is taken."""
    # a path may hold anything
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{config.method_name}-{Path(config.data.name).stem}")[
        :48
    ].rstrip("-")
    taken = set(list_runs(runs))
    return next(
        name for name in (base, *(f"{base}-{i}" for i in range(2, 10_000))) if name not in taken
    )


def make_weights(config: Config, network: Network, method: Method) -> dict[str, Tensor]:
    """The whole network before the first round: from its seed, and from a checkpoint if one is
    named. Raises ConfigError where that does not fit.
    """
    drawn = initial(network, config.seed, method.features)
    if not config.model.init:
        return drawn
    try:
        tensors, note = load(config.model.init, network, drawn)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--init {config.model.init}: {error}") from error
    log.info("%s", note)
    return tensors
