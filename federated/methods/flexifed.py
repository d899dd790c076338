"""FlexiFed: Wang et al., Personalized Federated Learning for Edge Clients with Heterogeneous Model
Architectures (WWW 2023, doi 10.1145/3543507.3583347; compared with in FedFA, arXiv 2406.09877).

Against FedAvg: a network is a chain of layers, and devices share what their chains have in common,
from the first layer on; the mean counts devices, not examples. `strategy`:

    basic      the layers common to all devices; the others stay on the device
    clustered  the layers common to all devices; the others within each architecture
    max        each layer among all devices whose chains agree up to it and including it

Under max, the paper's best, a layer lives at a digest of the chain that ends in it, so devices meet
where they agree and nothing is compared. Two layers agree that have the same name and the same
shapes (the authors' code compares names alone); a norm's running statistics are part of its layer.
`match = "position"` asks for the layer itself to agree, whatever comes before it: what FedFA
compares with. The architectures of the basic and clustered strategies are those of all devices that
are there, trained in this round or not. A layer that was not common once does not become so when
the device that lacks it goes away, for a round or for good: what the others learned in it would
give way to where the common one began. A layer that stays on a device begins as the run's seed
makes it.

Without `depths` the menu has a quarter, a half, three quarters and all of each section, rounded up:
of VGG-19 these are VGG-11, VGG-16 and VGG-19, three of the paper's four, and one of a convolution
per section.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from federated.engine.aggregate import Total
from federated.errors import ConfigError
from federated.method import Method, Setting, Settings, State, varied
from federated.methods import fedavg
from federated.methods.common.inactive import one_size
from federated.task import Recipe
from models.families.catalogue import full, shapes, statistics
from models.slicing import Plan
from models.submodel import Network, Submodel

__all__ = ["flexifed"]

DIGEST = 12  # hexadecimal digits: chains are few


def chain(submodel: Submodel, settings: Settings) -> dict[str, str]:
    """Of each tensor, in the network's order, what its layer is compared by: a digest of it and,
    matched by prefix, of all layers before it.
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


def common(state: State, submodel: Submodel) -> frozenset[str]:
    """The submodel's tensors in layers that all devices have, and always had; of no fleet, all of
    them.
    """
    fleet = [set(chain(other, state.settings).values()) for other in state.fleet]
    split = {home.partition("@")[0] for home in state.tensors if "@" in home}
    layers = chain(submodel, state.settings)
    return frozenset(
        name
        for name, layer in layers.items()
        if name not in split and all(layer in other for other in fleet)
    )


def place(state: State, submodel: Submodel) -> Plan:
    plan, strategy = fedavg.place(state, submodel), state.settings["strategy"]
    if strategy == "max":
        layers = chain(submodel, state.settings)
        return replace(
            plan, rows=tuple(fedavg.apart(row, f"max-{layers[row.local]}") for row in plan.rows)
        )
    shared = common(state, submodel)
    rows = [row for row in plan.rows if row.local in shared]
    if strategy == "clustered":
        rows += [
            fedavg.apart(row, submodel.plain.name) for row in plan.rows if row.local not in shared
        ]
    return replace(plan, rows=tuple(rows))


def finish(state: State, total: Total, rng: np.random.Generator) -> State:
    """FedAvg's; an empty home `NAME@devices` says of each layer that is not common that it stays on
    devices from now on.
    """
    after = fedavg.finish(state, total, rng)
    if state.settings["strategy"] != "basic" or not total.sums:
        return after
    own = {
        name
        for submodel in state.fleet
        for name in chain(submodel, state.settings).keys() - common(state, submodel)
    }
    return replace(
        after,
        tensors={**after.tensors, **{f"{name}@devices": torch.empty(0) for name in sorted(own)}},
    )


def recipe(state: State, submodel: Submodel) -> Recipe:
    """FedAvg's; under the basic strategy what is not common stays on the device."""
    made = fedavg.recipe(state, submodel)
    if state.settings["strategy"] != "basic":
        return made
    shared = common(state, submodel)
    return replace(
        made, keep=tuple(name for name in chain(submodel, state.settings) if name not in shared)
    )


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """FedAvg's menu, or quarters of every section. ConfigError: statistics cannot be measured of
    layers that stay on devices.
    """
    if settings["strategy"] == "basic" and settings["norm"] == "static":
        raise ConfigError(
            "flexifed: norm 'static' has no statistics of layers that stay on devices; "
            "set norm = tracked, or another strategy than basic"
        )
    sections = [len(section) for section in full(network).mask]
    quarters = tuple(
        tuple(math.ceil(blocks * part / 4) for blocks in sections) for part in (1, 2, 3, 4)
    )
    return fedavg.proposal(network, {**settings, "depths": settings["depths"] or quarters})


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    yield from one_size(menu, settings)
    chains = [set(chain(submodel, settings).values()) for submodel in menu]
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
        summary="shallower copies; devices share the layers that their networks have in common "
        "from the first one on",
        paper="Wang et al., FlexiFed, WWW 2023, doi 10.1145/3543507.3583347 (no arXiv; see FedFA, "
        "arXiv 2406.09877)",
        settings=varied(
            base.settings,
            depths=Setting(
                (),
                "kept blocks per section, one number or one per section; none: quarters "
                "of every section",
                least=1,
                each=int | tuple[int, ...],
            ),
            sharing=None,
            strategy=Setting(
                "max",
                "what is shared: the layers of all, those and each architecture's, or "
                "each layer among all who can",
                ("basic", "clustered", "max"),
            ),
            match=Setting(
                "prefix",
                "when layers agree: with all layers before them, or by themselves",
                ("prefix", "position"),
            ),
            **training,
        ),
        forbids={
            "buffered": "which layers devices share may have changed since a late update's task"
        },
        menu=propose,
        place=place,
        recipe=recipe,
        finish=finish,
        inactive=inactive,
    )
