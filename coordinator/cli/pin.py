"""`coordinator pin AGENT [SUBMODEL]`: fix the submodel of an agent while its run is in progress."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_answer, print_errors
from federated.errors import UsageError
from federated.runtime.console import FORMAT

__all__ = ["pin"]


@click.command()
@click.argument("agent")
@click.argument("submodel", required=False)
@click.option("--run", metavar="RUN", help="name of the run  [default: the run in progress]")
@click.option("--off", is_flag=True, help="remove the pin: the agent's measurements decide again")
@RUNS
@FORMAT
def pin(
    agent: str, submodel: str | None, run: str | None, off: bool, runs: Path, form: str
) -> None:
    """Give AGENT the submodel SUBMODEL from the next round on.

    The pin overrides the submodel that the coordinator chooses from the device's measurements. It
    also applies after the run is resumed, until --off removes it. `coordinator devices` shows each
    agent's submodel and the reason.
    """
    with print_errors("pin"):
        from coordinator.store import control_requests
        from coordinator.store.run_folders import find_current_run

        if off == (submodel is not None):
            raise UsageError("expected either a submodel or --off")
        folder = runs / (run or find_current_run(runs))
        before = control_requests.pin_agent(folder, agent, submodel or "")
        answer = (
            f"gives {agent} the submodel {submodel} from the next round on"
            if submodel
            else f"lets the measurements of {agent} decide again"
            if before
            else f"had no pin for {agent}"
        )
        print_answer(folder, answer, form)
