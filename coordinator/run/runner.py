"""Execute a prepared run over any link: announce it, choose its network, and run its rounds."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from coordinator.access.broker_setup import BrokerAccess
from coordinator.access.configured_authority import get_group_reader
from coordinator.assign.decisions import LastDecisions
from coordinator.assign.eligibility import Eligibility
from coordinator.assign.majority_network import build_network
from coordinator.assign.submodel_pins import match_pins
from coordinator.broker.broker_profiles import find_profile, limit_heartbeats
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.training_graphs import TrainingGraphs
from coordinator.fleet.update_reception import Intake
from coordinator.http_transfers.transfer_urls import Transfers
from coordinator.observe.event_readers.run_readers import Oversight, oversee
from coordinator.observe.events import Publish
from coordinator.phases.evaluation import Evaluator
from coordinator.phases.run_context import ENDLESS, PATIENCE, RunContext
from coordinator.round.round_state import Round, Rules
from coordinator.run.network_choice import wait_for_network
from coordinator.run.rounds import Result, conduct
from coordinator.run.run_preparation import Prepared, make_weights, propose_menu
from coordinator.settings.config import Config, to_json
from coordinator.store.database import Facts
from coordinator.store.late_update_bases import PastStates
from coordinator.trust.configured_defences import Defences, check_leaks
from coordinator.trust.gateway_updates import explain_gateways
from coordinator.update_workers.worker_pool import WorkerPool, WorkerSettings
from federated.engine.late_updates import make_buffered
from federated.errors import ConfigError, EspalierError, LinkError, StoreError, Superseded
from federated.method import Method, Settings
from federated.methods.catalogue import list_loaded_hooks
from federated.methods.common.inactive_mechanisms import inactive
from federated.runtime.torch_import import spare_collection
from federated.settings_validation import list_changed
from federated.task import Recipe
from federated.trainer_capabilities import list_required_capabilities, name_hook
from federated.wire import messages
from federated.wire.link import Link
from models.menu import probes
from models.submodel import Network, Submodel

__all__ = ["RunOptions", "check_hooks", "choose_probes", "complete_card", "run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that depend on the process that executes it.

    broker_access: tells which certificates are revoked; None without certificates.
    patience: time limit of a phase without a deadline, in predicted seconds of its slowest task.
    device: where the coordinator computes.
    durable: whether received updates survive this process and a power cut. If not, an interrupted
        round starts over.
    clock: seconds, of any origin.
    urls: of transfers over HTTP; None: all use the link.
    workers: processes that receive updates; None: this one receives them.
    """

    broker_access: BrokerAccess | None = None
    patience: float = PATIENCE
    device: str = "cpu"
    durable: bool = True
    clock: Callable[[], float] = time.monotonic
    urls: Transfers | None = None
    workers: WorkerSettings | None = None


def run(
    prepared: Prepared,
    link: Link,
    read: Publish,
    bind: Callable[[MessageLoop], None] = lambda fleet: None,
    options: RunOptions = RunOptions(),
) -> Result:
    """Execute a run over a link.

    read: reader of all events.
    bind: called with the fleet once it exists.
    Raises Stopped if a user stopped the run (`coordinator.store.control_requests`); it can be
    resumed.
    """
    config = prepared.config
    with (
        spare_collection(),
        oversee(prepared.store.folder, config, read, prepared.metrics, options.clock) as oversight,
    ):
        timeouts = options.patience < ENDLESS
        rules = read_rules(prepared.method, config, durable=options.durable, timeouts=timeouts)
        fleet = assemble_fleet(prepared, link, oversight, rules, options)
        with closing(fleet.inbox):
            fleet.follow(oversight.control, options.broker_access)
            bind(fleet)
            oversight.context.fleet = fleet
            return _announce(prepared, fleet, oversight, options)


