"""Do what people ask for on the web page, with the functions of the commands `pause`, `stop`,
`pin`, `revoke` and `release`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import get_args

from coordinator.access.broker_setup import find_broker
from coordinator.access.configured_authority import revoke_agents
from coordinator.settings.service_tables import Broker
from coordinator.store import control_requests
from coordinator.store.run_database_reader import open_records
from coordinator.views.run_status import read_config
from federated.errors import ConfigError, UsageError
from federated.runtime.console import Say
from federated.runtime.unit_formatting import format_count

__all__ = ["COMMANDS", "carry_out"]

Given = Mapping[str, str]
Step = Callable[[Path, Given, Say], None]
"""A function that takes the run's folder, the fields of the request and a function that says what
happened.
"""


def carry_out(folder: Path, given: Given) -> list[str]:
    """Carry out `given["command"]`, a key of COMMANDS, and return what happened, in lines. Raises
    EspalierError.
    """
    lines = list[str]()
    COMMANDS[given["command"]](folder, given, lines.append)
    return lines


def send(folder: Path, given: Given, say: Say) -> None:
    """Pause, resume or stop the run."""
    command = next(one for one in get_args(control_requests.Command) if one == given["command"])
    control_requests.send_request(folder, command)


def pin(folder: Path, given: Given, say: Say) -> None:
    """Pin an agent to a submodel; without a submodel, remove its pin."""
    agent, submodel = read_field(given, "agent"), given.get("submodel", "")
    control_requests.pin_agent(folder, agent, submodel)
    say(
        f"{agent} gets {submodel} from the next round on"
        if submodel
        else f"the measurements of {agent} decide from the next round on"
    )


def revoke(folder: Path, given: Given, say: Say) -> None:
    """Revoke the certificates of an agent."""
    agent, broker = read_field(given, "agent"), read_broker(folder)
    if not broker.tls:
        raise ConfigError(
            f"run '{folder.name}' does not use certificates (broker.tls is false), so there is "
            "none to revoke"
        )
    counts, unknown = revoke_agents(broker, [agent])
    if unknown:
        raise UsageError(f"agent '{agent}' was never enrolled")
    say(f"{agent}: revoked {format_count(counts[agent], 'certificate')}")
    if broker.url:
        say(
            "the broker is external: give it the new revocation list (coordinator authority "
            "--for-broker DIR)"
        )


def release(folder: Path, given: Given, say: Say) -> None:
    """Release the last round, promote or withdraw a release, or collect the agents' reports. Does
    not wait for new reports: they are collected on request.
    """
    # with torch, which only an export needs
    from coordinator.release.rollout import ReleaseRequest, release_run

    command, share = given["command"], given.get("share", "").strip()
    request = ReleaseRequest(
        folder.name,
        given.get("broker", "").strip() or find_broker(read_broker(folder)),
        share=share or None if command == "release" else None,
        promote=command == "promote",
        rollback=command == "roll back",
        status=command == "collect reports",
        wait=0.0,
        force=given.get("force") == "yes",
    )
    release_run(request, folder.parent, say)


def read_field(given: Given, name: str) -> str:
    """Return a field of a request. Raises UsageError if it is missing or empty."""
    if not (value := given.get(name, "").strip()):
        raise UsageError(f"{name}: expected a name, found nothing")
    return value


def read_broker(folder: Path) -> Broker:
    """Return the settings of a run's broker."""
    with closing(open_records(folder.parent, folder.name)) as records:
        return read_config(records).broker


COMMANDS: Mapping[str, Step] = {
    **dict.fromkeys(get_args(control_requests.Command), send),
    "pin": pin,
    "revoke": revoke,
    **dict.fromkeys(("release", "promote", "roll back", "collect reports"), release),
}
"""Functions that carry out a command of the page, by its name."""
