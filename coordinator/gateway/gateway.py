"""Run a gateway: join a run as an agent, and lead the devices of a site.

It is one thread that takes turns with both brokers. While the uplink is away, the devices go on
with their task. The update of the site waits in the gateway's spool until the coordinator has
answered it, and survives a restart of the gateway.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coordinator.access.broker_setup import BrokerAccess, open_broker_access
from coordinator.gateway.site import Site
from coordinator.gateway.site_profile import GatewayFacts
from coordinator.settings.service_tables import Broker
from edge_agent.access.http_access import describe_http_access
from edge_agent.join.participation import JoinResult, find_run, take_part
from federated.device.agent_event_loop import AgentEventLoop, Equipment
from federated.device.agent_run_files import Spool
from federated.errors import EspalierError
from federated.runtime.console import Say
from federated.runtime.service_manager import ServiceManager
from federated.runtime.unit_formatting import format_count
from federated.system.process_limits import raise_descriptor_limit
from federated.wire import envelope, messages, topics
from federated.wire.link import Link
from federated.wire.links.catalogue import open_link

__all__ = ["GatewayRequest", "run_gateway"]

STOPPED = "stopped"  # the reason of a gateway that its user stopped
TURN = 0.02  # seconds to wait for a message of one broker before the other is looked at


@dataclass(frozen=True)
class GatewayRequest:
    """Options of a gateway.

    name: of the gateway at the coordinator.
    broker: address of the coordinator's broker, with the gateway's credentials.
    site_broker: the site's broker: an existing one, or one to start.
    run: name of the run to join; None for the only one at the broker.
    min_devices: number of devices to wait for before it joins.
    wait: seconds to wait for a run, and for these devices.
    labels: of the gateway.
    spool: folder of what outlives the process.
    spool_limit: most bytes of weights and updates in it.
    """

    name: str
    broker: str
    site_broker: Broker
    run: str | None
    min_devices: int
    wait: float
    labels: tuple[str, ...]
    spool: Path
    spool_limit: int


@dataclass(frozen=True)
class GatewayResult:
    """The end of a gateway's part in a run.

    agent: its name.
    run: name of the run.
    updates: number of its trainings that the coordinator accepted.
    reason: why it ended.
    refused: whether the coordinator refused the gateway.
    devices: number of devices that took part.
    sent, received: bytes over the uplink by MQTT, without those of transfers over HTTP.
    """

    agent: str
    run: str
    updates: int
    reason: str
    refused: bool
    devices: int
    sent: int
    received: int


def run_gateway(request: GatewayRequest, stop: threading.Event, say: Say) -> GatewayResult:
    """Take part in a run with the devices of a site until it ends or `stop` is set. Raises
    EspalierError.
    """
    raise_descriptor_limit()
    folder = request.spool / request.name
    with ExitStack() as stack:
        manager = stack.enter_context(ServiceManager())
        manager.ready("looking for a run")
        access = open_site_broker(request.site_broker, folder, stack, say)
        client = f"scout-{request.name}-{secrets.token_hex(2)}"
        with closing(open_link(request.broker, client)) as scout:
            ping = partial(manager.ping, lambda: "looking for a run")
            card = find_run(scout, request.run, request.wait, say, ping)
        place = folder / card.run
        spool = stack.enter_context(
            closing(Spool(place / "uplink", lasting=True, limit=request.spool_limit))
        )
        session = secrets.token_hex(8)
        link = stack.enter_context(closing(open_uplink(request, card.run, session)))
        probe = link.probe(topics.probe(card.run, request.name))
        facts = GatewayFacts(request.name, request.labels, probe)
        near = stack.enter_context(closing(open_link(access.address, f"gateway-{card.run}")))
        site = Site(near, access, card, place / "site", facts, say)
        end = JoinResult(request.name, card.run, 0, STOPPED, False)
        try:
            say(f"waiting for {format_count(request.min_devices, 'device')} of this site")
            ping = partial(manager.ping, lambda: f"run {card.run}: waiting for devices")
            if site.wait_for_devices(request.min_devices, request.wait, stop, ping):
                http = describe_http_access(request.broker)
                measure = partial(site.measure, stop=stop, alive=ping)
                equipment = Equipment(measure, site.rounds, spool, site.explain_pause, http=http)
                participant = AgentEventLoop(link, card, request.name, session, equipment)
                end = take_turns(participant, site, manager, stop, say)
        finally:
            site.leave(end.reason, over=end.reason != STOPPED)
        sizes = len(site.list_profiles()), link.sent_bytes, link.received_bytes
        return GatewayResult(end.agent, end.run, end.updates, end.reason, end.refused, *sizes)


def open_site_broker(wanted: Broker, folder: Path, stack: ExitStack, say: Say) -> BrokerAccess:
    """Use or start the site's broker. Its errors name the flag of this command: --broker is that of
    the uplink. Raises EspalierError.
    """
    try:
        return stack.enter_context(open_broker_access(wanted, folder, say))
    except EspalierError as error:
        error.on_command_line = error.on_command_line.replace("--broker ", "--site-broker ")
        raise


def open_uplink(request: GatewayRequest, run: str, session: str) -> Link:
    """Open the gateway's link to the coordinator's broker. Its last will says that the gateway is
    disconnected.
    """
    will = envelope.encode(messages.Status(request.name, session, False))
    return open_link(
        request.broker, f"{run}-{request.name}", (topics.status(run, request.name), will)
    )


def take_turns(
    participant: AgentEventLoop,
    site: Site,
    manager: ServiceManager,
    stop: threading.Event,
    say: Say,
) -> JoinResult:
    """Serve both brokers until the run ends or `stop` is set."""
    link = participant.link

    def is_uplink_busy() -> bool:
        return link.backlog > 0

    def after_turn() -> float:
        site.turn(0.0 if is_uplink_busy() else TURN, is_uplink_busy)
        manager.ping(lambda: describe(participant, site))
        announce_devices(participant, site)
        return 0.0 if site.backlog else TURN

    return take_part(participant, stop, say, after_turn)


def announce_devices(participant: AgentEventLoop, site: Site) -> None:
    """Publish the gateway's profile again if its devices, or the limits of the run, changed."""
    site.follow(participant.state.card)
    profile = site.find_profile()
    if profile is not None and profile != participant.state.profile:
        participant.update_profile(profile)


def describe(participant: AgentEventLoop, site: Site) -> str:
    """Describe the gateway in one line for the service manager."""
    state = participant.state
    devices = format_count(site.devices, "device")
    updates = format_count(state.finished, "update")
    return f"run {state.card.run}: {devices}, {updates}" + ("" if state.online else ", uplink lost")
