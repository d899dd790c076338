"""The command `edge-agent join`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edge_agent.cli.flags import DEVICE, LABEL, LIMIT_CPUS, LIMIT_MEMORY, RUN, plainly
from federated.device.trainers.catalogue import DEFAULT
from federated.errors import UsageError
from federated.runtime.console import FORMAT, speaker
from federated.runtime.logs import logged

__all__ = ["join"]


@click.command()
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="the coordinator's broker: 192.168.1.5, host:1883, mqtts://host, mqtt://user:password@host",
)
@click.option(
    "--token",
    metavar="TOKEN",
    help="enrol this device first, where that is not done; others on this machine see a command's "
    "flags",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE|-",
    help="the same from a file, or from standard input",
)
@RUN
@click.option(
    "--data",
    metavar="NAME|PATH|module:function",
    help="what to learn from; without it, a shard of the built-in digits drawn from the agent's "
    "name",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option(
    "--shard", metavar="I/N", help="hold only the I-th (from 0) of N parts of a named data set"
)
@click.option(
    "--partition",
    metavar="RULE",
    help="how the parts of --shard are drawn: iid, dirichlet:ALPHA, classes:K, users, ...  "
    "[default: dirichlet:1.0]",
)
@click.option("--seed", type=int, help="of the partition of --shard  [default: 0]")
@click.option(
    "--model",
    metavar="module:function",
    default="",
    help="a network of your own, if the run trains one of that name",
)
@click.option(
    "--method",
    metavar="module:function",
    default="",
    help="a method of your own, if the run trains by one of that name",
)
@click.option(
    "--codec",
    metavar="module:attribute",
    default="",
    help="a codec of your own, if the run encodes updates by one of that name",
)
@click.option(
    "--trainer",
    metavar="NAME|module:function",
    default=DEFAULT,
    show_default=True,
    help="what computes: pytorch, one of an installed package, or a function of your own",
)
@click.option(
    "--name",
    metavar="ID",
    help="this agent's name  [default: made of the host's, numbered where agents share a host]",
)
@LIMIT_CPUS
@LIMIT_MEMORY
@LABEL
@click.option(
    "--when",
    metavar="CONDITIONS",
    default="",
    help="train only then: charging,idle,unmetered,temperature<70 (any of them)",
)
@click.option(
    "--fresh", is_flag=True, help="measure this device anew, whatever was measured before"
)
@DEVICE
@click.option(
    "--wait",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for a run to appear",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where weights and updates lie on their way, and what the device keeps between rounds  "
    "[default: ~/.local/state/espalier/spool]",
)
@click.option(
    "--spool-limit",
    metavar="SIZE",
    default="2GB",
    show_default=True,
    help="disk that weights and updates may take, the oldest go first",
)
@click.option(
    "--dry-run", is_flag=True, help="join nothing: show exactly what would leave this device"
)
@FORMAT
@logged
def join(
    broker: str | None,
    token: str | None,
    token_file: Path | None,
    run: str | None,
    name: str | None,
    dry_run: bool,
    wait: float,
    spool: Path | None,
    spool_limit: str,
    when: str,
    fresh: bool,
    form: str,
    **options: Any,
) -> None:
    """Measure this device, join a run and train until it ends. Ctrl-C leaves cleanly."""
    with plainly("join"):
        from edge_agent.access.admission import admitted, read_token
        from edge_agent.cli.given import make_job, stop_on_signals
        from edge_agent.device.limits import parse_size

        broker, name = admitted(broker, name, read_token(token, token_file), lasting=not dry_run)
        job = make_job(name, options)
        say = speaker(form)
        if dry_run:
            from edge_agent.join.rehearsal import rehearse

            click.echo(rehearse(job, broker, run, as_json=form == "json"))
            return
        if broker is None:
            raise UsageError(
                "--broker is missing: name the machine that the coordinator's broker "
                "runs on, such as --broker 192.168.1.5"
            )
        from edge_agent.join.agent import JoinRequest
        from edge_agent.join.agent import join as take_part

        if not options["data"]:
            say(
                "no --data: using a shard of the built-in handwritten digits, drawn "
                f"from the name '{job.name}'"
            )
        request = JoinRequest(
            job,
            broker,
            run,
            wait,
            spool,
            parse_size(spool_limit, "--spool-limit"),
            when=when,
            fresh=fresh,
        )
        end = take_part(request, stop_on_signals(), say)
        say(f"left run '{end.run}' after {end.updates} updates: {end.reason}")
        if form == "json":
            click.echo(json.dumps(asdict(end)))
        if end.refused:
            sys.exit(6)
