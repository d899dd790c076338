"""List the submodels of a network, count their cost, cut them out, and merge them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from espalier.argument_checks import (
    check_count,
    check_is,
    check_submodel,
    read_counts,
    read_fractions,
    read_tensors,
)
from espalier.passed_object_names import name_data, name_method, name_model
from federated.errors import ArgumentError, ConfigError, UsageError, require_extra
from federated.runtime.extension_errors import explain_lookup
from models.submodel import Network, Submodel

if TYPE_CHECKING:
    from torch import Tensor, nn

    from coordinator.release.stored_run import StoredRun
    from models.cost import Cost

__all__ = ["cost", "menu", "merge", "network", "slice"]

log = logging.getLogger(__name__)

SOURCES = "a network of espalier.network, or a run of espalier.load_run"


def network(
    model: nn.Module | Callable[[], nn.Module] | str,
    inputs: Sequence[int] = (),
    outputs: int = 0,
    *,
    data: object = None,
) -> Network:
    """Return the record of a network that can be cut into submodels.

    model: a module, which is copied with its weights; a function that returns one; or a name, such
        as "resnet-18" or "timm:vit_tiny_patch16_224" (`coordinator start --model`). The module
        takes floats [n, *inputs] and returns [n, outputs].
    inputs: shape of one raw example, such as (3, 32, 32) for an image, channels first.
    outputs: number of classes; 0: as many as the module returns.
    data: data as in `run`, in place of `inputs` and `outputs`. The network then normalises with its
        mean and standard deviation.

    Raises Unknown for an unknown name; ConfigError for a network that cannot take such examples;
    DataError; MissingExtra.
    """
    with require_extra("espalier.network", "coordinator"):
        from coordinator.assign.majority_network import build_network
        from federated.data.loading import load_central
        from federated.task import Card
        from models.families.catalogue import POINT
        from models.named_network import find_typical_data
        from models.user_networks.given_network import count_outputs
    from coordinator.settings.config import Config
    from coordinator.settings.config_tables import Model

    name = name_model(model)
    with explain_lookup(POINT):
        find_typical_data(name)  # raises for a name without a network
    if data is not None:
        card = load_central(name_data(data)).card()
    elif isinstance(inputs, Sequence) and not inputs:
        raise UsageError("network: the shape of an example is missing: add inputs=(3, 32, 32)")
    else:
        shape = read_counts("inputs", inputs, "(3, 32, 32)")
        check_count("outputs", outputs, 0)
        with explain_lookup(POINT):
            outputs = outputs or count_outputs(name, shape)
        if not outputs:
            raise UsageError(
                f"network: the number of classes of '{name}' is missing: add outputs=10"
            )
        card = Card("inputs", shape, "float32", outputs, 1, 0, (0.0,), (1.0,))
    return build_network(Config(model=Model(name=name)), [card])


def menu(
    network: Network,
    widths: Sequence[float] = (0.25, 0.5, 0.75, 1.0),
    depths: Sequence[int] = (),
) -> tuple[Submodel, ...]:
    """Return the submodels of every width with every depth, by number of parameters.

    widths: kept fractions of the channels of each layer, in (0, 1].
    depths: kept blocks of each section; empty: all blocks. As in `run`, a section with fewer blocks
        keeps all of them.

    Logs a warning for a network that hardly gets smaller, with the layers that stay whole. Raises
    ConfigError for one that cannot be narrowed, with the layer that prevents it; MissingExtra.
    """
    check_is("network", network, (Network,), "a network of espalier.network")
    widths = read_fractions("widths", widths)
    depths = read_counts("depths", depths, "(1, 2)")
    with require_extra("espalier.menu", "train"):
        from edge_agent.bench.benchmark_targets import select_submodels

        made = select_submodels(network, widths, depths, ())
        warn_of_whole_layers(min(made, key=attrgetter("width")))
        return made


@cache
def warn_of_whole_layers(submodel: Submodel) -> None:
    """Log once why a narrow submodel is hardly smaller than the whole network, if it is."""
    from models.submodel_building import shapes
    from models.user_networks.whole_layers import explain_whole_layers

    whole = replace(submodel, width=1.0)
    if why := explain_whole_layers(submodel, shapes(submodel), shapes(whole)):
        log.warning("%s", why)


def cost(submodel: Submodel, batch: int = 1) -> Cost:
    """Return the cost of a submodel: parameters, multiply-adds per example of inference (`macs`)
    and of training (`training_macs`), bytes as float32, and the estimated peak bytes of a training
    step (`memory`) with `batch` examples. Nothing is computed or allocated. Raises MissingExtra.
    """
    check_is("submodel", submodel, (Submodel,), "a submodel of espalier.menu")
    check_count("batch", batch)
    with require_extra("espalier.cost", "train"):
        from models.cost import cost as count_cost

        return count_cost(submodel, batch)


def slice(
    source: Network | StoredRun,
    submodel: Submodel | str,
    weights: nn.Module | Mapping[str, Tensor] | None = None,
) -> nn.Module:
    """Return a submodel as a module in evaluation mode: the weights that a device would receive.

    source: a network, or a run (`load_run`); from a run, it gets batch norm statistics, too.
    submodel: one of `menu` of the same network, or for a run its name, such as "w0.5-d2.2.2".
    weights: weights of the largest network, as a module or as tensors by name; None: those of the
        run, of the module that was passed to `network`, or else initial ones.

    Each tensor is the leading part of the largest network's tensor of the same name. The module
    takes raw examples [n, *inputs]. Raises Unknown, ConfigError, DataError; ExportError for a run
    that keeps tensors on devices or was not calibrated; MissingExtra.
    """
    with require_extra("espalier.slice", "coordinator"):
        from coordinator.release.stored_run import StoredRun, find_submodel, slice_run
        from federated.manual_round import cut

    check_is("source", source, (Network, StoredRun), SOURCES)
    check_is("submodel", submodel, (Submodel, str), "a submodel of espalier.menu, or its name")
    if not isinstance(source, Network):
        name = submodel if isinstance(submodel, str) else submodel.name
        known = find_submodel(source, name)
        if isinstance(submodel, Submodel):
            check_submodel("submodel", submodel, known.network)
        if weights is None:
            return slice_run(source, name)
        submodel = known
    if not isinstance(submodel, Submodel):
        raise UsageError(
            f"slice: expected a submodel of menu(network), found '{submodel}'; only a run has "
            "submodels by name"
        )
    if isinstance(source, Network):
        check_submodel("submodel", submodel, source)
    return cut(submodel, None if weights is None else read_tensors("weights", weights))


def merge(
    source: Network | StoredRun,
    updates: Sequence[tuple[nn.Module | Mapping[str, Tensor], int]],
    weights: nn.Module | Mapping[str, Tensor] | None = None,
    *,
    method: Callable[[], Any] | str = "fedavg",
    **settings: object,
) -> dict[str, Tensor]:
    """Aggregate updates of different sizes into the largest network, as a method does.

    source: a network, or a run, which brings its own method, settings and weights.
    updates: pairs of a trained submodel, as a module or as tensors by name, and the number of
        examples that it was trained on. The shapes of the tensors determine the submodel.
    weights: weights of the largest network before the round; None: as in `slice`. A weight that no
        update holds keeps its value.
    method, settings: name of a method, or a function that returns one, and its settings, such as
        `widths=(0.5, 1.0)` (`coordinator methods NAME`).

    Returns the tensors of the largest network by name, for `slice`, or `weights` of the next merge.
    Batch norm statistics are averaged over the sizes, or missing (setting `norm="static"`): pass
    about 50 batches through a slice in training mode before it predicts.
    Raises DataError for tensors that fit no submodel; ConfigError, Unknown; MissingExtra.
    """
    with require_extra("espalier.merge", "coordinator"):
        from coordinator.release.stored_run import StoredRun
        from federated.manual_round import begin_round, fold_by_hand
        from federated.methods.catalogue import find_method

    check_is("source", source, (Network, StoredRun), SOURCES)
    known = read_updates(updates)
    before = None if weights is None else read_tensors("weights", weights)
    if isinstance(source, Network):
        chosen = find_method(name_method(method))
        state = begin_round(source, before, chosen, settings)
    elif settings or before is not None:
        raise ConfigError(
            "merge: a run has its own settings and weights: pass the run alone, or its `network`"
        )
    else:
        chosen, state = source.method, source.state
    return dict(fold_by_hand(chosen, state, known).tensors)


def read_updates(updates: Any) -> list[tuple[Mapping[str, Tensor], int]]:
    """Return the tensors and the number of examples of each update. Raises ArgumentError."""
    expected = "a list of pairs (module or tensors by name, number of examples)"
    try:
        pairs = list(updates)
    except TypeError:
        raise ArgumentError("updates", expected, updates) from None
    if not pairs:
        raise ArgumentError("updates", f"at least one update in {expected}", updates)
    known = []
    for index, update in enumerate(pairs):
        place = f"updates[{index}]"
        if not isinstance(update, Sequence) or len(update) != 2:
            raise ArgumentError(place, "a pair (module, number of examples)", update)
        check_count(f"{place}[1]", update[1])
        known.append((read_tensors(f"{place}[0]", update[0]), update[1]))
    return known
