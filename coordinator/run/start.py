"""From what was prepared to a finished run, over any link: announce the run, settle the network,
conduct the rounds.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from coordinator.access.broker_access import BrokerAccess
from coordinator.assign.data_cards import network_for
from coordinator.assign.eligibility import Eligibility
from coordinator.assign.offers import pinned
from coordinator.fleet.fleet import Fleet, Intake
from coordinator.fleet.run_clock import RunClock
from coordinator.observe.events import Publish
from coordinator.observe.readers.catalogue import Oversight, oversee
from coordinator.phases.context import RunContext
from coordinator.phases.evaluation import Evaluator
from coordinator.phases.patience import ENDLESS, PATIENCE
from coordinator.round.round import Rules
from coordinator.run.network_agreement import await_network
from coordinator.run.preparation import Prepared, make_weights, propose_menu
from coordinator.run.rounds import Result, conduct
from coordinator.settings.config import Config, to_json
from coordinator.store.database import Facts
from coordinator.store.past_states import PastStates
from coordinator.trust.defences import Defences, check_leaks
from federated.capabilities import required
from federated.engine.buffered import buffered
from federated.errors import EspalierError, LinkError, StoreError
from federated.method import Method, Settings
from federated.methods.common.inactive import inactive
from federated.wire import messages
from federated.wire.link import Link
from models.families.catalogue import probes
from models.submodel import Network, Submodel

__all__ = ["RunOptions", "choose_probes", "complete_card", "run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """How the rounds of a run are carried out.

    gate: knows whose certificates are revoked; None without certificates.
    patience: a phase without a deadline closes after this many times its predicted seconds.
    device: where the coordinator itself computes.
    durable: whether what agents sent survives this process and a power cut. If not, a round that is
        interrupted starts over.
    clock: seconds of any origin.
    """

    gate: BrokerAccess | None = None
    patience: float = PATIENCE
    device: str = "cpu"
    durable: bool = True
    clock: Callable[[], float] = time.monotonic


def run(
    prepared: Prepared,
    link: Link,
    read: Publish,
    bind: Callable[[Fleet], None] = lambda fleet: None,
    options: RunOptions = RunOptions(),
) -> Result:
    """Run the rounds of a run over a link. bind: called with the fleet, to show it.

    Raises Stopped if somebody asked for it (`coordinator.store.control`): the run can be resumed.
    """
    config = prepared.config
    with oversee(prepared.store.folder, config, read, prepared.metrics, options.clock) as sight:
        leases = options.patience < ENDLESS
        rules = read_rules(prepared.method, config, durable=options.durable, leases=leases)
        fleet = assemble_fleet(prepared, link, sight, rules, RunClock(options.clock))
        fleet.follow(sight.control, options.gate)
        bind(fleet)
        sight.follow(fleet)
        return _announce(prepared, fleet, sight, options)


def read_rules(method: Method, config: Config, *, durable: bool, leases: bool) -> Rules:
    """The run's rules, by its configuration. durable, leases: see `Rules`."""
    fleet, late = config.fleet, "buffered" in method.allows
    if fleet.late == "take" and fleet.mode == "sync" and not late:
        log.warning(
            "late updates are dropped, though late = 'take': method %s takes none: %s",
            method.name,
            method.forbids["buffered"],
        )
    stale = fleet.staleness if late and (fleet.late == "take" or fleet.mode == "buffered") else -1
    return Rules(
        stale=stale,
        every=config.journal.every,
        most=config.journal.waiting,
        durable=durable,
        leases=leases,
    )


def assemble_fleet(
    prepared: Prepared, link: Link, sight: Oversight, rules: Rules, clock: RunClock
) -> Fleet:
    """The coordinator's end of a link, with the run's card."""
    config, method, store = prepared.config, prepared.method, prepared.store
    known = store.read_facts().network or (
        network_for(config, [prepared.held.card()]) if prepared.held is not None else None
    )
    card = messages.Run(
        run=config.name,
        method=method.name,
        model=config.model.name,
        network=known,
        calibration=choose_probes(known, method, config.settings),
        batch=config.settings["batch"],
        session=secrets.token_hex(8),
        codec=config.wire.codec,
    )
    card = complete_card(card, method, config.settings)
    intake = Intake(
        store.next_session(),
        config.wire.slots,
        config.wire.chunk,
        rules,
        store.journal if rules.durable else None,
    )
    return Fleet(link, card, store.spool, intake, publish=sight.publish, clock=clock)


