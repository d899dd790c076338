"""FlexiFed: average the layers that devices of different architectures have in common (Wang et al.,
Personalized Federated Learning for Edge Clients with Heterogeneous Model Architectures, WWW 2023,
doi 10.1145/3543507.3583347; a baseline of FedFA, arXiv 2406.09877).

Difference from FedAvg: a network is a chain of layers, and devices share the layers that their
chains have in common, from the first on. The mean counts devices, not examples. `strategy`:

    basic      the layers common to all devices; the others stay on the device
    clustered  the layers common to all devices; the others within each architecture
    max        each layer among all devices whose chains agree up to it and including it

In the authors' code a round trains on the next tenth of a device's data, in ten passes: set
`portion = 0.1`.

Under max, the paper's best, a layer is stored under a digest of the chain that ends in it, so
devices meet where their chains agree, without comparisons. Two layers are equal if they have the
same name and the same shapes (the authors' code compares names only); a norm's running statistics
are part of its layer. `match = "position"` compares the layer itself, whatever precedes it, as
FedFA does.

The basic and clustered strategies compare the architectures of all present devices, whether they
train in this round or not. A layer that was not common once never becomes so, even after the device
without it leaves: otherwise the common initial layer would replace what the others learned. A layer
that stays on a device starts from the run's seed.

Without `depths` the menu has a quarter, a half, three quarters and all of each section, rounded up.
For VGG-19 these are VGG-11, VGG-16 and VGG-19, three of the paper's four, and one with a
convolution per section.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import torch

from federated.engine.aggregate import Total
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, vary
from federated.methods import fedavg
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.task import Recipe
from models.slicing import Plan
from models.submodel import Network, Submodel
from models.submodel_building import full, shapes, statistics

__all__ = ["flexifed"]

DIGEST = 12  # hexadecimal digits


def layer_digests(submodel: Submodel, settings: Settings) -> dict[str, str]:
    """Return the digest of each tensor's layer, in the network's order; if matched by prefix, of
    all layers before it too.
    """
    layers: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    tensors = shapes(submodel) | (statistics(submodel) if settings["norm"] == "tracked" else {})
    for name, shape in tensors.items():
        layers.setdefault(name.rpartition(".")[0], []).append((name, shape))
    found, digest = dict[str, str](), hashlib.sha256()
    for layer in layers.values():
        digest = hashlib.sha256() if settings["match"] == "position" else digest
        digest.update(repr(sorted(layer)).encode())
        found |= {name: digest.hexdigest()[:DIGEST] for name, _ in layer}
    return found


def common_tensors(state: State, submodel: Submodel) -> frozenset[str]:
    """Return the submodel's tensors in layers that all devices have and always had; all of them
    without a fleet.
    """
    fleet = [set(layer_digests(other, state.settings).values()) for other in state.fleet]
    split = {home.partition("@")[0] for home in state.tensors if "@" in home}
    layers = layer_digests(submodel, state.settings)
    return frozenset(
        name
        for name, layer in layers.items()
        if name not in split and all(layer in other for other in fleet)
    )


def place(state: State, submodel: Submodel) -> Plan:
    """Return FedAvg's rows, in homes that the devices of a layer share."""
    plan, strategy = fedavg.place(state, submodel), state.settings["strategy"]
    if strategy == "max":
        layers = layer_digests(submodel, state.settings)
        return replace(
            plan,
            rows=tuple(fedavg.move_to_group(row, f"max-{layers[row.local]}") for row in plan.rows),
        )
    shared = common_tensors(state, submodel)
    rows = [row for row in plan.rows if row.local in shared]
    if strategy == "clustered":
        rows += [
            fedavg.move_to_group(row, submodel.plain.name)
            for row in plan.rows
            if row.local not in shared
        ]
    return replace(plan, rows=tuple(rows))


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """Return FedAvg's state. An empty home `NAME@devices` marks each layer that is not common,
    which stays on devices from now on.
    """
    after = fedavg.finish(state, total, rng)
    if state.settings["strategy"] != "basic" or not total.sums:
        return after
    own = {
        name
        for submodel in state.fleet
        for name in layer_digests(submodel, state.settings).keys() - common_tensors(state, submodel)
    }
    return replace(
        after,
        tensors={**after.tensors, **{f"{name}@devices": torch.empty(0) for name in sorted(own)}},
    )


def recipe(state: State, submodel: Submodel) -> Recipe:
    """Return FedAvg's recipe; under the basic strategy, layers that are not common stay on the
    device.
    """
    made = fedavg.recipe(state, submodel)
    if state.settings["strategy"] != "basic":
        return made
    shared = common_tensors(state, submodel)
    return replace(
        made,
        keep=tuple(name for name in layer_digests(submodel, state.settings) if name not in shared),
    )


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return FedAvg's menu, or quarters of every section.

    ConfigError: the norm needs statistics of layers that stay on devices.
    """
    if settings["strategy"] == "basic" and settings["norm"] == "static":
        raise ConfigError(
            "flexifed: norm = 'static' cannot measure layers that stay on devices: set norm = "
            "'tracked', or another strategy than basic"
        )
    sections = [len(section) for section in full(network).mask]
    quarters = tuple(
        tuple(math.ceil(blocks * part / 4) for blocks in sections) for part in (1, 2, 3, 4)
    )
    return propose_sizes(
        network, msgspec.structs.replace(settings, depths=settings["depths"] or quarters)
    )


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from one_size(menu, settings)
    chains = [set(layer_digests(submodel, settings).values()) for submodel in menu]
    if len(menu) > 1 and all(
        one.isdisjoint(other) for one, other in itertools.combinations(chains, 2)
    ):
        yield (
            "no two submodels have a layer in common: set method.depths to several depths and "
            "method.widths to one width"
        )


def flexifed() -> Method:
    base = fedavg.fedavg()
    training = {
        "epochs": 10,
        "batch": 64,
        "lr": 0.01,
        "momentum": 0.9,
        "decay": 5e-4,
        "norm": "tracked",
        "weighting": "uniform",
    }
    return replace(
        base,
        name="flexifed",
        summary="shallower submodels; devices share the leading layers that their networks have in "
        "common",
        paper="Wang et al., FlexiFed, WWW 2023, doi 10.1145/3543507.3583347 (no arXiv; see FedFA, "
        "arXiv 2406.09877)",
        settings=vary(
            base.settings,
            depths=Setting(
                (),
                "blocks per section, a number or a list with one per section; empty: quarters "
                "of every section",
                least=1,
                each=int | tuple[int, ...],
            ),
            sharing=None,
            strategy=Setting(
                "max",
                "layers that devices share. basic: those that all devices have; clustered: "
                "also those that all devices of one architecture have; max: each layer, among "
                "all devices that have it",
                ("basic", "clustered", "max"),
            ),
            match=Setting(
                "prefix",
                "layers that must be equal on two devices: a shared layer and all before it, or "
                "only the shared layer",
                ("prefix", "position"),
            ),
            portion=Setting(
                Recipe.portion,
                "fraction of a device's data that a round trains on, another part in each round; "
                "as many equal parts as fit into 1 are made",
                above=0,
                most=1,
            ),
            **training,
        ),
        forbids={"buffered": "the shared layers may have changed since a late update's task"},
        menu=propose,
        place=place,
        recipe=recipe,
        finish=finish,
        inactive=inactive,
    )
