"""Update this device: install a version beside the current one, check it, switch to it, and go back
if its agent does not join.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from edge_agent.device.start_record import read_start, remove_start
from edge_agent.update.environments import Environments, Refusal, find_environments, hold_lock
from edge_agent.update.health_check import Device, check_environment
from edge_agent.update.installation import StagedWheel, build_environment, stage_wheel
from edge_agent.update.service_user import ServiceUser, find_service_user
from federated.errors import ConfigError, FleetError, StoreError, UsageError, explain_os_errors
from federated.runtime.console import Say

__all__ = ["UpdateRequest", "count_start", "describe", "go_back", "return_to_previous", "update"]

MOST_STARTS = 3  # of an agent that does not join, until the previous environment returns
SETTLE = 5.0  # seconds for which an agent must have joined: a run may refuse it at once
POLL = 0.5  # seconds between two looks


@dataclass(frozen=True)
class UpdateRequest:
    """Options of an update.

    source: a wheel's file, or a version on the package index.
    sha256: digest of the wheel, hexadecimal.
    requirements: file of further packages with digests; None: the wheel needs none.
    index: address of the package index; None: pip's.
    device: how this device takes part.
    unit: systemd unit to restart; empty: none.
    wait: seconds for the restarted agent to join.
    """

    source: str
    sha256: str
    requirements: Path | None = None
    index: str | None = None
    device: Device = field(default_factory=Device)
    unit: str = ""
    wait: float = 300.0


def update(request: UpdateRequest, say: Say) -> dict[str, str]:
    """Update this device, and return the names of the current and the previous environment. Raises
    UsageError, ConfigError, LinkError, StoreError, and FleetError if the new agent does not join
    and the previous one is back.
    """
    user = find_service_user(request.device.user)
    places = find_environments()
    with hold_lock(places.root):
        places.tidy(say)
        base = places.current
        assert base is not None, "checked when they were found"
        new = install(places, base, request, user, say)
        with explain_os_errors(StoreError, f"cannot switch to {new}"):
            if hasattr(os, "sync"):
                os.sync()
            with user.act():
                remove_start()
            places.begin_trial(new)
            places.switch(new)
            places.accept(new.name)
            places.tidy(say)
        say(f"switched from {base.name} to {new.name}")
        if request.unit:
            restart_or_return(places, request, user, say)
        else:
            say("restart the agent's service to use it")
    return describe(places)


def install(
    places: Environments, base: Path, request: UpdateRequest, user: ServiceUser, say: Say
) -> Path:
    """Install the requested version beside the current one, unless it is the previous one, check
    it, and return its folder. After an error nothing of a new one remains.
    """
    try:
        wheel = stage_wheel(request.source, request.sha256, places.root, request.index)
        new = choose_folder(places, wheel)
        installed = new.exists()
        try:
            if not installed:
                build_environment(wheel, new, base, request.requirements, say)
            check_environment(new, wheel.version, request.device, user, say)
        except BaseException:
            if not installed:
                shutil.rmtree(new, ignore_errors=True)
            raise
    except BaseException:
        say(f"nothing was changed: {base.name} is still the current environment")
        raise
    finally:
        places.remove_staged()
    return new


def choose_folder(places: Environments, wheel: StagedWheel) -> Path:
    """Return the folder of the new environment, which may be the previous one. Raises UsageError if
    it is the current one.
    """
    new = places.root / wheel.folder_name
    if new == places.current:
        raise UsageError(f"{new.name} is the current environment already")
    if new.exists() and new != places.previous:
        raise StoreError(f"{new} exists, and no update made it: move it elsewhere")
    return new


def restart_or_return(
    places: Environments, request: UpdateRequest, user: ServiceUser, say: Say
) -> None:
    """Restart the service, and return to the previous environment if the new agent does not join in
    time. Raises FleetError then.
    """
    new = places.current
    assert new is not None, "an update switched to it"
    try:
        restart(request.unit)
        reached = wait_for_join(new, request.wait, user)
    except ConfigError as error:
        reached, reason = "", str(error)
    else:
        reason = f"its agent did not join within {request.wait:.0f} s"
    if reached:
        places.end_trial()
        say(f"the agent of {new.name} {reached}")
        return
    back, _ = places.roll_back()
    with contextlib.suppress(OSError):  # a full disk must not prevent the restart
        places.refuse(new.name, Refusal(reason))
    problem = f"went back from {new.name} to {back.name}: {reason}"
    try:
        restart(request.unit)
    except ConfigError as error:
        raise FleetError(f"{problem}; then {error}") from error
    raise FleetError(f"{problem}; look into journalctl -u {request.unit}")


def restart(unit: str) -> None:
    """Restart a unit of systemd. Raises ConfigError."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        raise ConfigError(f"--restart {unit}: systemctl is not installed: restart the service")
    done = subprocess.run(  # noqa: S603
        [systemctl, "restart", unit], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"systemctl restart {unit} failed: {done.stderr.strip()[-300:]}")


