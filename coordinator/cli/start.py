"""The command `coordinator start`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import INIT, RUNS, plainly
from federated.runtime.console import FORMAT, speaker

__all__ = ["start"]

FLAGS = {  # flag -> key of the configuration
    "name": "name",
    "method": "method.name",
    "model": "model.name",
    "init": "model.init",
    "data": "data.name",
    "data_root": "data.root",
    "broker": "broker.url",
    "listen": "broker.listen",
    "port": "broker.port",
    "passwords": "broker.passwords",
    "tls": "broker.tls",
    "hosts": "broker.hosts",
    "pki": "broker.pki",
    "rounds": "rounds",
    "target_accuracy": "target_accuracy",
    "min_agents": "fleet.min_agents",
    "select": "fleet.select",
    "fraction": "fleet.fraction",
    "deadline": "fleet.deadline",
    "log_format": "log.format",
    "log_file": "log.file",
    "metrics": "metrics.listen",
    "seed": "seed",
}


@click.command()
@click.option(
    "--method",
    metavar="NAME|module:function",
    help="how devices train and updates are combined; `coordinator methods` lists them  [default: "
    "fedfa]",
)
@click.option(
    "--broker",
    metavar="HOST|URL",
    help="an MQTT broker that runs already; without it one is started",
)
@click.option(
    "--listen",
    metavar="ADDR",
    help="address that a started broker listens on  [default: 127.0.0.1]",
)
@click.option("--port", type=int, help="its port  [default: 1883, with --tls 8883]")
@click.option(
    "--tls",
    is_flag=True,
    default=None,
    help="only devices that were enrolled may take part (coordinator enroll NAME)",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="another name by which devices reach this machine; may be repeated",
)
@click.option(
    "--pki",
    metavar="DIR",
    help="where the authority of --tls lies  [default: with this user's data]",
)
@click.option(
    "--passwords",
    metavar="FILE",
    help="its mosquitto password file; this or --tls is needed beyond loopback",
)
@click.option(
    "--model", metavar="NAME|module:function", help="the largest network  [default: preresnet]"
)
@click.option(
    "--data",
    metavar="NAME|PATH|module:function|agents",
    help="held-out data and the shape of examples; 'agents': the coordinator has none  [default: "
    "digits]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@INIT
@click.option("--rounds", type=int, help="[default: 20]")
@click.option(
    "--target-accuracy", type=float, metavar="A", help="stop when the full network is this good"
)
@click.option("--min-agents", type=int, metavar="N", help="wait for so many  [default: 2]")
@click.option(
    "--select",
    metavar="EXPR",
    help="only agents that meet this, such as 'memory>=2GB and label=eu'",
)
@click.option(
    "--fraction", type=float, metavar="F", help="of the agents, asked each round  [default: 1]"
)
@click.option(
    "--deadline",
    type=float,
    metavar="S",
    help="seconds of a round  [default: as the fleet's measurements say]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="json: one object per line, with fields  [default: text]",
)
@click.option(
    "--log-file", metavar="FILE", help="log all that happens there too; it rotates at 8 MB"
)
@click.option(
    "--metrics", metavar="HOST:PORT", help="answer Prometheus here, such as at 127.0.0.1:9464"
)
@click.option("--seed", type=int, help="[default: 0]")
@click.option("--name", metavar="RUN", help="of the run  [default: method-data, numbered]")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="a run's configuration; flags and --set go over it",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any key of the configuration, such as train.lr=0.05",
)
@click.option("--resume", is_flag=True, help="go on with the run of that name, or the latest")
@click.option(
    "--or-resume",
    is_flag=True,
    help="go on with the run of that name where there is one: for a service that is started again "
    "and again",
)
@RUNS
@FORMAT
def start(
    file: Path | None,
    settings: tuple[str, ...],
    resume: bool,
    or_resume: bool,
    runs: Path,
    form: str,
    **flags: Any,
) -> None:
    """Start a run, or resume one, and stay until it ends."""
    with plainly("start"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.run.launch import start_run

        given = [(FLAGS[flag], value) for flag, value in flags.items() if value not in (None, ())]
        live = form == "text" and sys.stdout.isatty()
        result = start_run(
            ConfigSources(file, os.environ, settings, given),
            runs,
            resume=resume,
            or_resume=or_resume,
            live=live,
            say=speaker(form),
        )
        if form == "json":
            click.echo(json.dumps(result))
