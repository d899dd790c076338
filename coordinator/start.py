"""From a configuration to a finished run: method, data, store, network, fleet, rounds; over any link.

Everything that a person may have got wrong is found before the first agent is asked for anything.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from coordinator import constraints
from coordinator.assignment import pinned
from coordinator.cards import misfit, network_for
from coordinator.config import Config, elsewhere, to_json
from coordinator.defences import Defences, check_covered, defended
from coordinator.evaluation import Evaluator
from coordinator.fleet import Fleet
from coordinator.observe.events import Publish
from coordinator.observe.metrics import Server
from coordinator.oversight import Oversight, overseen
from coordinator.rounds import PATIENCE, Result, Run, conduct, wait_for
from coordinator.runs import run_names
from coordinator.store import Facts, Store
from federated.common.inactive import inactive
from federated.data import catalogue as data
from federated.data.dataset import Dataset
from federated.errors import ConfigError, EspalierError, LinkError, StoreError, Unknown, UsageError
from federated.method import Method, configure
from federated.methods.catalogue import METHODS
from federated.methods.catalogue import method as method_named
from federated.task import Profile
from federated.wire import messages, topics
from federated.wire.link import Link
from models.families import initial, probes
from models.pretrained import load
from models.submodel import Network, Submodel

__all__ = ["AGENTS", "Prepared", "free_name", "prepare", "run"]

log = logging.getLogger(__name__)

AGENTS = "agents"  # as the name of the coordinator's data: it has none, the devices say what theirs look like


@dataclass(frozen=True)
class Prepared:
    """What is known and held before any agent came: the run's folder and, where they are wanted, the metrics' address."""

    config: Config
    method: Method
    held: Dataset | None
    store: Store
    metrics: Server | None = None

    def close(self, *, discard: bool = False) -> None:
        """Lets go of both. discard: as `Store.close` has it."""
        self.store.close(discard=discard)
        if self.metrics is not None:
            self.metrics.close()


def prepare(config: Config, runs: Path, *, resume: bool) -> Prepared:
    """Binds the metrics' address, checks names, settings and data, and opens the run's folder: what fails leaves nothing behind.

    A new run's folder is made last; one that is there is held first, since another coordinator of it has its other addresses too.
    Raises UsageError, ConfigError, LinkError or StoreError.
    """
    with ExitStack() as undo:
        store = Store.open(runs, config.name) if resume else None
        if store is not None:
            undo.callback(store.close)
        metrics = Server(config.metrics) if config.metrics.listen else None
        if metrics is not None:
            undo.callback(metrics.close)
        method, held = checked(config)
        store = store or Store.create(runs, config.name, Facts(to_json(config)))
        undo.pop_all()
    return Prepared(config, method, held, store, metrics)


def checked(config: Config) -> tuple[Method, Dataset | None]:
    """The method, and the coordinator's own data, which go with all that is configured. Raises UsageError, ConfigError."""
    topics.run(config.name)  # a run's name is a level of topics, and a folder
    if config.broker.url and config.broker.passwords:
        raise ConfigError("--passwords is for a broker that is started here; for one that runs, put them into --broker mqtt://user:password@host")
    method = defended(method_named(config.method_name), config)
    check(method, config)
    if config.fleet.mode == "buffered" and (why := method.forbids.get("buffered")):
        able = sorted(name for name, made in METHODS.items() if "buffered" in made().allows)
        raise ConfigError(f"fleet.mode = 'buffered': method {method.name} takes no late updates: {why}; methods that do: {', '.join(able)}")
    selecting(config)
    held = None if config.data.name == AGENTS else data.central(config.data.name, config.data.root)
    if config.evaluate.calibrate == "coordinator" and held is None:
        raise ConfigError("evaluate.calibrate = 'coordinator' needs data at the coordinator: name some by --data, or let the fleet calibrate")
    if held is not None:
        network = network_for(config, [held.card()])
        settings = configure(method, config.settings)
        menu = proposed(method, network, settings)
        pinned(menu, config.assign.submodels)
        check_covered(config, settings, menu, known=True)
        if config.model.init:
            beginning(config, network, method)
    return method, held


def selecting(config: Config) -> Callable[[Profile], str]:
    """Why an agent is not among those that the configuration selects, or nothing. Raises ConfigError."""
    if not config.fleet.select:
        return lambda profile: ""
    wanted = constraints.parse(config.fleet.select)
    return lambda profile: constraints.unmet(wanted, profile)


def check(method: Method, config: Config) -> None:
    """That the method knows the settings. Raises ConfigError, or UsageError that says where else a key belongs."""
    try:
        configure(method, config.settings)
    except Unknown as error:
        having = [name for name, made in METHODS.items() if error.name in made().settings]
        where = f"; a setting of {', '.join(having)}" if having else elsewhere(error.name)
        raise UsageError(f"{error}{where}") from error


def proposed(method: Method, network: Network, settings: Mapping[str, object]) -> tuple[Submodel, ...]:
    """The method's menu. Raises Unknown, or ConfigError that names the method, or the submodel whose name is too long to travel."""
    try:
        menu = method.menu(network, settings)
    except ConfigError as error:
        if method.name in str(error):
            raise
        raise ConfigError(f"method {method.name}: {error}") from error
    for name in (submodel.unowned.name for submodel in menu):
        if len(name) > topics.UNOWNED:
            raise ConfigError(
                f"method {method.name}: expected names of submodels of at most {topics.UNOWNED} characters, found {len(name)}: {name}; "
                "take a model of a shorter name, or of fewer blocks"
            )
    return menu


