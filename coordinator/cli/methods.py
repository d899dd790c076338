"""`coordinator methods [NAME]`: list the federated methods with their papers, or explain one."""

from __future__ import annotations

import click

from coordinator.cli.options import print_errors
from federated.runtime.console import FORMAT, print_result

__all__ = ["methods"]


@click.command()
@click.argument("name", required=False)
@FORMAT
def methods(name: str | None, form: str) -> None:
    """List the federated methods and their papers, or explain NAME.

    The explanation lists the method's settings with their defaults, the properties (laws) that
    tests check, and the modes that it supports. NAME may be module:function.
    """
    with print_errors("methods"):
        from coordinator.views.method_pages import (
            describe_method,
            list_methods,
            render_list,
            render_method,
        )

        if name is None:
            print_result(list_methods(), form, render_list)
        else:
            print_result(describe_method(name), form, render_method)
