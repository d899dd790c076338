"""Training graphs that the tests of all workers share, since an export computes for seconds."""

from __future__ import annotations

from pathlib import Path

from coordinator.assign.majority_network import build_network
from coordinator.run.run_preparation import make_weights, propose_menu
from coordinator.settings.config import Config
from export.trainstep.export_process import export_graphs
from export.trainstep.graph_order import GraphOrder, make_order
from federated.data import loading
from federated.methods.catalogue import find_method
from tests.support.shared_folders import share_folder

__all__ = ["find_graphs", "list_orders"]


def list_orders(config: Config) -> list[GraphOrder]:
    """Return the order for each submodel of a run on digits, the smallest submodel first."""
    method = find_method(config.method_name)
    network = build_network(config, [loading.load_central("digits").card()])
    menu = propose_menu(method, network, config.settings)
    state = method.start(make_weights(config, network, method), menu, config.settings)
    return [make_order(one, method.recipe(state, one)) for one in menu]


def find_graphs(order: GraphOrder, tmp_path: Path) -> Path:
    """Return the folder of the graphs of an order, exported by the first test that needs them. Copy
    it to runs/NAME/graphs/ORDER, as if an earlier process of the run had exported them. tmp_path:
    of the test.
    """
    return share_folder(order.name, tmp_path.parent, lambda folder: export_graphs(order, folder))