def read_rules(method: Method, config: Config, *, durable: bool, timeouts: bool) -> Rules:
    """Return the rules of a run. durable, timeouts: see `Rules`."""
    fleet, late = config.fleet, "buffered" in method.allows
    if fleet.late == "take" and fleet.mode == "sync" and not late:
        log.warning(
            "discarding late updates despite fleet.late = 'take': not supported by method %s: %s",
            method.name,
            method.forbids["buffered"],
        )
    stale = fleet.staleness if late and (fleet.late == "take" or fleet.mode == "buffered") else -1
    return Rules(
        stale=stale,
        every=config.journal.every,
        most=config.journal.waiting,
        durable=durable,
        timeouts=timeouts,
        beats=limit_heartbeats(find_profile(config.broker.profile)),
    )


def assemble_fleet(
    prepared: Prepared, link: Link, oversight: Oversight, rules: Rules, options: RunOptions
) -> MessageLoop:
    """Return the fleet behind a link, with the run's card."""
    config, method, store = prepared.config, prepared.method, prepared.store
    network = store.read_facts().network or (
        build_network(config, [prepared.data.card()]) if prepared.data is not None else None
    )
    card = messages.Run(
        run=config.name,
        method=method.name,
        model=config.model.name,
        network=network,
        calibration=choose_probes(network, method, config.settings),
        batch=config.settings["batch"],
        session=secrets.token_hex(8),
        codec=config.wire.codec,
        heartbeat=Round(rules).heartbeat,
        bound=config.robust.bound,
        examples=config.robust.examples,
    )
    card = complete_card(card, method, config.settings)
    epoch, wanted = store.next_epoch(time.time()), options.workers
    intake = Intake(
        store.next_session(),
        epoch,
        config.wire.slots,
        config.wire.chunk,
        rules,
        store.journal if rules.durable else None,
        options.urls,
        None
        if wanted is None
        else WorkerPool(wanted, epoch, sync=rules.durable, lock=store.folder),
    )
    clock = RunClock(options.clock)
    return MessageLoop(link, card, store.spool, intake, publish=oversight.publish, clock=clock)


def _announce(
    prepared: Prepared, fleet: MessageLoop, oversight: Oversight, options: RunOptions
) -> Result:
    """Announce the run and conduct it. When it ends, tell agents whether to wait for a coordinator
    that resumes it. Raises Superseded, and tells them nothing, if another one took over the run.
    """
    try:
        fleet.admit(Eligibility(prepared.config, groups=get_group_reader(prepared.config.broker)))
        fleet.endpoint.announce()
        return _conduct(prepared, fleet, oversight, options)
    except (LinkError, Superseded):
        raise
    except BaseException as error:
        if isinstance(error, StoreError):
            with suppress(StoreError):  # a removed lock is no other coordinator
                # it fails to write what a standby replaced or removed meanwhile
                prepared.store.check_lock()
        # after a full disk or an interrupt the run can be resumed, so agents wait
        if isinstance(error, EspalierError) and not isinstance(error, StoreError):
            fleet.dismiss(f"the run ended: {error}")
        else:
            fleet.endpoint.withdraw()
        raise


def _conduct(
    prepared: Prepared, fleet: MessageLoop, oversight: Oversight, options: RunOptions
) -> Result:
    """Make the values that all rounds share, and run the rounds."""
    config, method, store = prepared.config, prepared.method, prepared.store
    settings = config.settings
    network = learn_network(prepared, fleet, oversight.publish, settings)
    menu = propose_menu(method, network, settings)
    check_leaks(config, menu, known=prepared.data is not None)
    for reason in inactive(method, menu, settings):
        log.warning("%s: %s", method.name, reason)
    reach, defaults = list_reach(method, menu, settings), to_json(Config())
    store.write_facts(Facts(to_json(config), network, menu, reach, defaults))
    first = [method.start(make_weights(config, network, method), menu, settings)]
    recipes = [method.recipe(first[0], one) for one in menu]
    check_hooks(method, recipes)
    needed = frozenset[str]().union(*map(list_required_capabilities, recipes))
    hooks = method.hooks
    exported = {name_hook(hooks.name)} if hooks is not None and hooks.plain else set[str]()
    gateways = cache(partial(judge_gateways, prepared, network, menu))
    groups = get_group_reader(config.broker)
    fleet.admit(Eligibility(config, network, needed, frozenset(exported), gateways, groups))
    past = (
        PastStates(store, first[0], config.fleet.staleness)
        if fleet.round.rules.stale >= 0
        else None
    )
    with closing(TrainingGraphs(fleet.endpoint.slots, store.folder / "graphs")) as graphs:
        run = RunContext(
            config,
            method if past is None else make_buffered(method, past.base),
            menu,
            fleet,
            store,
            oversight.publish,
            oversight.control,
            Defences(config, store.trust, store.folder / "kept", store.rounds_done + 1),
            past,
            match_pins(menu, config.assign.submodels),
            tuple(recipes),
            graphs,
            LastDecisions(),
            options.patience,
        )
        return conduct(run, Evaluator(run, prepared.data, options.device), first.pop)


