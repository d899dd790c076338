"""Check a new environment before a device switches to it: its version, the device, the broker with
this device's credentials, and one training.

The checks are commands of the new environment, so that they use its code and packages. They run as
the user of the agent's service, who owns the credentials.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from edge_agent.access.enrolment_files import load_credentials
from edge_agent.update.installation import locate
from edge_agent.update.service_user import ServiceUser
from federated.errors import ConfigError
from federated.runtime.console import Say
from federated.wire.mqtt_address import format_url

__all__ = ["Device", "check_environment", "run_check"]

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


def check_environment(
    environment: Path, version: str, device: Device, user: ServiceUser, say: Say
) -> None:
    """Run all checks in an environment. Raises ConfigError for the first that fails, with what it
    printed.

    version: that it must have. user: that runs them.
    """
    program = str(locate(environment, "edge-agent"))
    with user.act():
        told = describe_device(device)
    found = run_check([program, "--version"], user)
    if found.split()[-1:] != [version]:
        raise ConfigError(f"{program} --version: expected {version}, found {found[-200:]!r}")
    run_check([program, "doctor"], user, told)
    python = str(locate(environment, "python"))
    trains = not subprocess.run(  # noqa: S603
        [python, "-I", "-c", IMPORTS_TORCH],
        check=False,
        **user.arguments,
    ).returncode
    if trains:
        run_check([program, "join", "--dry-run", "--format", "json"], user)
    say(f"{environment.name} passed its checks" + ("" if trains else ", without PyTorch"))


def describe_device(device: Device) -> dict[str, str]:
    """Return the options of `edge-agent doctor` for a device as variables: other users can see
    arguments, and the address of a broker may contain a password.
    """
    broker = device.broker
    if not broker and len(enrolled := load_credentials()) == 1:
        broker = format_url(enrolled[0].broker_address)
    given = {"BROKER": broker, "RUN": device.run, "NAME": device.name}
    return {f"EDGE_AGENT_DOCTOR_{name}": value for name, value in given.items() if value}


def run_check(
    words: list[str], user: ServiceUser, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a command, and return what it printed. variables: of its process, in addition. Raises
    ConfigError with what it printed if it fails.
    """
    shown, arguments = " ".join(words), user.arguments
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
            **{**arguments, "env": {**arguments["env"], **variables}},
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{shown} did not end within {TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ConfigError(f"cannot run {shown}: {error.strerror or error}") from error
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if not line.startswith(("ok", "warn"))]
        raise ConfigError(f"{shown} failed with code {done.returncode}: {'; '.join(lines[-3:])}")
    return done.stdout.strip()
