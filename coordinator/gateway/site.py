"""The site of a gateway: its broker's link, its devices, and their combined profile."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from coordinator.access.broker_setup import BrokerAccess
from coordinator.assign.eligibility import Eligibility
from coordinator.assign.majority_network import find_majority
from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.run_clock import RunClock
from coordinator.fleet.update_reception import Intake
from coordinator.gateway.site_profile import GatewayFacts, combine_profiles, select_alike
from coordinator.gateway.site_rounds import SiteRounds
from coordinator.observe.events import (
    AgentJoined,
    AgentLeft,
    AgentRefused,
    Event,
    LeaseExpired,
    Rejected,
    TaskFailed,
)
from coordinator.round.round_state import Rules
from coordinator.settings.config import Config
from coordinator.trust.configured_defences import Defences
from coordinator.trust.norm_and_privacy_tables import open_tables
from federated.errors import FleetError
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count
from federated.task import Profile
from federated.wire import messages
from federated.wire.codecs.raw import RAW
from federated.wire.link import Link
from models.families.catalogue import has_family
from models.submodel import Network

__all__ = ["Site"]

log = logging.getLogger(__name__)

POLL = 0.1  # seconds to wait for a message of a device
MEASURING = 300.0  # seconds for the devices to measure themselves after the run changed
# least seconds for the other devices once half of them have measured themselves; they get at least
# as long as that half took, and take part later if they need more
GRACE = 10.0
FAREWELL = 5.0  # seconds for the devices to leave before their broker stops
NORMS = "norms.sqlite"  # of the devices' updates, by which later ones are bounded
DEFAULTS = Config().robust
NEVER = threading.Event()  # is not set
BURST = 64  # messages of devices before the uplink is looked at again


class Site:
    """The devices behind a gateway. To them, the gateway is the coordinator of the run.

    rounds: carries out the gateway's tasks.
    """

    def __init__(
        self,
        link: Link,
        access: BrokerAccess,
        card: messages.Run,
        folder: Path,
        gateway: GatewayFacts,
        say: Say,
    ) -> None:
        """link, access: to the site's broker. card: of the run at the coordinator. folder: for
        weights and updates. Raises FleetError for a run that no gateway can join.
        """
        self._session, self._gateway, self._say = secrets.token_hex(8), gateway, say
        self._fleet = MessageLoop(
            link,
            self._adapt(card),
            folder,
            Intake(rules=Rules(durable=False)),
            publish=self._report,
            clock=RunClock(),
        )
        self._fleet.follow(broker_access=access)
        self._combined: tuple[tuple[Profile, ...], float, Profile] | None = None
        self._alike: tuple[tuple[Profile, ...], tuple[Profile, ...]] = (), ()  # all; those alike
        self._warned = ""
        self._tables = open_tables(folder / NORMS)
        self._defences = Defences(Config(), self._tables, folder, 0)
        self.follow(card)
        self.rounds = SiteRounds(self._fleet, self._defences, self.list_alike, say)
        self._admit(card.network)
        self._fleet.endpoint.announce()

    def _adapt(self, card: messages.Run) -> messages.Run:
        """Return the card for the devices. Their updates are not compressed: one rounding, by the
        gateway, is enough. Raises FleetError for a run that no gateway can join.
        """
        if card.menu:
            raise FleetError(
                f"run '{card.run}' cannot use gateways: method {card.method} asks each device "
                "about its data when it joins; start the run with another method, such as fedavg"
            )
        if card.network is not None and not has_family(card.network.family):
            raise FleetError(
                f"run '{card.run}' trains the network '{card.network.family}', which this gateway "
                "lacks: install the package that provides it; networks given as module:function "
                "are not supported"
            )
        return replace(card, session=self._session, codec=RAW.name, heartbeat=0.0)

    def follow(self, card: messages.Run) -> None:
        """Apply the limits of the run to the devices' updates from now on."""
        robust = self._defences.config.robust
        bound = DEFAULTS.bound if card.bound is None else card.bound
        examples = DEFAULTS.examples if card.examples is None else card.examples
        if (robust.bound, robust.examples) != (bound, examples):
            limits = structs.replace(DEFAULTS, bound=bound, examples=examples)
            self._defences.config = structs.replace(Config(), robust=limits)

    def _admit(self, network: Network | None) -> None:
        self._fleet.admit(Eligibility(Config(), network))

    @property
    def backlog(self) -> int:
        """Number of messages that wait to be handled."""
        return self._fleet.link.backlog

    @property
    def devices(self) -> int:
        """Number of devices that can be given a task."""
        return len(self._fleet.list_ready())

    def list_profiles(self) -> tuple[Profile, ...]:
        """Return the profiles of all devices that the run can use, by name. Those that left count:
        what they delivered may be in an update that is on its way.
        """
        agents = self._fleet.agents
        known = [agents[name] for name in sorted(agents) if not agents[name].refused]
        return tuple(agent.profile for agent in known if agent.profile is not None)

    def list_alike(self) -> tuple[Profile, ...]:
        """Return the profiles of the devices that the gateway speaks for and gives tasks to."""
        known, (before, alike) = self.list_profiles(), self._alike
        if known != before:
            self._alike = known, select_alike(known)
            for one in known:
                if one not in self._alike[1] and (one in alike or one not in before):
                    self._say(
                        f"device {one.agent} gets no tasks, because it differs too much from most "
                        "devices of this site in memory, speed, or what its trainer can do: start "
                        "another gateway for such devices"
                    )
        return self._alike[1]

    # ---- as the device of an agent ---------------------------------------------------------------

    def describe(self) -> Profile:
        """Return the profile of the gateway with its present devices. Raises FleetError without
        any.
        """
        known = self.list_alike()
        if not known:
            raise FleetError("no device of this site measured itself for the run")
        if self._fleet.run.network is None:
            agreed = find_majority({one.agent: one.data for one in known})
            known = tuple(one for one in known if one.agent in agreed)
        if not known:
            raise FleetError(
                "the data of this site's devices do not fit together, and the run has no network "
                "yet that decides: give the coordinator data of its own, or join with devices that "
                "have data of one form"
            )
        ratio = self._defences.config.robust.examples
        if self._combined is None or self._combined[:2] != (known, ratio):
            self._combined = known, ratio, combine_profiles(self._gateway, known, ratio)
        return self._combined[2]

    def find_profile(self) -> Profile | None:
        """Return what `describe` does, or None after a warning: a device that joins with other data
        must not end the gateway.
        """
        try:
            found = self.describe()
        except FleetError as error:
            if str(error) != self._warned:
                log.warning("%s", error)
            self._warned = str(error)
            return None
        self._warned = ""
        return found

    def measure(
        self,
        card: messages.Run,
        stop: threading.Event = NEVER,
        alive: Callable[[], None] = lambda: None,
    ) -> Profile:
        """Return the profile of the gateway for the run. If the run changed, let the devices
        measure themselves again, and wait for most of them, or until `stop` is set. Raises
        FleetError.

        alive: called while waiting.
        """
        # the site's own number of devices decides on their heartbeats
        site_card = replace(self._adapt(card), heartbeat=self._fleet.run.heartbeat)
        if site_card != self._fleet.run:
            self._admit(card.network)
            self._fleet.reannounce(site_card)
            self._wait_for_measurements(stop, alive)
        return self.describe()

    def _wait_for_measurements(self, stop: threading.Event, alive: Callable[[], None]) -> None:
        began, counted = time.monotonic(), 0
        until = began + MEASURING
        while (now := time.monotonic()) < until and not stop.is_set():
            measured, online = self._count_measured()
            if 0 < online <= measured:
                return
            # a device that never measures itself must not stall the site
            if measured > counted and 2 * measured >= online:
                counted, until = measured, min(began + MEASURING, now + max(GRACE, now - began))
            alive()
            self._fleet.turn(POLL)

    def _count_measured(self) -> tuple[int, int]:
        """Return how many of the devices that are online have measured themselves, and how many are
        online.
        """
        online = [one for one in self._fleet.agents.values() if one.online and not one.refused]
        return sum(one.profile is not None for one in online), len(online)

    def explain_pause(self) -> str:
        """Return why the gateway accepts no task now; empty if it does."""
        return "" if self.devices else "no device of this site is connected"

    # ---- turns -----------------------------------------------------------------------------------

    def wait_for_devices(
        self,
        wanted: int,
        patience: float,
        stop: threading.Event,
        alive: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until some devices are ready, and return True, or until `stop` is set. Raises
        FleetError after `patience` seconds. alive: called while waiting.
        """
        until = time.monotonic() + patience
        while self.devices < wanted and not stop.is_set():
            if time.monotonic() > until:
                raise FleetError(
                    f"{self.devices} of {format_count(wanted, 'device')} joined this gateway "
                    f"within {patience:.0f} s: join with edge-agent at the site's broker, or "
                    "lower --min-devices"
                )
            alive()
            self._fleet.turn(POLL)
        return self.devices >= wanted

    def turn(self, timeout: float, is_uplink_busy: Callable[[], bool]) -> None:
        """Handle a message of a device, if one comes in time, and those that wait behind it, until
        the uplink has some.
        """
        self._fleet.turn(timeout)
        for _ in range(BURST):
            if not self.backlog or is_uplink_busy():
                return
            self._fleet.turn(0.0)

    def leave(self, reason: str, *, over: bool) -> None:
        """Tell the devices that the run is over, or let them wait for the gateway's return."""
        if over:
            self._fleet.dismiss(reason, FAREWELL)
        else:
            self._fleet.endpoint.withdraw()
        self._tables.close()

    def _report(self, event: Event) -> None:
        match event:
            case AgentJoined(agent):
                self._say(f"device {agent} joined")
            case AgentLeft(agent, reason):
                self._say(f"device {agent} {reason}")
            case AgentRefused(agent, reason):
                self._say(f"device {agent} was refused: {reason}")
            case TaskFailed(agent, submodel, outcome):
                log.warning("device %s: %s: %s", agent, submodel, outcome)
            case LeaseExpired(agent, seconds):
                log.warning("device %s: no progress for too long (%.0f s)", agent, seconds)
            case Rejected(source=source, reason=reason):
                log.warning("refused a message of %s: %s", source, reason)
