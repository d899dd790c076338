"""Define the command `edge-agent join` and its options; `edge_agent.join` does the work."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_agent.cli.flags import (
    DEVICE,
    LABEL,
    LIMIT_CPUS,
    LIMIT_MEMORY,
    RUN,
    own_data,
    print_errors,
)
from edge_agent.device.state_folder import IN_HOME, SPOOL
from federated.defaults import METHOD
from federated.device.trainers.catalogue import AUTO, DEFAULT, TRAINERS
from federated.errors import UsageError
from federated.runtime.console import FORMAT, FiniteRange, Say, speaker
from federated.runtime.logs import log_options

if TYPE_CHECKING:
    from edge_agent.join.training_process_control import Job

__all__ = ["join"]

UNENROLLED = (
    "the token was not used, because a dry run does not enrol this device: the coordinator's run "
    f"is unknown, and the following is for the default method ({METHOD}) and network. To see the "
    "messages of the coordinator's run, enrol first: edge-agent join --enroll-only --token-file "
    "FILE\n"
)


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="address of the coordinator's broker, such as 192.168.1.5, host:1883, mqtts://host, "
    "mqtt://user:password@host, wss://host; required, except with a token or --dry-run",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="token of `coordinator enroll` or `coordinator claim`; enrols this device, unless it is "
    "enrolled. Other users of this machine can see it; --token-file hides it",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE|-",
    help="file of the token; -: standard input",
)
@click.option(
    "--serial",
    metavar="SERIAL",
    help="serial number of this device, for a token of `coordinator claim`  [default: the board's]",
)
@RUN
@own_data(
    "data to train on  [default: a shard of the built-in digits, selected by the agent's name]"
)
@click.option(
    "--model",
    metavar="module:function",
    default="",
    help="allow a run to use this network of your own",
)
@click.option(
    "--method",
    metavar="module:function",
    default="",
    help="allow a run to use this method of your own",
)
@click.option(
    "--codec",
    metavar="module:attribute",
    default="",
    help="allow a run to use this codec of your own",
)
@click.option(
    "--trainer",
    metavar="NAME|module:function",
    default=AUTO,
    show_default=True,
    help=f"trainer: {', '.join(TRAINERS)}, one of an installed package, or a function of your own; "
    f"{AUTO}: {DEFAULT}; onnx without PyTorch, or where `edge-agent profile --compare-trainers` "
    "found it faster for the run's family of networks",
)
@click.option(
    "--name",
    metavar="ID",
    help="this agent's name  [default: that of its certificate or its broker user, or else the "
    "host name, numbered if agents share a host]",
)
@LIMIT_CPUS
@LIMIT_MEMORY
@LABEL
@click.option(
    "--when",
    metavar="CONDITIONS",
    default="",
    help="conditions for training, separated by commas: charging, idle, unmetered, temperature<70, "
    "22:00-06:00 (local time), traffic<2GB and energy<500kJ (of this user's agents in a calendar "
    "month)",
)
@click.option(
    "--watts",
    type=FiniteRange(min=0, min_open=True),
    metavar="WATTS",
    help="power of this device while it trains  [default: measured, if it has a sensor]",
)
@click.option("--fresh", is_flag=True, help="ignore cached measurements of this device")
@DEVICE
@click.option(
    "--attack",
    metavar="KIND[:STRENGTH]",
    default="",
    help="for tests and research: send malicious updates, such as backdoor:20; this harms the run",
)
@click.option(
    "--wait",
    type=FiniteRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="time to wait until the broker has a run; the broker itself must already be running",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder for weights, updates, and state that the device keeps between rounds  "
    f"[default: ~/{IN_HOME}/{SPOOL}]",
)
@click.option(
    "--spool-limit",
    metavar="SIZE",
    default="2GB",
    show_default=True,
    help="maximum disk space of the spool; the oldest files are deleted first",
)
@click.option(
    "--enroll-only",
    is_flag=True,
    help="enrol this device and exit, without joining a run; for devices that only run inference "
    "(needs no PyTorch)",
)
@click.option(
    "--dry-run", is_flag=True, help="show exactly what would leave this device, without joining"
)
@FORMAT
@log_options
def join(
    broker: str | None,
    token: str | None,
    token_file: Path | None,
    serial: str | None,
    run: str | None,
    name: str | None,
    enroll_only: bool,
    dry_run: bool,
    wait: float,
    spool: Path | None,
    spool_limit: str,
    when: str,
    fresh: bool,
    form: str,
    **options: Any,
) -> None:
    """Join a run and train until it ends.

    The device is measured first; measurements are cached. Ctrl-C leaves the run cleanly.
    """
    with print_errors("join"):
        from edge_agent.access.broker_credentials import read_token, resolve_broker
        from edge_agent.cli.option_values import check_code_names, make_job, stop_on_signals
        from edge_agent.device.process_limits import parse_size

        check_code_names(options)
        if enroll_only and dry_run:
            raise UsageError("--enroll-only and --dry-run cannot be combined: use one of them")
        secret = read_token(token, token_file, serial)
        if enroll_only:
            enroll(broker, name, secret, form)
            return
        say = speaker(form)
        broker, name = resolve_broker(
            broker, name, secret, enrol=not dry_run, keep_renewing=not dry_run, say=say
        )
        job = make_job(name, options)
        if dry_run:
            if broker is None and secret is not None:
                say(UNENROLLED)
            show_dry_run(job, broker, run, as_json=form == "json")
            return
        if broker is None:
            raise UsageError(
                "--broker is missing: set it to the address of the coordinator's broker, such as "
                "--broker 192.168.1.5, or enrol with --token-file"
            )
        from edge_agent.join.participation import JoinRequest
        from edge_agent.join.participation import join as take_part

        say_defaults(say, job.name, options, named=name is not None)
        limit = parse_size(spool_limit, "--spool-limit")
        request = JoinRequest(job, broker, run, wait, spool, limit, when=when, fresh=fresh)
        end = take_part(request, stop_on_signals(), say)
        say(f"left run '{end.run}' after {end.updates} updates: {end.reason}")
        if form == "json":
            click.echo(json.dumps(asdict(end)))
        if end.refused:
            sys.exit(6)


def say_defaults(say: Say, agent: str, given: Mapping[str, Any], *, named: bool) -> None:
    """Print what the agent uses in place of --name and --data."""
    if not named:
        say(f"no --name: this agent is called '{agent}', after this machine")
    if not given["data"]:
        shard = given["shard"] or f"selected by the name '{agent}'"
        say(f"no --data: training on a shard of the built-in handwritten digits, {shard}")


def show_dry_run(job: Job, broker: str | None, run: str | None, *, as_json: bool) -> None:
    """Print every message that would leave this device."""
    from edge_agent.join.dry_run import perform_dry_run

    speaker("text")(perform_dry_run(job, broker, run, as_json=as_json))


def enroll(broker: str | None, name: str | None, token: str | None, form: str) -> None:
    """Enrol this device, unless it is enrolled, and print its name."""
    from edge_agent.access.broker_credentials import resolve_broker

    if token is None:
        raise UsageError("--enroll-only needs a token: add --token-file FILE")
    _, name = resolve_broker(broker, name, token)
    speaker(form)(f"this device is enrolled as '{name}'")
    if form == "json":
        click.echo(json.dumps({"agent": name}))
