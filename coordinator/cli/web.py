"""`coordinator web`: serve a web page that shows and controls all runs."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import FILE, RUNS, print_errors
from coordinator.web.defaults import ADDRESS, TOKEN

__all__ = ["web"]


@click.command()
@click.option(
    "--listen",
    "address",
    default=ADDRESS,
    show_default=True,
    metavar="HOST:PORT",
    help="address of the page; one that other machines can reach needs a certificate",
)
@click.option("--certificate", type=FILE, metavar="FILE", help="certificate for HTTPS")
@click.option("--key", type=FILE, metavar="FILE", help="private key of the certificate")
@click.option(
    "--token-file",
    type=FILE,
    metavar="FILE",
    help=f"file of the token to sign in with; created if missing  [default: {TOKEN} in --runs]",
)
@RUNS
def web(
    address: str, certificate: Path | None, key: Path | None, token_file: Path | None, runs: Path
) -> None:
    """Show all runs on a web page, and control them."""
    with print_errors("web"):
        from coordinator.web.serve import Listen, serve_page

        serve_page(runs, Listen(address, certificate, key, token_file), click.echo)
