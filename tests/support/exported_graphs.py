"""Training graphs that the tests of all workers share, since an export computes for seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

from coordinator.assign.majority_network import build_network
from coordinator.run.run_preparation import make_weights, propose_menu
from coordinator.settings.config import Config
from export.trainstep.export_process import export_graphs
from export.trainstep.graph_order import GraphOrder, make_order
from federated.data import loading
from federated.methods.catalogue import find_method
from tests.support.shared_folders import share_folder

__all__ = ["list_orders", "share_graphs"]


def list_orders(config: Config) -> list[GraphOrder]:
    """Return the order for each submodel of a run on digits, the smallest submodel first."""
    method = find_method(config.method_name)
    network = build_network(config, [loading.load_central("digits").card()])
    menu = propose_menu(method, network, config.settings)
    state = method.start(make_weights(config, network, method), menu, config.settings)
    return [make_order(one, method.recipe(state, one)) for one in menu]


def share_graphs(order: GraphOrder, run: Path, tmp_path: Path) -> None:
    """Put the graphs of an order into a run's folder, as if an earlier process of the run had
    exported them. tmp_path: of the test.
    """
    made = share_folder(
        f"graphs-{order.name}", tmp_path.parent, lambda folder: export_graphs(order, folder)
    )
    shutil.copytree(made, run / "graphs" / order.name)