def check_hooks(method: Method, recipes: Collection[Recipe]) -> None:
    """Check that the hooks of a method fit its recipes. Warn about hooks that no recipe names.

    Raises ConfigError for hooks that devices would not find, or would confuse with others.
    """
    own, named = method.hooks, {recipe.hook for recipe in recipes} - {""}
    if foreign := sorted(named - ({own.name} if own else set())):
        raise ConfigError(
            f"method {method.name}: a recipe names the hooks '{foreign[0]}', expected "
            f"{repr(own.name) if own else 'none'}: set the field `hooks` of the method to them, or "
            "correct `hook` in the recipe"
        )
    if own and list_loaded_hooks().get(own.name, own) != own:
        raise ConfigError(
            f"method {method.name}: other hooks have the name '{own.name}' already: choose another "
            "name for `Hooks`, and for `hook` in the recipe"
        )
    if own and own.train and not named:
        log.warning(
            "%s: no recipe names the hooks '%s', so devices train without them: set `hook` in the "
            "recipe",
            method.name,
            own.name,
        )


def judge_gateways(prepared: Prepared, network: Network, menu: Sequence[Submodel]) -> str:
    """Return why a run cannot use gateways; empty if it can. It makes the first state anew, for
    runs without a gateway shall not keep it.
    """
    config, method = prepared.config, prepared.method
    first = method.start(make_weights(config, network, method), menu, config.settings)
    return explain_gateways(config, method, first, menu)


def list_reach(
    method: Method, menu: Sequence[Submodel], settings: Settings
) -> dict[str, tuple[str, ...]]:
    """Return, for each submodel of the menu, the submodels that its updates train, without
    branches.
    """
    return {
        one.unowned.name: tuple(
            dict.fromkeys(other.plain.name for other in method.trains(settings, menu, one))
        )
        for one in menu
    }


def learn_network(
    prepared: Prepared, fleet: MessageLoop, publish: Publish, settings: Settings
) -> Network:
    """Return the largest network: from the run's card, or from the data of the first agents. In the
    latter case, add it to the card.
    """
    config, method = prepared.config, prepared.method
    if fleet.run.network is not None:
        return fleet.run.network
    network = wait_for_network(fleet, config, publish)
    card = replace(fleet.run, network=network, calibration=choose_probes(network, method, settings))
    fleet.reannounce(complete_card(card, method, settings))
    return network


def choose_probes(
    network: Network | None, method: Method, settings: Settings
) -> tuple[Submodel, ...]:
    """Return the small submodels, of the least and the greatest depth, that agents measure instead
    of large ones.
    """
    if network is None:
        return ()
    depths = [
        max((sum(section) for section in submodel.mask), default=1)
        for submodel in propose_menu(method, network, settings)
    ]
    return probes(network, sorted({min(depths), max(depths)}), method.features)


def complete_card(card: messages.Run, method: Method, settings: Settings) -> messages.Run:
    """Return the card with the method's settings, and with its menu if the method surveys devices
    and the network is known.
    """
    surveys = (
        card.network is not None and method.hooks is not None and method.hooks.survey is not None
    )
    return replace(
        card,
        settings=list_changed(settings),
        menu=method.menu(card.network, settings) if surveys and card.network is not None else (),
    )