def free_name(config: Config, runs: Path) -> str:
    """A name for a run that has none: method and data, numbered where that is taken."""
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{config.method_name}-{Path(config.data.name).stem}")[:48].rstrip("-")  # a path may hold anything
    taken = set(run_names(runs))
    return next(name for name in (base, *(f"{base}-{i}" for i in range(2, 10_000))) if name not in taken)


def run(
    prepared: Prepared,
    link: Link,
    read: Publish,
    bind: Callable[[Fleet], None] = lambda fleet: None,
    *,
    patience: float = PATIENCE,
    device: str = "cpu",
    durable: bool = True,
) -> Result:
    """Conducts a run over a link: announces it, waits for agents, and goes through its rounds. `bind` is given the fleet, to show it.

    patience: times the predicted seconds after which a round without a deadline closes. device: where the coordinator itself computes.
    durable: whether what agents sent survives this process and a power cut; else a round that is interrupted begins anew.
    Raises Stopped where people asked for that (`coordinator.control`): the run can be resumed.
    """
    with overseen(prepared.store.folder, prepared.config, read, prepared.metrics) as sight:
        return _announced(prepared, link, sight, bind, patience, device, durable)


def _announced(
    prepared: Prepared, link: Link, sight: Oversight, bind: Callable[[Fleet], None], patience: float, device: str, durable: bool
) -> Result:
    config, method, store = prepared.config, prepared.method, prepared.store
    settings = configure(method, config.settings, seed=config.seed, rounds=config.rounds)
    known = store.read_facts().network or (network_for(config, [prepared.held.card()]) if prepared.held is not None else None)
    card = messages.Run(
        run=config.name,
        method=method.name,
        model=config.model.name,
        network=known,
        calibration=timed(known, method, settings),
        batch=int(settings["batch"]),
        session=secrets.token_hex(8),
    )
    card = asking(card, method, settings)
    fleet = Fleet(
        link,
        card,
        store.spool,
        attempt=store.next_session(),
        slots=config.wire.slots,
        chunk=config.wire.chunk,
        sync=durable,
        publish=sight.publish,
    )
    fleet.select = selecting(config)
    bind(fleet)
    sight.follow(fleet)
    try:
        fleet.announce()
        return _conduct(prepared, fleet, settings, sight, patience, device, durable)
    except LinkError:
        raise
    except StoreError:  # a disk that is full is no end: the agents wait for a coordinator that resumes
        fleet.withdraw()
        raise
    except EspalierError as error:
        fleet.dismiss(f"the run ended: {error}")
        raise
    except BaseException:
        fleet.withdraw()
        raise


def _conduct(
    prepared: Prepared, fleet: Fleet, settings: Mapping[str, object], sight: Oversight, patience: float, device: str, durable: bool
) -> Result:
    """The rounds, once the network is known: from the store, the coordinator's data or the agents' cards."""
    config, method, store, known = prepared.config, prepared.method, prepared.store, fleet.run.network
    if known is None:
        ready = wait_for(fleet, config.fleet.min_agents, config.fleet.wait, sight.publish)
        known = network_for(config, [agent.profile.data for agent in ready if agent.profile is not None])
        fleet.reannounce(asking(replace(fleet.run, network=known, calibration=timed(known, method, settings)), method, settings))
    network = known
    fleet.admit(lambda profile: misfit(profile.data, network) or unable(profile, method))
    menu = proposed(method, network, settings)
    check_covered(config, settings, menu, known=prepared.held is not None)
    for reason in inactive(method, menu, settings):
        log.warning("%s: %s", method.name, reason)
    store.write_facts(Facts(to_json(config), network, menu))
    evaluator = Evaluator(config, method, menu, fleet, prepared.held, patience, device)
    tensors = beginning(config, network, method)
    pins = pinned(menu, config.assign.submodels)
    defences = Defences(config, store.evidence, store.folder / "kept", store.rounds_done + 1)
    return conduct(Run(config, method, network, menu, fleet, store, evaluator, sight.publish, tensors, defences, pins, patience, durable, sight.helm))


def beginning(config: Config, network: Network, method: Method) -> dict[str, Tensor]:
    """The whole network before the first round: from its seed, and from a checkpoint if one is named. Raises ConfigError where that does not fit."""
    drawn = initial(network, config.seed, method.features)
    if not config.model.init:
        return drawn
    try:
        tensors, note = load(config.model.init, network, drawn)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--init {config.model.init}: {error}") from error
    log.info("%s", note)
    return tensors


def timed(network: Network | None, method: Method, settings: Mapping[str, object]) -> tuple[Submodel, ...]:
    """The small submodels that agents time, so that none needs to run a large one, at the least and the greatest depth."""
    if network is None:
        return ()
    depths = [max((sum(section) for section in submodel.mask), default=1) for submodel in proposed(method, network, settings)]
    return probes(network, sorted({min(depths), max(depths)}), method.features)


def asking(card: messages.Run, method: Method, settings: Mapping[str, object]) -> messages.Run:
    """The card with the method's settings, and with its menu where it surveys devices and the network is known."""
    surveys = card.network is not None and method.hooks is not None and method.hooks.survey is not None
    return replace(card, settings=settings, menu=method.menu(card.network, settings) if surveys and card.network is not None else ())


def unable(profile: Profile, method: Method) -> str:
    """Why a device cannot train by a method; empty where it can."""
    if method.hooks is None or not method.hooks.train or profile.runtime.startswith("torch"):
        return ""
    return f"method {method.name} trains with PyTorch alone, and this device has {profile.runtime}: pip install 'espalier[train]'"