def _announce(prepared: Prepared, fleet: Fleet, sight: Oversight, options: RunOptions) -> Result:
    """Announce the run and conduct it. However it ends, agents hear whether to wait for another
    coordinator.
    """
    try:
        fleet.admit(Eligibility(prepared.config))
        fleet.endpoint.announce()
        return _conduct(prepared, fleet, sight, options)
    except LinkError:
        raise
    except StoreError:
        # a disk that is full is no end: the agents wait for a coordinator that resumes
        fleet.endpoint.withdraw()
        raise
    except EspalierError as error:
        fleet.dismiss(f"the run ended: {error}")
        raise
    except BaseException:
        fleet.endpoint.withdraw()
        raise


def _conduct(prepared: Prepared, fleet: Fleet, sight: Oversight, options: RunOptions) -> Result:
    """Make all that the rounds need, and run them."""
    config, method, store = prepared.config, prepared.method, prepared.store
    settings = config.settings
    network = learn_network(prepared, fleet, sight.publish, settings)
    menu = propose_menu(method, network, settings)
    check_leaks(config, menu, known=prepared.held is not None)
    for reason in inactive(method, menu, settings):
        log.warning("%s: %s", method.name, reason)
    store.write_facts(Facts(to_json(config), network, menu, list_reach(method, menu, settings)))
    first = method.start(make_weights(config, network, method), menu, settings)
    needed = frozenset[str]().union(*(required(method.recipe(first, one)) for one in menu))
    fleet.admit(Eligibility(config, network, needed))
    past = (
        PastStates(store, first, config.fleet.staleness) if fleet.round.rules.stale >= 0 else None
    )
    run = RunContext(
        config,
        method if past is None else buffered(method, past.base),
        menu,
        fleet,
        store,
        sight.publish,
        sight.control,
        Defences(config, store.trust, store.folder / "kept", store.rounds_done + 1),
        past,
        pinned(menu, config.assign.submodels),
        options.patience,
    )
    return conduct(run, Evaluator(run, prepared.held, options.device), first)


def list_reach(
    method: Method, menu: Sequence[Submodel], settings: Settings
) -> dict[str, tuple[str, ...]]:
    """For each submodel of the menu, the submodels that its updates train, without branches."""
    return {
        one.unowned.name: tuple(
            dict.fromkeys(other.plain.name for other in method.trains(settings, menu, one))
        )
        for one in menu
    }


def learn_network(
    prepared: Prepared, fleet: Fleet, publish: Publish, settings: Settings
) -> Network:
    """The largest network: as the run's card says, or of the data of the first agents that come.
    Then the card says it from now on.
    """
    config, method = prepared.config, prepared.method
    if fleet.run.network is not None:
        return fleet.run.network
    network = await_network(fleet, config, publish)
    card = replace(fleet.run, network=network, calibration=choose_probes(network, method, settings))
    fleet.reannounce(complete_card(card, method, settings))
    return network


def choose_probes(
    network: Network | None, method: Method, settings: Settings
) -> tuple[Submodel, ...]:
    """The small submodels that agents time, so that none needs to run a large one, at the least and
    the greatest depth.
    """
    if network is None:
        return ()
    depths = [
        max((sum(section) for section in submodel.mask), default=1)
        for submodel in propose_menu(method, network, settings)
    ]
    return probes(network, sorted({min(depths), max(depths)}), method.features)


def complete_card(card: messages.Run, method: Method, settings: Settings) -> messages.Run:
    """The card with the method's settings, and with its menu where it surveys devices and the
    network is known.
    """
    surveys = (
        card.network is not None and method.hooks is not None and method.hooks.survey is not None
    )
    return replace(
        card,
        settings=msgspec.to_builtins(settings),
        menu=method.menu(card.network, settings) if surveys and card.network is not None else (),
    )
