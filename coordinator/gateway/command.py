"""Define the command `edge-gateway`; `coordinator.gateway.gateway` does the work."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_agent.cli.flags import LABEL, RUN
from edge_agent.device.state_folder import IN_HOME
from federated.errors import UsageError
from federated.install_command import NAME
from federated.runtime.console import FORMAT, FiniteRange, Say, report_errors, speaker
from federated.runtime.logs import configure, log_options
from federated.runtime.unit_formatting import format_count

if TYPE_CHECKING:
    from coordinator.gateway.gateway import GatewayRequest

__all__ = ["main"]

FOLDER = "gateway"  # in the state folder of the user


def log_to_stderr(command: Callable[..., None]) -> Callable[..., None]:
    """Log warnings to standard error, unless the options of `log_options` say otherwise."""

    @functools.wraps(command)
    def with_log(**options: Any) -> None:
        configure(verbose=False)
        command(**options)

    return with_log


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EDGE_GATEWAY"}
)
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of the coordinator's broker, as for edge-agent join; required, except with a "
    "token",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="token of `coordinator enroll`; enrols this gateway, unless it is enrolled. Other users "
    "of this machine can see it; --token-file hides it",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE|-",
    help="file of the token; -: standard input",
)
@RUN
@click.option(
    "--name",
    metavar="ID",
    help="this gateway's name in the run  [default: that of its certificate or its broker user, or "
    "else the host name]",
)
@LABEL
@click.option(
    "--site-broker",
    metavar="HOST|URL",
    help="address of an existing broker of the site, with the credentials of a coordinator  "
    "[default: start a broker here]",
)
@click.option(
    "--listen",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="address on which the started broker listens; any but loopback requires --tls or "
    "--passwords",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="port of the started broker; 0: any free port  [default: 1883, with --tls 8883]",
)
@click.option(
    "--tls",
    is_flag=True,
    help="allow only devices with a certificate of this machine's authority; `coordinator enroll` "
    "on this machine prints their tokens",
)
@click.option(
    "--passwords",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="allow only devices in this file of lines user:password; requires mosquitto",
)
@click.option(
    "--min-devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="number of devices to wait for before the gateway joins",
)
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="time to wait for a run, and for these devices",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"folder for weights and updates  [default: ~/{IN_HOME}/{FOLDER}]",
)
@click.option(
    "--spool-limit",
    metavar="SIZE",
    default="2GB",
    show_default=True,
    help="maximum disk space of weights and updates; the oldest files are deleted first",
)
@FORMAT
@click.version_option(package_name=NAME)
@log_to_stderr
@log_options
def main(form: str, **options: Any) -> None:
    """Take part in a run with all devices of a site, over one uplink.

    The gateway is an agent of the run at the coordinator's broker, and the coordinator of the
    site's devices at a broker of the site. It downloads weights once, hands each task to all
    devices, and sends one update: the mean of theirs, weighted by examples. Devices join it with
    `edge-agent join`. Ctrl-C leaves the run cleanly.
    """
    with report_errors("edge-gateway", "coordinator"):
        from coordinator.gateway.gateway import run_gateway
        from edge_agent.cli.option_values import stop_on_signals

        say = speaker(form)
        end = run_gateway(make_request(options, say), stop_on_signals(), say)
        devices, updates = format_count(end.devices, "device"), format_count(end.updates, "update")
        say(f"left run '{end.run}' after {updates} of {devices}: {end.reason}")
        if form == "json":
            click.echo(json.dumps(asdict(end)))
        if end.refused:
            sys.exit(6)


def make_request(options: Mapping[str, Any], say: Say) -> GatewayRequest:
    """Return the options as a request, and enrol the gateway if a token is given. Raises
    EspalierError.
    """
    from coordinator.gateway.gateway import GatewayRequest
    from coordinator.settings.service_tables import Broker
    from edge_agent.access.broker_credentials import read_token, resolve_broker
    from edge_agent.cli.option_values import check_agent_name, check_labels
    from edge_agent.device.process_limits import parse_size
    from edge_agent.device.state_folder import locate_state

    token = read_token(options["token"], options["token_file"])
    broker, name = resolve_broker(
        options["broker"], options["name"], token, keep_renewing=True, say=say
    )
    if broker is None:
        raise UsageError(
            "--broker is missing: set it to the address of the coordinator's broker, such as "
            "--broker mqtts://broker.example.org, or enrol with --token-file"
        )
    passwords = options["passwords"]
    return GatewayRequest(
        check_agent_name(name),
        broker,
        Broker(
            url=options["site_broker"],
            listen=options["listen"],
            port=options["port"],
            passwords=None if passwords is None else str(passwords),
            tls=options["tls"],
        ),
        options["run"],
        options["min_devices"],
        options["wait"],
        check_labels(options["labels"]),
        options["spool"] or locate_state() / FOLDER,
        parse_size(options["spool_limit"], "--spool-limit"),
    )
