"""`coordinator grant NAME... --run RUN`: let devices take part in named runs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import PKI, print_errors
from federated.errors import Unknown, UsageError
from federated.runtime.console import FORMAT, print_result

if TYPE_CHECKING:
    from coordinator.access.run_rights import Subject

__all__ = ["grant"]

UNUSED = "no run of this name used this certificate authority yet"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--run", metavar="RUN", help="name of the run")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP", help="also a group; may be repeated"
)
@click.option("--off", is_flag=True, help="withdraw the run")
@click.option("--every-run", is_flag=True, help="remove the limit to named runs")
@PKI
@FORMAT
def grant(
    names: tuple[str, ...], run: str | None, groups: tuple[str, ...], pki: str, **more: Any
) -> None:
    """Let devices take part in a run, or show their rights.

    A device without a limit may take part in every run. Once it or one of its groups is granted a
    run, it may take part only in granted runs. A running coordinator applies a change
    within seconds.
    """
    form, off, every = more["form"], more["off"], more["every_run"]
    with print_errors("grant"):
        from coordinator.access.configured_authority import change_rights, read_limits, read_runs
        from coordinator.access.run_rights import Subject
        from coordinator.settings.service_tables import Broker

        subjects = [Subject("agent", name) for name in dict.fromkeys(names)]
        subjects += [Subject("group", name) for name in dict.fromkeys(groups)]
        if not subjects:
            if run is not None or off or every:
                raise UsageError("expected NAME... or --group GROUP")
            print_rights({**read_limits(Broker(pki=pki))}, form)
            return
        if (run is None) != every or (off and every):
            raise UsageError("expected either --run RUN or --every-run; --off needs --run")
        known = read_runs(Broker(pki=pki))
        print_rights(change_rights(Broker(pki=pki), subjects, run, withdraw=off), form)
        if run is not None and run not in known:
            hint = UNUSED if off else f"{UNUSED}: if the name is wrong, withdraw it with --off"
            click.echo(f"warning: {Unknown('run', run, known, hint)}", err=True)


def print_rights(rights: dict[Subject, tuple[str, ...] | None], form: str) -> None:
    """Print the runs of devices and groups; None: every run."""
    lines = [
        f"{one}: {'every run' if runs is None else ', '.join(runs) or 'no run'}"
        for one, runs in rights.items()
    ]
    rows = [{one.kind: one.name, "runs": runs} for one, runs in rights.items()]
    text = "\n".join(lines) or "every device may take part in every run"
    print_result({"rights": rows}, form, lambda _: text)
