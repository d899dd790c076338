"""The command `coordinator`: start or simulate a run, try the demo, list the methods, export what
was learned.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from coordinator.cli import access, init, schema, steering
from coordinator.cli.options import RUNS, plainly
from federated.errors import ExportError
from federated.runtime.console import FORMAT, speaker
from federated.runtime.logs import configure

__all__ = ["main"]

INIT = (
    "start from these weights: a run's checkpoint, a file of torchvision's, or torchvision:DEFAULT"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="espalier")
@click.option("-v", "--verbose", is_flag=True, help="log what happens on the wire")
def main(verbose: bool) -> None:
    """Grow one model on a fleet of unequal devices. No data leave a device."""
    configure(verbose=verbose)
    # a service manager's wish to stop is a person's ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)


for command in (*access.COMMANDS, *steering.COMMANDS, init.init_command, schema.schema_command):
    main.add_command(command)


# ---- start ---------------------------------------------------------------------------------------

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


@main.command()
@click.option(
    "--method",
    metavar="NAME",
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
    metavar="NAME|PATH|agents",
    help="held-out data and the shape of examples; 'agents': the coordinator has none  [default: "
    "digits]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option("--init", metavar="CHECKPOINT", help=INIT)
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
    """Start a run, or go on with one, and stay until it is over."""
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


# ---- methods -------------------------------------------------------------------------------------


@main.command()
@click.argument("name", required=False)
@FORMAT
def methods(name: str | None, form: str) -> None:
    """List the federated methods, each with its paper; or explain NAME: its settings, their
    defaults, and which laws hold.
    """
    with plainly("methods"):
        from coordinator.cli.methods import described, listed, one_text, table_text

        if name is None:
            click.echo(json.dumps(listed()) if form == "json" else table_text(listed()))
        else:
            click.echo(json.dumps(described(name)) if form == "json" else one_text(described(name)))


# ---- devices, assign -----------------------------------------------------------------------------


@main.command()
@click.argument("run", required=False)
@RUNS
@FORMAT
def devices(run: str | None, runs: Path, form: str) -> None:
    """Show every agent of RUN (default: the latest), under way or over: what it has, what it does,
    and why.
    """
    with plainly("devices"):
        from coordinator.cli.devices import overview, text

        found = overview(run, runs)
        click.echo(json.dumps(found) if form == "json" else text(found))


PLANNED = {
    key: FLAGS[key] for key in ("model", "method", "data", "data_root", "deadline", "select")
}


@main.command()
@click.option(
    "--profile",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    metavar="FILE",
    help="of edge-agent profile --out; may be repeated",
)
@click.option(
    "--model", metavar="NAME|module:function", help="the largest network  [default: preresnet]"
)
@click.option("--method", metavar="NAME", help="[default: fedfa]")
@click.option(
    "--data",
    metavar="NAME|PATH",
    help="for data of this shape  [default: what the devices were measured with]",
)
@click.option("--data-root", metavar="DIR", help="where named data sets lie or are downloaded to")
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    metavar="N",
    help="that each device has  [default: as its profile says]",
)
@click.option(
    "--deadline",
    type=float,
    metavar="S",
    help="seconds of a round  [default: as these devices' measurements say]",
)
@click.option(
    "--select",
    metavar="EXPR",
    help="only devices that meet this, such as 'memory>=2GB and label=eu'",
)
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
    help="any key of the configuration, such as method.widths=[0.5,1.0]",
)
@FORMAT
def assign(
    files: tuple[Path, ...],
    examples: int | None,
    file: Path | None,
    settings: tuple[str, ...],
    form: str,
    **flags: Any,
) -> None:
    """Say, without a broker or a fleet, what each profiled device would get and why, with all that
    it was offered.
    """
    with plainly("assign"):
        from coordinator.simulate.offline_assignment import assign_offline, text

        given = [(PLANNED[flag], value) for flag, value in flags.items() if value is not None]
        found = assign_offline(files, file, os.environ, settings, given, examples)
        click.echo(json.dumps(found) if form == "json" else text(found))


# ---- simulate ------------------------------------------------------------------------------------


def whole_numbers(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> list[int] | None:
    try:
        return None if text is None else [int(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected whole numbers such as 0,1,2, found '{text}'") from None


SIMULATED = {
    "device": "simulate.device",
    "seeds": "simulate.seeds",
    "workers": "simulate.workers",
    "init": "model.init",
}


@main.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="EXPERIMENT.toml")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="any key of the experiment, such as train.lr=0.05",
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), help="where devices train  [default: cpu]"
)
@click.option(
    "--seeds",
    callback=whole_numbers,
    metavar="0,1,2",
    help="one run each  [default: the experiment's own]",
)
@click.option("--init", metavar="CHECKPOINT", help=INIT)
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="processes that train  [default: one per processor; with cuda 4 at most]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="where results and pictures go  [default: results/NAME]",
)
@click.option("--resume", is_flag=True, help="go on with what is not finished")
@RUNS
@FORMAT
def simulate(
    file: Path,
    settings: tuple[str, ...],
    out: Path | None,
    resume: bool,
    runs: Path,
    form: str,
    **flags: Any,
) -> None:
    """Run an experiment's fleet on this machine: the rounds and methods of `start`, with simulated
    devices.

    `coordinator start --config EXPERIMENT.toml` starts a real fleet from the same file.
    """
    with plainly("simulate"):
        from coordinator.run.config_sources import ConfigSources
        from coordinator.simulate.simulation import simulate as run_simulation

        given = [(SIMULATED[flag], value) for flag, value in flags.items() if value is not None]
        sources = ConfigSources(file, os.environ, settings, given)
        result = run_simulation(sources, runs, out, resume=resume, say=speaker(form))
        if form == "json":
            click.echo(json.dumps(result))


# ---- demo ----------------------------------------------------------------------------------------


@main.command()
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--rounds", type=int, default=0, help="[default: as many as the demo needs]")
@click.option(
    "--no-limits", is_flag=True, help="leave the four agents equal, to see what they are given then"
)
@click.option(
    "--broker-kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="auto: mosquitto where it is installed, else the embedded broker",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="keep the run, the exported networks and the logs here",
)
@FORMAT
def demo(
    seed: int, rounds: int, no_limits: bool, broker_kind: str, keep: Path | None, form: str
) -> None:
    """Four unequal devices, as real processes under enforced limits, learn handwritten digits
    together; a fifth, without PyTorch, infers.
    """
    with plainly("demo"):
        from coordinator.cli.demo import run_demo

        result = run_demo(
            seed=seed,
            rounds=rounds,
            limited=not no_limits,
            kind=broker_kind,
            keep=keep,
            say=speaker(form),
        )
        if form == "json":
            click.echo(json.dumps(result))


# ---- export --------------------------------------------------------------------------------------


@main.command()
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="where the release is written",
)
@click.option(
    "--submodel",
    "wanted",
    multiple=True,
    metavar="NAME",
    help="only this one; may be repeated  [default: all that were calibrated]",
)
@click.option(
    "--int8/--no-int8",
    default=True,
    show_default=True,
    help="write each as int8 as well, where that can be done",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples (.npz: x, and y if known) to measure with, where the run's data are not "
    "here",
)
@RUNS
@FORMAT
def export(
    run: str,
    out: Path,
    wanted: tuple[str, ...],
    int8: bool,
    inputs: Path | None,
    runs: Path,
    form: str,
) -> None:
    """Write the submodels of RUN as ONNX, in float32 and int8, each measured beside PyTorch on real
    inputs, with a model card.

    `coordinator release` brings them to the agents.
    """
    with plainly("export"):
        from coordinator.release.export_run import ExportRequest, export_run

        request = ExportRequest(run, runs, out, wanted, inputs, int8)
        result = export_run(request, speaker(form))
        if form == "json":
            click.echo(json.dumps(result))


# ---- release -------------------------------------------------------------------------------------


@main.command()
@click.argument("run")
@click.option("--broker", metavar="HOST|URL", help="the broker that agents hear")
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="release this folder of `export`  [default: the run's last round]",
)
@click.option(
    "--canary", "share", metavar="10%|N|NAME,NAME", help="to so many agents first, or to these"
)
@click.option(
    "--promote",
    is_flag=True,
    help="give the canary to all, if its agents report it as good; with --canary: wait, then "
    "promote or roll back",
)
@click.option(
    "--rollback", is_flag=True, help="take the canary back; without one, the last release"
)
@click.option("--status", is_flag=True, help="only say what is released, and what agents report")
@click.option(
    "--wait",
    type=float,
    metavar="SECONDS",
    help="for reports of agents  [default: 60 with --canary, else 0]",
)
@click.option(
    "--force", is_flag=True, help="promote whatever was reported; release what was rolled back"
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples (.npz) to compare with, where the run's data are not here",
)
@RUNS
@FORMAT
def release(runs: Path, form: str, **options: Any) -> None:
    """Bring the networks of RUN to the agents that answer with them (`edge-agent infer --broker`):
    to all, to some first, or back.

    Exits with 8 where a canary is not promoted, or was rolled back.
    """
    with plainly("release"):
        from coordinator.release.rollout import Wish, release_run

        result = release_run(Wish(**options), runs, say=speaker(form))
        if form == "json":
            click.echo(json.dumps(result))
        if "error" in result:
            raise ExportError(result["error"])


if __name__ == "__main__":
    main()
