"""`coordinator start`: start or resume a run, and wait until it ends."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import FILE, INIT, RUNS, config_flag, list_given, print_errors
from coordinator.phones.defaults import ADDRESS as PHONES
from coordinator.store.run_lock import LEASE, SHORTEST
from coordinator.web.defaults import ADDRESS
from federated.errors import UsageError
from federated.runtime.console import FORMAT, FiniteRange, print_result, speaker
from federated.runtime.torch_import import pause_collection

__all__ = ["start"]


@click.command()
@config_flag(
    "--method",
    key="method.name",
    metavar="NAME|module:function",
    help="federated method; `coordinator methods` lists them",
)
@config_flag("--broker", key="broker.url", metavar="HOST|URL")
@config_flag("--listen", key="broker.listen", metavar="ADDR")
@config_flag("--port", key="broker.port", type=int, metavar="PORT")
@config_flag("--tls", key="broker.tls", is_flag=True, default=None)
@config_flag(
    "--host",
    "hosts",
    key="broker.hosts",
    multiple=True,
    metavar="HOST",
    help="with tls, additional name or address of this machine in its certificate; may be repeated",
)
@config_flag("--pki", key="broker.pki", metavar="DIR")
@config_flag("--passwords", key="broker.passwords", metavar="FILE")
@config_flag("--model", key="model.name", metavar="NAME|module:function", help="largest network")
@config_flag(
    "--data",
    key="data.name",
    metavar="NAME|PATH|module:function|agents",
    help="validation data of the coordinator; 'agents': it has none",
)
@config_flag("--data-root", key="data.root", metavar="DIR")
@INIT
@config_flag("--rounds", key="rounds", type=int, metavar="N")
@config_flag("--target-accuracy", key="target_accuracy", type=float, metavar="A")
@config_flag("--min-agents", key="fleet.min_agents", type=int, metavar="N")
@config_flag("--select", key="fleet.select", metavar="EXPR")
@config_flag("--fraction", key="fleet.fraction", type=float, metavar="F")
@config_flag("--deadline", key="fleet.deadline", type=float, metavar="SECONDS")
@config_flag("--workers", key="wire.workers", type=int, metavar="N")
@config_flag("--log-format", key="log.format", type=click.Choice(["text", "json"]))
@config_flag("--log-file", key="log.file", metavar="FILE")
@config_flag("--metrics", key="metrics.listen", metavar="HOST:PORT")
@config_flag(
    "--phones",
    key="phones.listen",
    is_flag=False,
    flag_value=PHONES,
    metavar="[HOST:PORT]",
    help=f"also serve the page with which phones join, by default at {PHONES}; `coordinator enroll "
    "NAME --phone` prints a code for one phone",
)
@config_flag("--phones-url", key="phones.url", metavar="URL")
@config_flag("--phones-certificate", key="phones.certificate", metavar="FILE")
@config_flag("--phones-key", key="phones.key", metavar="FILE")
@config_flag("--phones-tls", key="phones.tls", is_flag=True, default=None)
@config_flag("--seed", key="seed", type=int, metavar="N")
@config_flag("--name", key="name", metavar="RUN")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="run.toml",
    help="configuration of the run; flags and --set override it",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="setting of the configuration, such as train.lr=0.05; may be repeated",
)
@click.option(
    "--web",
    is_flag=False,
    flag_value=ADDRESS,
    metavar="[HOST:PORT]",
    help=f"also serve the page of `coordinator web`, by default at {ADDRESS}; an address that "
    "other machines can reach needs a certificate",
)
@click.option(
    "--web-certificate", type=FILE, metavar="FILE", help="certificate of the web page, for HTTPS"
)
@click.option("--web-key", type=FILE, metavar="FILE", help="private key of this certificate")
@click.option("--resume", is_flag=True, help="resume the run called --name, or else the latest run")
@click.option(
    "--or-resume",
    is_flag=True,
    help="resume the run called --name if it exists, or else start it; for services that restart",
)
@click.option(
    "--standby",
    is_flag=False,
    flag_value=LEASE,
    type=FiniteRange(min=SHORTEST),
    metavar="[SECONDS]",
    help="wait until the run called --name has no coordinator, or its coordinator gave no sign of "
    f"life for this time (by default {LEASE:g} s), then resume it; both share the folder --runs "
    "and the broker",
)
@RUNS
@FORMAT
def start(
    file: Path | None,
    settings: tuple[str, ...],
    web: str | None,
    web_certificate: Path | None,
    web_key: Path | None,
    resume: bool,
    or_resume: bool,
    standby: float | None,
    runs: Path,
    form: str,
    **flags: Any,
) -> None:
    """Start or resume a run, and wait until it ends.

    Every setting can be given as --set KEY=VALUE, in a file with --config, or in the environment,
    such as ESPALIER_FLEET__MIN_AGENTS=4. `coordinator init` lists all settings.
    """
    with print_errors("start"), ExitStack() as stack:
        with pause_collection():
            from coordinator.run.config_sources import ConfigSources
            from coordinator.run.launch import View, start_run

        if standby is not None and (resume or or_resume):
            raise UsageError("--standby resumes the run: remove --resume and --or-resume")
        live = form == "text" and sys.stdout.isatty()
        if web is None and (web_certificate, web_key) != (None, None):
            raise UsageError("--web-certificate and --web-key require --web")
        if web is not None:
            from coordinator.web.serve import Listen, serve_beside

            options = ("--web", "--web-certificate", "--web-key")
            where = Listen(web, web_certificate, web_key, options=options)
            stack.enter_context(serve_beside(runs, where, speaker(form)))
        result = start_run(
            ConfigSources(file, os.environ, settings, list_given(flags)),
            runs,
            View(speaker(form), live),
            resume=resume,
            or_resume=or_resume,
            standby=standby,
        )
        print_result(result, form)
