"""Check the connection to the broker and the coordinator step by step, from DNS, TCP and TLS to
the clock, up to the first failure that the next steps depend on. `examine` adds the checks of the
device: all of `edge-agent doctor`.

The device joins no run; it only requests an echo from the coordinator.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from edge_agent.doctor.broker_checks import (
    check_coordinator,
    check_isolation,
    check_rights,
    find_card,
)
from edge_agent.doctor.device_checks import check_device
from edge_agent.doctor.extension_link_checks import check_link
from federated.errors import EspalierError, LinkError
from federated.install_command import pip_command
from federated.wire import messages, tls, topics
from federated.wire.checks.broker_capability_checks import Place, check_order, try_broker
from federated.wire.checks.check_result import Check, report_error
from federated.wire.checks.machine_checks import check_clock
from federated.wire.checks.network_checks import SOON, check_credentials, check_network
from federated.wire.checks.request_client import Client
from federated.wire.link import get_scheme
from federated.wire.mqtt_address import PORTS, MqttAddress, parse_mqtt_address

__all__ = ["check_connection", "examine"]

NO_RUN = "doctor"  # stands for a run in topics if none is found


def check_connection(broker: str, run: str | None, name: str) -> Iterator[Check | messages.Run]:
    """Yield the checks, and the run's card if there is one. Raises UsageError, ConfigError."""
    topics.probe(run or NO_RUN, name)  # rejects invalid names before the first check
    if get_scheme(broker) not in PORTS:
        yield from check_link(broker, run, name)
        return
    address = parse_mqtt_address(broker)
    for check in check_network(address):
        yield check
        if check.state == "fail":
            return
    found = [check_certificate(Path(address.cert), name)] if address.cert is not None else []
    try:
        client = Client(address, f"doctor-{name[:40]}-{secrets.token_hex(4)}")
    except EspalierError as error:
        yield from (one for one in found if one.state != "ok" or tls.REVOKED not in str(error))
        yield report_error("credentials", error)
        return
    yield from found
    with client:
        yield check_credentials(address, client)
        try:
            yield from check_run(client, address, run, name)
        except LinkError as error:
            yield report_error("broker", error)
    yield check_clock()


def check_run(
    client: Client, address: MqttAddress, run: str | None, name: str
) -> Iterator[Check | messages.Run]:
    """Yield the checks that need a connection to the broker. Raises LinkError if it restarts."""
    card, check = find_card(client, run)
    yield check
    if card is not None:
        yield card
    topic_run = card.run if card is not None else run or NO_RUN
    rights = check_rights(client, topic_run, name)
    yield rights
    yield check_isolation(client, topic_run)
    if card is not None:  # before large messages come to this client, too
        yield from check_coordinator(client, card.run, name)
    place = Place(address, topic_run, name)
    if rights.state == "ok":
        yield from try_broker(place)
    elif "." in place.topic:  # the broker may change the topic instead of denying it
        yield check_order(place)


def check_certificate(path: Path, name: str) -> Check:
    """Check the owner and the expiry of this device's certificate."""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return Check(
            "certificate",
            "warn",
            f"{path} is not checked",
            f"{pip_command('secure')} to check its expiry and renew it",
        )
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return Check(
            "certificate",
            "fail",
            f"{path} contains no certificate ({error})",
            "enrol this device (coordinator enroll, edge-agent join --token-file)",
            3,
        )
    common_names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    owners = [str(one.value) for one in common_names]
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / 86400
    found = f"of {', '.join(owners) or 'nobody'}, {days:.0f} days left"
    if name not in owners:
        return Check(
            "certificate",
            "fail",
            found,
            f"this agent's name is '{name}': set --name, or enrol this name",
            3,
        )
    if days < 0:
        return Check(
            "certificate",
            "fail",
            found,
            "enrol this device again (coordinator enroll, edge-agent join --token-file), or "
            "correct its clock",
            3,
        )
    if days < SOON:
        return Check("certificate", "warn", found, "edge-agent join renews it while it runs")
    return Check("certificate", "ok", found)


def examine(broker: str | None, run: str | None, name: str, store: Path) -> Iterator[Check]:
    """Run all checks and yield each result at once. Without a broker, check only the device.
    Raises UsageError for a malformed address or name, ConfigError for a link that cannot be loaded.
    """
    card: messages.Run | None = None
    if broker is not None:
        for result in check_connection(broker, run, name):
            if isinstance(result, messages.Run):
                card = result
            else:
                yield result
    yield from check_device(store, card)
