"""Check a new environment before a device switches to it: its version, the device, the broker with
this device's credentials, and one training.

The checks are commands of the new environment, so that they use its code and packages. They run as
the user of the agent's service, who owns the credentials.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_agent.access.enrolment_files import load_credentials
from edge_agent.update.installation import clean_variables, locate
from federated.errors import ConfigError, UsageError
from federated.runtime.console import Say
from federated.wire.mqtt_address import format_url

__all__ = ["Device", "check_environment", "take_identity"]

TIMEOUT = 1800.0  # seconds for one check; a slow board trains for minutes
IMPORTS_TORCH = "import importlib.util as u; raise SystemExit(u.find_spec('torch') is None)"


@dataclass(frozen=True)
class Device:
    """How this device takes part.

    broker: address of the broker; empty: that of this device's only enrolment, or none.
    run: the run to check; empty: the only one at the broker.
    name: of the agent; empty: as `edge-agent doctor` finds it.
    user: user of the operating system that the agent runs as; empty: that of this process.
    """

    broker: str = ""
    run: str = ""
    name: str = ""
    user: str = ""


def take_identity(user: str) -> dict[str, Any]:
    """Use the home folder of a user, with the agent's state, from now on. Return the arguments of
    `subprocess.run` that start a command as this user. Raises UsageError.
    """
    if not user:
        return {}
    import pwd  # not on Windows

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"--as {user}: there is no such user on this machine") from None
    os.environ["HOME"] = found.pw_dir
    if found.pw_uid == os.getuid():
        return {}
    if os.getuid() != 0:
        raise UsageError(f"--as {user}: only root can run commands as another user: use sudo")
    groups = os.getgrouplist(user, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups}


def check_environment(
    environment: Path, version: str, device: Device, identity: dict[str, Any], say: Say
) -> None:
    """Run all checks in an environment. Raises ConfigError for the first that fails, with what it
    printed.

    version: that it must have. identity: see `take_identity`.
    """
    program = str(locate(environment, "edge-agent"))
    found = run_check([program, "--version"], identity)
    if found.split()[-1:] != [version]:
        raise ConfigError(f"{program} --version: expected {version}, found {found[-200:]!r}")
    run_check([program, "doctor", *list_flags(device)], identity)
    python = str(locate(environment, "python"))
    trains = not subprocess.run(  # noqa: S603
        [python, "-I", "-c", IMPORTS_TORCH], env=clean_variables(), check=False, **identity
    ).returncode
    if trains:
        run_check([program, "join", "--dry-run", "--format", "json"], identity)
    say(f"{environment.name} passed its checks" + ("" if trains else ", without PyTorch"))


def list_flags(device: Device) -> list[str]:
    """Return the flags of `edge-agent doctor` for a device."""
    broker = device.broker
    if not broker and len(enrolled := load_credentials()) == 1:
        broker = format_url(enrolled[0].broker_address)
    given = {"--broker": broker, "--run": device.run, "--name": device.name}
    return [word for flag, value in given.items() if value for word in (flag, value)]


def run_check(words: list[str], identity: dict[str, Any]) -> str:
    """Run a command, and return what it printed. Raises ConfigError with it if it fails."""
    shown = " ".join(words)
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_variables(),
            timeout=TIMEOUT,
            check=False,
            **identity,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{shown} did not end within {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ConfigError(f"cannot run {shown}: {error.strerror or error}") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("ok", "warn"))]
        raise ConfigError(f"{shown} failed with code {done.returncode}: {'; '.join(lines[-3:])}")
    return done.stdout.strip()