def wait_for_join(environment: Path, seconds: float, user: ServiceUser) -> str:
    """Wait until the agent of an environment has joined a run and was not refused. Return what it
    reached, in words; empty if it did not start. An agent that finds no run waits for one.
    """
    deadline, joined_at = time.monotonic() + seconds, 0.0
    while True:
        with user.act():
            record = read_start()
        now = time.monotonic()
        started = record is not None and Path(record.environment) == environment.resolve()
        if not started or record is None or not record.joined:
            joined_at = 0.0
        elif not joined_at:
            joined_at = now
        elif now - joined_at >= SETTLE:
            return "joined a run"
        if now >= deadline:
            return "reached the broker and waits for a run" if started else ""
        time.sleep(POLL)


def go_back(device: Device, unit: str, say: Say) -> dict[str, str]:
    """Return to the previous environment, and restart the service if one is named. The version that
    was left is not installed again as a wanted one, and this does not return to it. Raises
    UsageError, ConfigError, StoreError.
    """
    find_service_user(device.user)
    places = find_environments()
    with hold_lock(places.root):
        back = places.previous
        if back is not None and (why := places.read_refused().get(back.name)) is not None:
            raise UsageError(
                f"there is no earlier environment to go back to: this device left {back.name} "
                f"before ({why.reason}); to return to it, install it again with edge-agent update"
            )
        return_to_previous(places, unit, say, Refusal("its owner went back"))
    return describe(places)


def return_to_previous(
    places: Environments, unit: str, say: Say, leaving: Refusal | None = None
) -> None:
    """Return to the previous environment, and restart the service if one is named. Raises
    UsageError, ConfigError, StoreError.

    leaving: recorded of the environment that is left, so that `go_back` does not return to it;
    None: it may.
    """
    back, old = places.roll_back()
    say(f"went back from {old.name} to {back.name}")
    try:
        if unit:
            restart(unit)
        else:
            say("restart the agent's service to use it")
    finally:
        with explain_os_errors(StoreError, f"cannot write to {places.root}"):
            places.accept(back.name)
            if leaving is not None:
                places.refuse(old.name, leaving)


def count_start(device: Device, say: Say) -> dict[str, str]:
    """Count a start of the current environment's agent while it is on trial, and return to the
    previous environment after MOST_STARTS starts without joining. A service does this before each
    start, with the previous environment's command, which is known to work. Raises ConfigError,
    StoreError.
    """
    user, places = find_service_user(device.user), find_environments()
    with hold_lock(places.root):
        trial, current = places.read_trial(), places.current
        if trial is None or current is None:
            return describe(places)
        with user.act():
            record = read_start()
        if record is not None and Path(record.environment) == current.resolve():
            places.end_trial()
        elif trial.starts < MOST_STARTS:
            places.begin_trial(current, trial.starts + 1)
        else:
            back, old = places.roll_back()
            places.refuse(old.name, Refusal(f"it did not join in {MOST_STARTS} starts"))
            say(f"{old.name} did not join in {MOST_STARTS} starts: went back to {back.name}")
    return describe(places)


def describe(places: Environments) -> dict[str, str]:
    """Return the names of the environments."""
    links = {"current": places.current, "previous": places.previous}
    return {link: folder.name for link, folder in links.items() if folder is not None}
