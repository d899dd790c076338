"""Follow the version of the software that a run wants on this device.

The owner of the device decides: nothing follows unless `edge-agent update --wanted` is started. The
run names a version and its digest, no more. The wheel comes from the package index that the owner
named, and passes the checks of every update. An older version than the current one is not
installed; a device only returns to the environment that it had before.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
from packaging.version import InvalidVersion, Version

from edge_agent.update import software_exchange
from edge_agent.update.environments import (
    ROLLED_BACK,
    Environments,
    Refusal,
    find_environments,
    hold_lock,
)
from edge_agent.update.health_check import Device, run_check
from edge_agent.update.installation import locate
from edge_agent.update.service_user import ServiceUser, find_service_user
from edge_agent.update.software_exchange import Answer, Question
from edge_agent.update.version_switch import UpdateRequest, describe, return_to_previous, update
from federated.errors import (
    ConfigError,
    EspalierError,
    FleetError,
    LinkError,
    StoreError,
    explain_os_errors,
)
from federated.runtime.console import Say
from federated.safe_text import MAX_TEXT, make_safe
from federated.wire.release_messages import Installed, Software

__all__ = ["Decision", "Held", "decide", "follow"]

LOWEST = Version("0.dev0")
TIMEOUT = 300.0  # seconds for a question, which a slow board asks within a minute


@dataclass(frozen=True)
class Held:
    """What this device has.

    current, previous: names of environments; empty: none.
    release: version of the current one.
    refused: versions that it left or did not take, and why.
    """

    current: str
    previous: str
    release: str
    refused: Mapping[str, Refusal] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What to do about the wanted version.

    step: nothing; install it; go back to the previous environment; or refuse it.
    reason: why, in words.
    leaving: why this device must not return to the version that it leaves; None: it may.
    """

    step: Literal["nothing", "install", "return", "refuse"]
    reason: str = ""
    leaving: Refusal | None = None


def decide(wanted: Software | None, withdrawn: str, held: Held) -> Decision:
    """Decide what this device does about the wanted version."""
    if held.current == withdrawn and (wanted is None or wanted.name != withdrawn):
        if held.previous and held.previous not in held.refused:
            return Decision("return", f"{withdrawn} was rolled back", ROLLED_BACK)
        if wanted is None:
            return Decision(
                "refuse", f"{withdrawn} was rolled back, and there is no other one here"
            )
    if wanted is None:
        return Decision("nothing", "the run wants no particular version")
    if wanted.name == held.current:
        return Decision("nothing", f"{wanted.name} is installed")
    left = held.refused.get(wanted.name)
    if left is not None and not left.withdrawn:
        return Decision("refuse", left.reason)
    if wanted.name == held.previous:
        return Decision("return", f"the run wants {wanted.name}")
    if order(wanted.release) < order(held.release):
        return Decision(
            "refuse", f"it is older than {held.release}: install it with edge-agent update"
        )
    return Decision("install", f"the run wants {wanted.name}")


def order(release: str) -> Version:
    """Return a key that orders versions as pip does (PEP 440), without their local part. One that
    pip does not know is the lowest, so that it never passes for a later one.
    """
    try:
        return Version(Version(release).public)
    except InvalidVersion:
        return LOWEST


def follow(request: UpdateRequest, say: Say) -> dict[str, str]:
    """Do what the run wants, as far as `decide` allows, and tell the run. Return the names of the
    environments. Raises EspalierError.

    request: without a source and a digest, which the run names.
    """
    user, places = find_service_user(request.device.user), find_environments()
    answer, held = ask(places, request.device, user, None), read_held(places, user)
    decision = decide(answer.wanted, answer.withdrawn, held)
    say(f"run '{answer.run}': {decision.reason}")
    try:
        carry_out(decision, answer.wanted, places, request, say)
    except EspalierError as error:
        lasting = decision.step == "install" and isinstance(error, ConfigError | FleetError)
        if lasting and answer.wanted is not None:
            with explain_os_errors(StoreError, f"cannot write to {places.root}"):
                places.refuse(answer.wanted.name, Refusal(str(error)))
        report = describe_device(answer, read_held(places, user), str(error), refused=lasting)
        ask(places, request.device, user, report)
        raise
    reason = decision.reason if decision.step == "refuse" else ""
    report = describe_device(answer, read_held(places, user), reason, refused=bool(reason))
    ask(places, request.device, user, report)
    return describe(places)


def carry_out(
    decision: Decision,
    wanted: Software | None,
    places: Environments,
    request: UpdateRequest,
    say: Say,
) -> None:
    """Install the wanted version, or return to the previous one. Raises EspalierError."""
    if decision.step == "install" and wanted is not None:
        update(replace(request, source=wanted.release, sha256=wanted.sha256), say)
    elif decision.step == "return":
        with hold_lock(places.root):
            return_to_previous(places, request.unit, say, decision.leaving)


def describe_device(answer: Answer, held: Held, reason: str, *, refused: bool) -> Installed:
    """Return the report about this device."""
    wanted = answer.wanted.name if answer.wanted is not None else ""
    known = held.current in (wanted, answer.withdrawn)
    return Installed(
        answer.agent,
        held.current if known else "",
        held.release,
        wanted if refused else "",
        reason[:MAX_TEXT],
    )


def ask(
    places: Environments, device: Device, user: ServiceUser, report: Installed | None
) -> Answer:
    """Ask the run as the user of the agent. Raises LinkError."""
    question = Question(device.broker, device.run, device.name, report)
    assert places.current is not None, "checked when they were found"
    try:
        done = subprocess.run(  # noqa: S603
            [locate(places.current, "python"), "-I", "-m", software_exchange.__name__],
            input=msgspec.json.encode(question),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            **user.arguments,
        )
    except subprocess.TimeoutExpired:
        raise LinkError(
            f"no answer within {TIMEOUT:.0f} s about the version that the run wants"
        ) from None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    try:
        if not done.returncode:
            return msgspec.json.decode(done.stdout, type=Answer)
        problem = make_safe(said[-1]) if said else f"exit code {done.returncode}"
    except msgspec.MsgspecError as error:
        problem = str(error)
    raise LinkError(f"cannot ask which version the run wants: {problem}")


def read_held(places: Environments, user: ServiceUser) -> Held:
    """Return what this device has. Raises ConfigError."""
    assert places.current is not None, "checked when they were found"
    said = run_check([str(locate(places.current, "edge-agent")), "--version"], user)
    previous = places.previous
    return Held(
        places.current.name,
        previous.name if previous is not None and previous.is_dir() else "",
        said.split()[-1],
        places.read_refused(),
    )
