"""Define the command `edge-agent update` and its options; `edge_agent.update` does the work."""

from __future__ import annotations

from pathlib import Path

import click

from edge_agent.cli.flags import print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT, FiniteRange, print_result, speaker

__all__ = ["update"]


@click.command()
@click.argument("source", metavar="[WHEEL|VERSION]", required=False)
@click.option("--sha256", metavar="HEX", help="sha256 of the wheel; required")
@click.option(
    "--requirements",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="further packages that the version needs, as lines NAME==VERSION --hash=sha256:HEX",
)
@click.option("--index-url", metavar="URL", help="package index of a VERSION")
@click.option(
    "--broker",
    default="",
    metavar="HOST|URL",
    help="broker to check  [default: that of this device's enrolment]",
)
@click.option("--run", default="", metavar="NAME", help="run to check, if the broker has several")
@click.option("--name", default="", metavar="ID", help="this agent's name, for the check")
@click.option(
    "--as", "user", default="", metavar="USER", help="user that the agent's service runs as"
)
@click.option(
    "--restart",
    "unit",
    default="",
    metavar="UNIT",
    help="restart this systemd unit, and go back if its agent does not join",
)
@click.option(
    "--wait",
    type=FiniteRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="time for the restarted agent to join",
)
@click.option(
    "--rollback",
    is_flag=True,
    help="return to the previous environment, unless this device left it before",
)
@click.option(
    "--wanted",
    is_flag=True,
    help="install the version that the run wants (coordinator upgrade) from --index-url, if any",
)
@click.option(
    "--count-start",
    is_flag=True,
    help="for services, before each start: go back if a new version did not join in 3 starts",
)
@FORMAT
def update(
    source: str | None,
    sha256: str | None,
    requirements: Path | None,
    index_url: str | None,
    broker: str,
    run: str,
    name: str,
    user: str,
    unit: str,
    wait: float,
    rollback: bool,
    wanted: bool,
    count_start: bool,
    form: str,
) -> None:
    """Install a WHEEL or VERSION, check it, and switch to it.

    The new version must pass `edge-agent doctor` and, with PyTorch, train once on this device.
    Otherwise nothing changes. The previous version stays installed.
    """
    with print_errors("update"):
        from edge_agent.update import version_switch
        from edge_agent.update.health_check import Device

        device, say = Device(broker, run, name, user), speaker(form)
        if sum((source is not None, rollback, wanted, count_start)) != 1:
            raise UsageError(
                "expected one of WHEEL, VERSION, --rollback, --wanted and --count-start"
            )
        if count_start:
            print_result(version_switch.count_start(device, say), form)
        elif rollback:
            print_result(version_switch.go_back(device, unit, say), form)
        elif wanted:
            if index_url is None or sha256 is not None:
                raise UsageError(
                    "--wanted: expected --index-url, the package index that you trust, and no "
                    "--sha256, which the run names"
                )
            request = version_switch.UpdateRequest(
                "", "", requirements, index_url, device, unit, wait
            )
            from edge_agent.update.wanted_software import follow

            print_result(follow(request, say), form)
        else:
            assert source is not None, "one of them is given"
            if sha256 is None:
                raise UsageError(
                    "--sha256 is missing: name the digest of the wheel, since its code runs with "
                    "the rights of the agent (sha256sum FILE)"
                )
            request = version_switch.UpdateRequest(
                source, sha256.lower(), requirements, index_url, device, unit, wait
            )
            print_result(version_switch.update(request, say), form)
