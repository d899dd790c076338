"""The command `edge-agent`: join a run, or infer with what a run learned."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from edge_agent.access.admission import admitted, read_token
from edge_agent.cli.bench import bench
from edge_agent.cli.doctor import doctor
from edge_agent.cli.flags import (
    DEVICE,
    LABEL,
    LIMIT_CPUS,
    LIMIT_MEMORY,
    RUN,
    STORE,
    agent_name,
    make_job,
    own_data,
    stop_on_signals,
    with_own_data,
    words,
)
from edge_agent.device.limits import parse_size
from federated.errors import UsageError
from federated.runtime.console import FORMAT, speaker, speaking_plainly
from federated.runtime.logs import configure, logged

__all__ = ["main"]


def plainly(command: str) -> AbstractContextManager[None]:
    return speaking_plainly(f"edge-agent {command}", "train", "interrupted")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EDGE_AGENT"}
)
@click.version_option(package_name="espalier")
@click.option("-v", "--verbose", is_flag=True, help="log what happens on the wire")
def main(verbose: bool) -> None:
    """One device of a federation. Its data never leave it."""
    configure(verbose=verbose)


main.add_command(bench)
main.add_command(doctor)


@main.command()
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
    help="a network of your own, where the run asks for one of that name",
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
    """Measure this device, join a run and learn with the others until it is over (ctrl-C leaves
    cleanly).
    """
    with plainly("join"):
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
        from edge_agent.join.agent import join as take_part

        if not options["data"]:
            say(
                "no --data: using a shard of the built-in handwritten digits, drawn "
                f"from the name '{job.name}'"
            )
        limit = parse_size(spool_limit, "--spool-limit")
        end = take_part(
            job,
            broker,
            run,
            wait=wait,
            spool=spool,
            stop=stop_on_signals(),
            say=say,
            when=when,
            fresh=fresh,
            limit=limit,
        )
        say(f"left run '{end.run}' after {end.updates} updates: {end.reason}")
        if form == "json":
            click.echo(json.dumps(asdict(end)))
        if end.refused:
            sys.exit(6)


@main.command()
@click.option(
    "--family",
    "families",
    metavar="NAME,...",
    default="",
    help="networks to time  [default: preresnet,mobilenet,vit]",
)
@click.option(
    "--model",
    metavar="NAME",
    default="",
    help="one network to time: a family and a preset, or module:function of your own",
)
@click.option(
    "--runtime",
    "runtimes",
    metavar="NAME,...",
    default="",
    help="torch (training steps), onnx (answers)  [default: both]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    help="examples of a training step",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads to time with  [default: as many as serve best]",
)
@click.option("--broker", metavar="HOST|URL", help="measure the way to this broker too")
@click.option(
    "--data",
    metavar="NAME|PATH|module:function",
    help="time with the device's own data  [default: random examples]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option("--name", metavar="ID", help="this agent's name  [default: made of the host's]")
@LABEL
@LIMIT_CPUS
@LIMIT_MEMORY
@DEVICE
@click.option("--fresh", is_flag=True, help="measure anew, whatever was measured before")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="write the sheet that coordinator assign reads",
)
@FORMAT
def profile(
    families: str,
    model: str,
    runtimes: str,
    batch: int,
    threads: int,
    broker: str | None,
    fresh: bool,
    name: str | None,
    out: Path | None,
    form: str,
    **options: Any,
) -> None:
    """Measure this device: what it is, what it may use, and how fast it trains and answers. What is
    known is not measured again.
    """
    with plainly("profile"):
        from edge_agent.join.inventory import Wanted, command

        broker, name = admitted(broker, name)
        given = {**options, "model": model, "shard": None, "partition": None, "seed": None}
        job = replace(make_job(agent_name(name), given), data=options["data"] or "")
        models = tuple(dict.fromkeys([*words(families), *words(model)]))
        text = command(
            job,
            Wanted(models, words(runtimes), batch, threads, broker or "", fresh),
            out,
            form,
            speaker(form),
        )
        if text:
            click.echo(text)


@main.command()
@click.option(
    "--broker", metavar="HOST|URL", help="take this agent's released network from a broker"
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="FILE|FOLDER",
    help="use an exported .onnx file, or a release's folder",
)
@RUN
@click.option(
    "--name", metavar="ID", help="the agent whose submodel to take  [default: this host's first]"
)
@click.option("--submodel", metavar="NAME", help="take this submodel instead of the agent's own")
@click.option("--sha256", metavar="HEX", help="refuse --model FILE unless this is its digest")
@STORE
@click.option(
    "--wait",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for a release",
)
@click.option("--resize", is_flag=True, help="scale pictures to the size that the network takes")
@click.option(
    "--explain",
    is_flag=True,
    help="tell which ways to run the network were tried, and why one was chosen",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads of one answer  [default: as many as are fastest]",
)
@click.option(
    "--serve",
    metavar="HOST:PORT",
    help="answer over HTTP until stopped: POST /infer, GET /health, GET /release",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="a secret that askers must send; needed beyond this machine",
)
@click.option(
    "--mqtt",
    is_flag=True,
    help="answer at the broker until stopped; it says at which topic it is asked",
)
@with_own_data
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path))
@FORMAT
@logged
def infer(name: str | None, form: str, **options: Any) -> None:
    """Answer for INPUTS: .npy, .npz, .json or .jsonl files of raw examples, pictures, folders of
    them; without any, JSON from standard input.

    A release is tested first, and of all ways to run it on this device the fastest that is right is
    taken. With --serve or --mqtt it follows the broker's releases, and answers until it is stopped.
    --data names this device's own data: the held-out part of it judges releases. Needs no PyTorch.
    """
    with plainly("infer"):
        from edge_agent.infer.session import Request, command

        options["broker"], name = admitted(options["broker"], name, lasting=True)
        request = Request(name=agent_name(name), **own_data(options))
        text = command(
            request,
            form,
            lambda line: click.echo(line, err=True),
            stop_on_signals() if request.stays else None,
        )
        if text:
            click.echo(text)


@main.command()
@click.option(
    "--broker", metavar="HOST|URL", help="take this agent's released network from a broker"
)
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="FOLDER", help="use a release's folder"
)
@RUN
@click.option(
    "--name", metavar="ID", help="the agent whose submodel to take  [default: this host's first]"
)
@click.option("--submodel", metavar="NAME", help="take this submodel instead of the agent's own")
@STORE
@click.option(
    "--wait",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="how long to wait for a release",
)
@with_own_data
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where the adapted network goes, for infer --model DIR",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 10_000),
    default=3,
    show_default=True,
    help="passes over this device's training part",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=0,
    help="at most so many steps  [default: as many as the passes have]",
)
@click.option(
    "--batch",
    type=click.IntRange(2, 65536),
    default=32,
    show_default=True,
    help="examples of a step",
)
@click.option(
    "--lr",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.01,
    show_default=True,
    help="learning rate",
)
@click.option(
    "--only",
    type=click.Choice(["all", "head"]),
    default="all",
    show_default=True,
    help="head: the last layer alone learns",
)
@click.option(
    "--network",
    metavar="module:function",
    default="",
    help="a network of your own, where the release is of one of that name",
)
@click.option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    help="threads to train with  [default: as PyTorch chooses]",
)
@click.option(
    "--keep-anyway",
    "anyway",
    is_flag=True,
    help="write the adapted network also where it is no better",
)
@FORMAT
def finetune(name: str | None, form: str, **options: Any) -> None:
    """Adapt the released network to this device's own data, and say how good it was before and is
    after, on data it did not learn from.

    Nothing is sent. What is no better is not written. Needs PyTorch, and the extra export to write
    what infer serves.
    """
    with plainly("finetune"):
        from edge_agent.finetune.finetune import Request, command

        if not options["data"]:
            raise UsageError("--data is missing: name this device's own data")
        options["broker"], name = admitted(options["broker"], name)
        click.echo(
            command(
                Request(name=agent_name(name), **own_data(options)),
                form,
                lambda line: click.echo(line, err=True),
            )
        )


if __name__ == "__main__":
    main()
