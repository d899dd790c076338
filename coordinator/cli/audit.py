"""`coordinator audit [RUN]`: show who asked for what."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import PKI, RUNS, print_errors
from federated.errors import StoreError
from federated.runtime.console import FORMAT, print_result

__all__ = ["audit"]


@click.command()
@click.argument("run", required=False)
@RUNS
@PKI
@FORMAT
def audit(run: str | None, runs: Path, pki: str, form: str) -> None:
    """Show who asked for what, when and from where.

    The log covers start, resume, pause, stop, pin, release, promote, roll back, upgrade, repair,
    enroll, register, revoke, claims, groups and rights.
    Without RUN, show all runs and the certificate authority. The exit code is 7 if a row was
    changed or is missing.
    """
    with print_errors("audit"):
        from coordinator.access.configured_authority import find_default_folder
        from coordinator.views.audit_rows import format_row, read_rows

        rows, damage = read_rows(run, runs, Path(pki) if pki else find_default_folder())
        for row in rows:
            print_result(row, form, format_row)
        if damage:
            raise StoreError(f"the audit log is damaged: {'; '.join(damage)}")
        if not rows:
            click.echo("nothing was recorded yet", err=True)
