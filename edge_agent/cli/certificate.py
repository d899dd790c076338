"""`edge-agent certificate URL`: get or renew a certificate of a company's authority by EST."""

from __future__ import annotations

from pathlib import Path

import click

from edge_agent.cli.flags import print_errors
from federated.errors import UsageError, explain_os_errors, require_extra
from federated.runtime.console import FORMAT, print_result

__all__ = ["certificate"]

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("url")
@click.option("--name", required=True, metavar="ID", help="this agent's name, the common name")
@click.option(
    "--out",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="folder for ca.pem and agent.pem",
)
@click.option(
    "--ca",
    "trust",
    type=FILE,
    metavar="FILE",
    help="certificates of the authorities that may certify URL's server  [default: the system's]",
)
@click.option("--user", default="", metavar="USER", help="user name for the first certificate")
@click.option("--password-file", type=FILE, metavar="FILE", help="file of the user's password")
@click.option("--force", is_flag=True, help="renew the certificate although it is not due")
@FORMAT
def certificate(
    url: str,
    name: str,
    folder: Path,
    trust: Path | None,
    user: str,
    password_file: Path | None,
    force: bool,
    form: str,
) -> None:
    """Get a certificate of a company's authority by EST.

    URL is its address, such as https://ca.example/.well-known/est. Repeat the command daily:
    it renews the certificate once less than a third of its life is left.
    """
    with print_errors("certificate"), require_extra("edge-agent certificate", "secure"):
        from edge_agent.access.est_client import EstRequest, obtain

        if bool(user) != (password_file is not None):
            raise UsageError("--user and --password-file: expected both or neither")
        password = ""
        if password_file is not None:
            with explain_os_errors(UsageError, f"cannot read {password_file}"):
                password = password_file.read_text().strip()
        made, new = obtain(EstRequest(url, name, folder, trust, user, password, force))
        until = made.not_valid_after_utc.isoformat(timespec="seconds")
        said = f"{'new' if new else 'kept'}, valid until {until}: {folder / 'agent.pem'}"
        print_result({"name": name, "new": new, "until": until}, form, lambda _: said)
