"""`coordinator export RUN`: export the submodels of a run as ONNX, with a model card."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import RUNS, print_errors
from federated.runtime.console import FORMAT, print_result, speaker
from federated.runtime.torch_import import pause_collection

__all__ = ["export"]


@click.command()
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="folder to write the release to",
)
@click.option(
    "--submodel",
    "wanted",
    multiple=True,
    metavar="NAME",
    help="export only this submodel; may be repeated  [default: all that have batch norm "
    "statistics]",
)
@click.option(
    "--int8/--no-int8",
    default=True,
    show_default=True,
    help="also write each submodel in int8, if that is supported",
)
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="raw examples to check the networks with: .npz with x, and y if known  [default: the "
    "run's data]",
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
    """Export the submodels of RUN as ONNX, with a model card.

    Each network is written in float32 and int8, and compared with PyTorch on real inputs.
    `coordinator release` sends them to the agents.
    """
    with print_errors("export"):
        with pause_collection():
            from coordinator.release.export_run import ExportRequest, export_run

        request = ExportRequest(run, runs, out, wanted, inputs, int8)
        result = export_run(request, speaker(form))
        print_result(result, form)
