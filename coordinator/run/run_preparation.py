"""Prepare a run before agents connect: check its configuration and open its folder."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from coordinator.access.configured_authority import get_group_reader
from coordinator.assign import agent_filter
from coordinator.assign.majority_network import build_network
from coordinator.assign.submodel_pins import match_pins
from coordinator.broker.broker_profiles import check_profile
from coordinator.observe.event_readers.catalogue import find_readers
from coordinator.observe.event_readers.metrics_server import MetricsServer
from coordinator.settings.config import Config, to_json
from coordinator.settings.config_tables import AGENTS
from coordinator.settings.service_tables import Broker
from coordinator.store.database import Facts
from coordinator.store.run_folders import list_runs
from coordinator.store.run_store import Store
from coordinator.trust.configured_defences import add_defences, check_leaks
from federated.data import loading as data
from federated.data.dataset import Dataset
from federated.errors import ConfigError, read_setting
from federated.flag_and_argument_names import DATA
from federated.method import Method, Settings
from federated.methods.catalogue import METHODS, find_method
from federated.wire import topics
from federated.wire.codecs.catalogue import find_codec
from models.given_objects import strip_module
from models.pretrained import load
from models.submodel import Network, Submodel
from models.submodel_building import initial

__all__ = ["STARTED", "Prepared", "find_name", "make_weights", "prepare", "propose_menu"]

log = logging.getLogger(__name__)

STARTED = ("listen", "port", "passwords", "kind")  # settings of a broker that the run starts


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start.

    config: settings of the run.
    method: method of the run, with its defences.
    data: of the coordinator itself, or None.
    store: folder of the run, locked by this process.
    metrics: server of metrics, if configured.
    """

    config: Config
    method: Method
    data: Dataset | None
    store: Store
    metrics: MetricsServer | None = None

    def close(self, *, discard: bool = False) -> None:
        """Release the folder and the address of the metrics. discard: see `Store.close`."""
        self.store.close(discard=discard)
        if self.metrics is not None:
            self.metrics.close()


def prepare(config: Config, runs: Path, *, resume: bool) -> Prepared:
    """Check names, settings and data, bind the address of the metrics, and open the run's folder. A
    failure leaves nothing behind.

    The folder of a new run is created last. An existing one is locked first: another coordinator of
    the run has its addresses, too, and the error should name that coordinator.
    Raises Unknown, ConfigError, LinkError or StoreError.
    """
    with ExitStack() as undo, ExitStack() as meanwhile:
        store = Store.open(runs, config.name) if resume else None
        if store is not None:
            undo.callback(store.close)
            meanwhile.enter_context(store.renewing())  # loading the data may take long
            check_rounds(config, store.rounds_done)
        metrics = MetricsServer(config.metrics) if config.metrics.listen else None
        if metrics is not None:
            undo.callback(metrics.close)
        method, own = check_config(config)
        store = store or Store.create(
            runs, config.name, Facts(to_json(config), defaults=to_json(Config()))
        )
        undo.pop_all()
    return Prepared(config, method, own, store, metrics)


def check_rounds(config: Config, done: int) -> None:
    """Raise ConfigError if a resumed run would have fewer rounds than it has finished."""
    if config.rounds < done:
        raise ConfigError(
            f"rounds: expected at least the {done} that run '{config.name}' has finished, found "
            f"{config.rounds}"
        )


def check_config(config: Config) -> tuple[Method, Dataset | None]:
    """Check the configuration; return the method and the coordinator's own data. Raises Unknown,
    ConfigError.
    """
    with read_setting():
        topics.run(config.name)  # raises if the name cannot be a topic level
    check_broker(config.broker)
    check_profile(config)
    method = add_defences(find_method(config.method_name), config)
    if config.fleet.mode == "buffered" and (why := method.forbids.get("buffered")):
        able = sorted(name for name, made in METHODS.items() if "buffered" in made().allows)
        raise ConfigError(
            f"fleet.mode = 'buffered': not supported by method {method.name}: {why}; "
            f"supported methods: {', '.join(able)}"
        )
    find_readers(config)
    for codec in config.wire.codecs:
        find_codec(codec)  # raises Unknown, ConfigError
    if config.fleet.select:
        agent_filter.parse(
            config.fleet.select, get_group_reader(config.broker)
        )  # raises ConfigError
    own = (
        None
        if config.data.name == AGENTS
        else data.load_central(config.data.name, config.data.root)
    )
    if config.evaluate.calibrate == "coordinator" and own is None:
        raise ConfigError.naming(
            lambda spell: (
                "evaluate.calibrate = 'coordinator' needs data at the coordinator: name "
                f"some with {spell(DATA)}, or set evaluate.calibrate = 'fleet'"
            )
        )
    if own is None:
        check_leaks(config, (), known=False)  # again with the menu, once the agents are known
    else:
        network = build_network(config, [own.card()])
        menu = propose_menu(method, network, config.settings)
        match_pins(menu, config.assign.submodels)
        check_leaks(config, menu, known=True)
        if config.model.init:
            make_weights(config, network, method)
    return method, own


def propose_menu(method: Method, network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return the submodels that the method proposes. Raises Unknown, or ConfigError that names the
    method or a submodel with too long a name.
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
                "choose a model with a shorter name, or with fewer blocks"
            )
    return menu


def check_broker(broker: Broker) -> None:
    """Raise ConfigError for settings of a broker that the run starts, if it starts none. With tls,
    `listen` is also the address of the enrolment server.
    """
    for key in STARTED if broker.url else ():
        if key == "listen" and broker.tls:
            continue
        if getattr(broker, key) != getattr(Broker(), key):
            user = "; put user and password into the address" if key == "passwords" else ""
            raise ConfigError(
                f"broker.{key} and broker.url cannot be combined: broker.{key} is for a broker "
                f"that the run starts, and broker.url (--broker) is an existing one{user}"
            )


def find_name(config: Config, runs: Path) -> str:
    """Return a free name for a run, made of its method and data, and numbered if necessary."""
    method, data = map(strip_module, (config.method_name, config.data.name))
    # the path of data may contain any character
    base = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{method}-{Path(data).stem}")[:48].rstrip("-")
    taken = set(list_runs(runs))
    return next(
        name for name in (base, *(f"{base}-{i}" for i in range(2, 10_000))) if name not in taken
    )


def make_weights(config: Config, network: Network, method: Method) -> dict[str, Tensor]:
    """Return the weights before the first round: random from the seed, then loaded from a
    checkpoint if one is named. Raises ConfigError if it does not fit.
    """
    drawn = initial(network, config.seed, method.features)
    if not config.model.init:
        return drawn
    try:
        tensors, note = load(config.model.init, network, drawn)
    except (ValueError, OSError) as error:
        raise ConfigError(f"model.init: {error}") from error
    log.info("%s", note)
    return tensors
