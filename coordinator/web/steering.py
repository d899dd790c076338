"""Do what people ask for on the web page, with the functions of the commands `pause`, `stop`,
`pin`, `enroll`, `revoke` and `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import get_args

from coordinator.access.broker_address import find_broker
from coordinator.access.configured_authority import (
    enrol_devices,
    find_enrolment_address,
    open_authority,
    revoke_agents,
)
from coordinator.access.enrolment_list import Device, parse_names
from coordinator.audit_log import Actor
from coordinator.settings.service_tables import Broker
from coordinator.store import control_requests
from coordinator.store.run_database_reader import open_records
from coordinator.views.run_status import read_config
from coordinator.web.sign_in import Role
from federated.errors import ConfigError, UsageError
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count
from federated.wire.link import get_scheme
from federated.wire.links.catalogue import LINKS

__all__ = ["COMMANDS", "NEEDED_ROLES", "carry_out"]

TOKEN_LIFE = 3600.0  # seconds until a device must have enrolled
Given = Mapping[str, str]
Step = Callable[[Path, Given, Actor, Say], None]
"""A function that takes the run's folder, the fields of the request, who asks and a function that
says what happened.
"""


def carry_out(folder: Path, given: Given, by: Actor) -> list[str]:
    """Carry out `given["command"]`, a key of COMMANDS, and return what happened, in lines. Raises
    EspalierError.
    """
    lines = list[str]()
    COMMANDS[given["command"]](folder, given, by, lines.append)
    return lines


def send(folder: Path, given: Given, by: Actor, say: Say) -> None:
    """Pause, resume or stop the run."""
    command = next(one for one in get_args(control_requests.Command) if one == given["command"])
    control_requests.send_request(folder, command, by)


def pin(folder: Path, given: Given, by: Actor, say: Say) -> None:
    """Pin an agent to a submodel; without a submodel, remove its pin."""
    agent, submodel = read_field(given, "agent"), given.get("submodel", "")
    control_requests.pin_agent(folder, agent, submodel, by)
    say(
        f"{agent} gets {submodel} from the next round on"
        if submodel
        else f"the measurements of {agent} decide from the next round on"
    )


def enroll(folder: Path, given: Given, by: Actor, say: Say) -> None:
    """Create a token with which a device enrols within an hour."""
    device = Device(
        read_field(given, "agent"),
        TOKEN_LIFE,
        parse_names("group", given.get("groups", "").split()),
    )
    with closing(open_authority(read_broker(folder, "to issue"), create=False)) as authority:
        address = find_enrolment_address(authority, None, None)
        (token,) = enrol_devices(authority, [device], address, by=by)
    say(f"On the device, run `edge-agent join --token-file -` within an hour and paste: {token}")


def revoke(folder: Path, given: Given, by: Actor, say: Say) -> None:
    """Revoke the certificates of an agent."""
    agent, broker = read_field(given, "agent"), read_broker(folder, "to revoke")
    counts, unknown = revoke_agents(broker, [agent], by)
    if unknown:
        raise UsageError(f"agent '{agent}' was never enrolled")
    say(f"{agent}: revoked {format_count(counts[agent], 'certificate')}")
    if broker.url:
        say(
            "the broker is external: give it the new revocation list (coordinator authority "
            "--for-broker DIR)"
        )


def release(folder: Path, given: Given, by: Actor, say: Say) -> None:
    """Release the last round, promote or withdraw a release, or collect the agents' reports. Does
    not wait for new reports: they are collected on request. Nobody on the page chooses code: a
    broker's address can name a function (`federated.wire.links.catalogue`).
    """
    # with torch, which only an export needs
    from coordinator.release.release_request import ReleaseRequest
    from coordinator.release.rollout import release_run

    command, share = given["command"], given.get("share", "").strip()
    broker = given.get("broker", "").strip()
    if get_scheme(broker) not in LINKS:
        raise UsageError(f"broker: expected the address of an MQTT broker, found '{broker[:80]}'")
    request = ReleaseRequest(
        folder.name,
        broker or find_broker(read_broker(folder)),
        share=share or None if command == "release" else None,
        promote=command == "promote",
        rollback=command == "roll back",
        status=command == "collect reports",
        wait=0.0,
        force=given.get("force") == "yes",
        by=by,
    )
    release_run(request, folder.parent, say)


def read_field(given: Given, name: str) -> str:
    """Return a field of a request. Raises UsageError if it is missing or empty."""
    if not (value := given.get(name, "").strip()):
        raise UsageError(f"{name}: expected a name, found nothing")
    return value


def read_broker(folder: Path, certificates: str = "") -> Broker:
    """Return the settings of a run's broker. Raises ConfigError if it uses no certificates.

    certificates: what to do with them; empty: the broker may use none.
    """
    with closing(open_records(folder.parent, folder.name)) as records:
        config = read_config(records)
    broker = config.broker
    if certificates and not (broker.tls or config.phones.listen):
        raise ConfigError(
            f"run '{folder.name}' does not use certificates (broker.tls is false), so there is "
            f"none {certificates}"
        )
    return broker


COMMANDS: Mapping[str, Step] = {
    **dict.fromkeys(get_args(control_requests.Command), send),
    "pin": pin,
    "enroll": enroll,
    "revoke": revoke,
    **dict.fromkeys(("release", "promote", "roll back", "collect reports"), release),
}
"""Functions that carry out a command of the page, by its name."""

NEEDED_ROLES: Mapping[str, Role] = {
    **dict.fromkeys(COMMANDS, "operator"),
    "enroll": "admin",
    "revoke": "admin",
}
"""The least role that may give a command."""
